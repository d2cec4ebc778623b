// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// uwarp-run COMMAND ARGS...: runs COMMAND with libuwarp-preload.so in front and with as many open
// files as the hard limit allows (each queue pair is a socket). Everything after its own options is
// passed on untouched. Of the engine it knows only the settings.

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "base/settings.h"
#include "inject/fault_plan.h"
#include "installed_files.h"

namespace {

// The statuses that env(1), nohup(1) and shells use for these cases.
constexpr int kExitUsage = 125;
constexpr int kExitCannotRun = 126;
constexpr int kExitNotFound = 127;

bool preload_into_environment(const std::string& library) {
  // The dynamic linker splits this variable at colons and spaces and knows no quoting.
  if (library.find_first_of(": ") != std::string::npos) {
    std::fprintf(stderr, "uwarp-run: the path %s contains a colon or a space\n", library.c_str());
    return false;
  }
  std::string value = library;
  const char* present = std::getenv("LD_PRELOAD");
  if (present && *present) {
    if (std::strstr(present, library.c_str())) return true;
    value += ":";
    value += present;
  }
  return setenv("LD_PRELOAD", value.c_str(), 1) == 0;
}

/// A program built with AddressSanitizer refuses to start when another library is loaded before the
/// sanitizer's. Set for each command, because a script or a launcher may start such a program. A
/// choice of the user's stays.
bool allow_address_sanitizer() {
  constexpr char kName[] = "verify_asan_link_order";
  const char* present = std::getenv("ASAN_OPTIONS");
  std::string value = present != nullptr ? present : "";
  if (value.find(kName) != std::string::npos) return true;
  if (!value.empty()) value += ':';
  value += std::string(kName) + "=0";
  return setenv("ASAN_OPTIONS", value.c_str(), 1) == 0;
}

void raise_open_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // If this fails the command may still have enough files.
}

void print_help() {
  std::printf(
      "usage: uwarp-run COMMAND [ARGUMENT]...\n"
      "\n"
      "Runs COMMAND, an RDMA program that uses libibverbs or librdmacm, with a software RDMA\n"
      "adapter inside its process. It needs no RDMA hardware, no kernel module, no privileges.\n"
      "\n"
      "  uwarp-run ibv_devices               lists the devices: uwarp_eth0 for eth0, ...\n"
      "  uwarp-run ib_write_bw               a server on one machine ...\n"
      "  uwarp-run ib_write_bw 192.0.2.7     ... and a client on another one\n"
      "  UWARP_PERSONA=roce uwarp-run ...    with a setting of the list below\n"
      "\n"
      "  --help      print this text\n"
      "  --version   print the version of uwarp\n"
      "\n"
      "When something does not work: uwarp-doctor.\n"
      "\n"
      "Settings, as variables of the environment:\n");
  uwarp::print_settings_help(stdout);
}

// A test with faults that are not understood would prove nothing, so nothing runs.
bool faults_valid() {
  const auto settings = uwarp::parse_settings([](const char* name) { return std::getenv(name); },
                                              [](const std::string&) {});
  std::string error;
  (void)uwarp::FaultPlan::parse(settings.fault, error);
  if (!error.empty()) std::fprintf(stderr, "uwarp-run: UWARP_FAULT: %s\n", error.c_str());
  return error.empty();
}

int run(char** command) {
  if (!faults_valid()) return kExitUsage;
  const std::string library = uwarp::find_preload();
  if (library.empty()) {
    std::fprintf(stderr, "uwarp-run: cannot find %s beside me or in %s\n", uwarp::kPreloadName,
                 uwarp::install_folder());
    return kExitUsage;
  }
  if (!preload_into_environment(library) || !allow_address_sanitizer()) return kExitUsage;
  raise_open_files();
  execvp(command[0], command);
  const int error = errno;
  std::fprintf(stderr, "uwarp-run: %s: %s\n", command[0], std::strerror(error));
  return error == ENOENT ? kExitNotFound : kExitCannotRun;
}

}  // namespace

int main(int argc, char** argv) {
  int first = 1;
  if (argc > 1 && std::string_view(argv[1]) == "--help") {
    print_help();
    return 0;
  }
  if (argc > 1 && std::string_view(argv[1]) == "--version") {
    std::puts("uwarp " UWARP_VERSION);
    return 0;
  }
  if (argc > 1 && std::string_view(argv[1]) == "--") ++first;
  if (first >= argc || (first == 1 && argv[1][0] == '-')) {
    std::fprintf(stderr, "usage: uwarp-run COMMAND [ARGUMENT]...   (uwarp-run --help for more)\n");
    return kExitUsage;
  }
  return run(argv + first);
}
