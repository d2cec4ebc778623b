// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The last check: the doctor starts itself under uwarp-run, where it does what applications do
// first and prints the results as one line of JSON. It loads libibverbs with dlopen(), so that it
// starts where libibverbs is missing.
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <nlohmann/json.hpp>

#include "installed_files.h"
#include "machine.h"

namespace doctor {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{30};
constexpr size_t kOutputMax = 1 << 20;

template <typename Function>
Function* symbol(void* library, const char* name) {
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
}

json open_devices(void* library) {
  const auto list = symbol<decltype(ibv_get_device_list)>(library, "ibv_get_device_list");
  const auto name_of = symbol<decltype(ibv_get_device_name)>(library, "ibv_get_device_name");
  const auto open = symbol<decltype(ibv_open_device)>(library, "ibv_open_device");
  const auto close = symbol<decltype(ibv_close_device)>(library, "ibv_close_device");
  json devices = json::array();
  if (list == nullptr || name_of == nullptr || open == nullptr || close == nullptr) return devices;
  ibv_device** found = list(nullptr);
  for (ibv_device** device = found; device != nullptr && *device != nullptr; ++device) {
    errno = 0;
    ibv_context* context = open(*device);
    devices.push_back({{"name", name_of(*device)}, {"error", context != nullptr ? 0 : errno}});
    if (context != nullptr) close(context);
  }
  return devices;
}

int open_event_channel(void* library) {
  const auto create =
      symbol<decltype(rdma_create_event_channel)>(library, "rdma_create_event_channel");
  const auto destroy =
      symbol<decltype(rdma_destroy_event_channel)>(library, "rdma_destroy_event_channel");
  if (create == nullptr || destroy == nullptr) return ENOSYS;
  errno = 0;
  rdma_event_channel* channel = create();
  if (channel == nullptr) return errno != 0 ? errno : EIO;
  destroy(channel);
  return 0;
}

struct Outcome {
  bool ended = false;
  int status = -1;  // of the process, if it has ended by itself
  std::string output;
};

pid_t start(const std::string& launcher, const std::string& self, int output) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::string option = "--application";
  char* arguments[] = {const_cast<char*>(launcher.c_str()), const_cast<char*>(self.c_str()),
                       option.data(), nullptr};
  pid_t child = -1;
  const int error = posix_spawn(&child, launcher.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? child : -1;
}

/// Reads until the end of the pipe, or until it has taken too long.
bool read_to_end(int fd, std::string& output) {
  const auto end = Clock::now() + kPatience;
  while (output.size() < kOutputMax) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || poll(&entry, 1, static_cast<int>(left.count())) == 0) return false;
    char buffer[4096];
    const ssize_t count = read(fd, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return true;
    output.append(buffer, static_cast<size_t>(count));
  }
  return false;
}

Outcome run_application() {
  Outcome outcome;
  char self[PATH_MAX] = {};
  int ends[2];
  if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0 || pipe2(ends, O_CLOEXEC) != 0)
    return outcome;
  const pid_t child = start(uwarp::own_folder() + "/uwarp-run", self, ends[1]);
  close(ends[1]);
  if (child > 0) {
    outcome.ended = read_to_end(ends[0], outcome.output);
    if (!outcome.ended) kill(child, SIGKILL);
    while (waitpid(child, &outcome.status, 0) < 0 && errno == EINTR) {
    }
  }
  close(ends[0]);
  return outcome;
}

void report_devices(Report& report, const json& devices) {
  std::string names;
  for (const json& device : devices) {
    const std::string name = device.value("name", "?");
    if (!name.starts_with("uwarp_")) continue;
    const int error = device.value("error", 0);
    if (error == 0) {
      names += ' ' + name;
      continue;
    }
    report.problem("verbs", name + " is listed but does not open: " + std::strerror(error),
                   "Run ibv_devinfo under uwarp-run with UWARP_LOG=1");
  }
  if (!names.empty()) {
    report.ok("verbs", "a program under uwarp-run opens" + names);
  } else {
    report.problem("verbs", "a program under uwarp-run sees no device of uwarp",
                   "Correct the problems above; then try UWARP_LOG=1 uwarp-run ibv_devices");
  }
}

}  // namespace

int act_as_application() {
  void* verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_GLOBAL);
  void* rdma_cm = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_GLOBAL);
  json told;
  told["devices"] = open_devices(verbs);
  told["has_rdma_cm"] = rdma_cm != nullptr;
  told["rdma_cm"] = rdma_cm == nullptr ? 0 : open_event_channel(rdma_cm);
  std::printf("%s\n", told.dump().c_str());
  return 0;
}

void check_application(Report& report) {
  const Outcome outcome = run_application();
  const json told = json::parse(outcome.output, nullptr, false);
  if (!outcome.ended) {
    report.problem("verbs", "a program under uwarp-run could not be started, or hung",
                   "Try uwarp-run ibv_devices");
  } else if (!told.is_object()) {
    report.problem("verbs", "a program under uwarp-run ends before it has listed its devices",
                   "Try uwarp-run ibv_devices");
  } else {
    report_devices(report, told.value("devices", json::array()));
    if (!told.value("has_rdma_cm", false)) return;  // check_libraries() has said so
    const int error = told.value("rdma_cm", 0);
    if (error == 0) return report.ok("rdma_cm", "a program under uwarp-run opens event channels");
    report.problem("rdma_cm",
                   std::string("no event channel can be opened: ") + std::strerror(error),
                   "Try UWARP_LOG=1 uwarp-run rping -s");
  }
}

}  // namespace doctor
