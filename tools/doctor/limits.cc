// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the system allows a process: limits, system calls, folders. Also the host's own adapters.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

#include "machine.h"
#include "memory/fault_safe_copy.h"
#include "os/call_cost.h"
#include "sysfs/sysfs_tree.h"

namespace doctor {
namespace {

constexpr rlim_t kLeastFiles = 64;
constexpr rlim_t kFewFiles = 1024;
/// Libraries, threads' stacks and rings; registered memory is the application's own.
constexpr rlim_t kLittleSpace = rlim_t{1} << 30;

std::string text_of(rlim_t value) {
  return value == RLIM_INFINITY ? "unlimited" : std::to_string(value);
}

void check_files(Report& report) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  const std::string text = "limit of open files " + text_of(files.rlim_cur) + ", under uwarp-run " +
                           text_of(files.rlim_max) + "; each connected queue pair uses one";
  const char* advice = "Raise the hard limit: LimitNOFILE= of systemd, or limits.conf";
  if (files.rlim_max < kLeastFiles) {
    report.problem("files", text, advice);
  } else if (files.rlim_max < kFewFiles) {
    report.warning("files", text, advice);
  } else {
    report.ok("files", text);
  }
}

void check_threads(Report& report) {
  try {
    std::thread([] {}).join();
    report.ok("threads", "a thread can be started; uwarp needs one per process");
  } catch (const std::system_error& error) {
    report.problem("threads", std::string("no thread can be started: ") + error.what(),
                   "Raise the limit of processes (ulimit -u, TasksMax= of systemd)");
  }
}

void check_address_space(Report& report) {
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) != 0) return;
  const std::string text = "address space " + text_of(space.rlim_cur);
  if (space.rlim_cur < kLittleSpace) {
    report.warning("memory", text + " bytes", "Raise it (ulimit -v) if calls fail with ENOMEM");
  } else {
    report.ok("memory", text + "; uwarp locks no memory, so ulimit -l does not matter");
  }
}

int errno_of(int fd) {
  if (fd < 0) return errno;
  close(fd);
  return 0;
}

bool filtered_by_seccomp() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("Seccomp:")) return line.find('2') != std::string::npos;
  return false;
}

bool is_writable_folder(const std::string& folder) {
  std::string path = folder + "/uwarp-doctor-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) return false;
  rmdir(path.c_str());
  return true;
}

}  // namespace

void check_limits(Report& report) {
  check_files(report);
  check_threads(report);
  check_address_space(report);
}

void check_system_calls(Report& report) {
  struct Call {
    const char* name;
    int error;
  };
  char byte;
  const Call needed[] = {
      {"epoll_create1", errno_of(epoll_create1(EPOLL_CLOEXEC))},
      {"eventfd", errno_of(eventfd(0, EFD_CLOEXEC))},
      {"socket(AF_INET)", errno_of(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))},
      {"socket(AF_NETLINK)", errno_of(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0))},
      {"memfd_create", errno_of(memfd_create("uwarp-doctor", MFD_CLOEXEC))},
      {"getrandom", getrandom(&byte, 1, GRND_NONBLOCK) == 1 ? 0 : errno},
  };
  const char* advice = "Allow it in the seccomp profile (container runtime, SystemCallFilter=)";
  bool all = true;
  for (const Call& call : needed) {
    if (call.error == 0) continue;
    all = false;
    report.problem("syscalls", std::string(call.name) + " fails: " + std::strerror(call.error),
                   advice);
  }
  if (!uwarp::fault_safe_copy_works()) {
    all = false;
    report.warning("syscalls",
                   "process_vm_readv and process_vm_writev fail, so on-demand regions cannot be "
                   "used",
                   advice);
  }
  if (uwarp::calls_are_dear())
    report.ok("calls", "a system call takes " + std::to_string(uwarp::call_cost_ns()) +
                           " ns, which is long, so uwarp makes fewer of them (UWARP_CALLS)");
  if (all)
    report.ok("syscalls", filtered_by_seccomp() ? "the seccomp filter allows all that is needed"
                                                : "no seccomp filter");
}

void check_folders(Report& report) {
  if (access("/proc/self/maps", R_OK) != 0)
    report.warning("proc", "/proc/self/maps cannot be read, so ibv_reg_mr does not check addresses",
                   "Mount /proc");
  for (const std::string& folder : uwarp::tree_folders()) {
    if (!is_writable_folder(folder)) continue;
    report.ok("folder", "each process makes its sysfs tree in " + folder);
    return;
  }
  report.problem("folder", "no folder is writable in which a process could make its sysfs tree",
                 "Make /tmp or /dev/shm writable, or set XDG_RUNTIME_DIR");
}

void check_host_devices(Report& report, const uwarp::Settings& settings) {
  std::string names;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(settings.host_sysfs + "/class/infiniband", error))
    names += ' ' + entry.path().filename().string();
  if (!names.empty())
    report.ok("adapters", "the host has RDMA devices of its own, which programs see too:" + names);
  if (settings.cm != uwarp::CmOwner::kKernel) return;
  if (access("/dev/infiniband/rdma_cm", R_OK | W_OK) == 0) {
    report.ok("rdma_cm", "left to the kernel by UWARP_CM=kernel");
  } else {
    report.problem("rdma_cm", "UWARP_CM=kernel, but /dev/infiniband/rdma_cm cannot be opened",
                   "Load rdma_ucm, or unset UWARP_CM");
  }
}

}  // namespace doctor
