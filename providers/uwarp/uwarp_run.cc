// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// uwarp-run COMMAND ARGS...: runs COMMAND with libuwarp-preload.so in front and with as many open
// files as the hard limit allows (each queue pair is a socket). Everything after its own options is
// passed on untouched. Of the engine it knows only the table of settings, to print it.

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "base/settings.h"

namespace {

constexpr const char* kPreloadName = "libuwarp-preload.so";
// The statuses that env(1), nohup(1) and shells use for these cases.
constexpr int kExitUsage = 125;
constexpr int kExitCannotRun = 126;
constexpr int kExitNotFound = 127;

std::string own_folder() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0 || length == static_cast<ssize_t>(sizeof path)) return ".";
  const std::string_view self(path, static_cast<size_t>(length));
  return std::string(self.substr(0, self.rfind('/')));
}

// First where a build tree or a moved installation has it, then where it was to be installed.
std::string find_preload() {
  const std::string folder = own_folder();
  for (const std::string& candidate :
       {folder + "/../lib/" + kPreloadName, folder + "/" UWARP_LIBDIR_FROM_BINDIR "/" + kPreloadName,
        std::string(UWARP_INSTALL_LIBDIR "/") + kPreloadName}) {
    char resolved[PATH_MAX];
    if (access(candidate.c_str(), R_OK) == 0 && realpath(candidate.c_str(), resolved)) {
      return resolved;
    }
  }
  return {};
}

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

void raise_open_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // Only a wish: the command may need no more than it had.
}

void print_help() {
  std::printf(
      "usage: uwarp-run COMMAND [ARGUMENT]...\n"
      "\n"
      "Runs COMMAND, a program linked to libibverbs or librdmacm, with RDMA over TCP (iWARP) in\n"
      "user space: no RDMA hardware, no kernel module, no privileges.\n"
      "\n"
      "  --help      this text\n"
      "  --version   version of uwarp\n"
      "\n"
      "Environment:\n");
  uwarp::print_settings_help(stdout);
}

int run(char** command) {
  const std::string library = find_preload();
  if (library.empty()) {
    std::fprintf(stderr, "uwarp-run: cannot find %s beside me or in %s\n", kPreloadName,
                 UWARP_INSTALL_LIBDIR);
    return kExitUsage;
  }
  if (!preload_into_environment(library)) return kExitUsage;
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
