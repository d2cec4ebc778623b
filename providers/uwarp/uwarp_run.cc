// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// uwarp-run [OPTION]... COMMAND ARGS...: runs COMMAND with libuwarp-preload.so in front and with as
// many open files as the hard limit allows (each queue pair is a socket). Everything after its own
// options, which are variables of the environment in short, is passed on untouched. Of the engine
// it knows only the settings.

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
#include "inject/fault_plan.h"
#include "installed_files.h"
#include "program_reach.h"

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

/// NCCL 2.28 joins all devices that have no place on the PCI bus, and then finds none of them
/// (graph/topo.cc); 2.28.7 and 2.28.9 call a null plugin where no device is of mlx5
/// (plugin/net.cc). Choices of the user's stay.
bool allow_nccl() {
  return setenv("NCCL_NET_MERGE_LEVEL", "LOC", 0) == 0 && setenv("NCCL_GIN_TYPE", "2", 0) == 0;
}

void raise_open_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // If this fails the command may still have enough files.
}

void print_help() {
  std::printf(
      "usage: uwarp-run [OPTION]... COMMAND [ARGUMENT]...\n"
      "\n"
      "Runs COMMAND, an RDMA program that uses libibverbs or librdmacm, with a software RDMA\n"
      "adapter inside its process. It needs no RDMA hardware, no kernel module, no privileges.\n"
      "\n"
      "  uwarp-run ibv_devices               lists the devices: uwarp_eth0 for eth0, ...\n"
      "  uwarp-run ib_write_bw               a server on one machine ...\n"
      "  uwarp-run ib_write_bw 192.0.2.7     ... and a client on another one\n"
      "  UWARP_CRC=1 uwarp-run ...           with a setting of the list below\n"
      "\n"
      "  --roce          look like a RoCE v2 adapter (UWARP_PERSONA=roce), on both sides\n"
      "  --iwarp         look like an iWARP adapter (UWARP_PERSONA=iwarp)\n"
      "  --netdev NAME   only this network device (UWARP_NETDEVS); may be repeated: eth0,lo\n"
      "  --profile NAME  take after an adapter (UWARP_PROFILE): irdma-like, mlx5-like, rxe, siw,\n"
      "                  small, or a file with a slash in its name\n"
      "  --stat          print the totals of each process when it exits (UWARP_STAT=end)\n"
      "  --help          print this text\n"
      "  --version       print the version of uwarp\n"
      "\n"
      "An option is stronger than the variable that it stands for.\n"
      "\n"
      "When something does not work: uwarp-doctor.\n"
      "\n"
      "Settings, as variables of the environment:\n");
  uwarp::print_settings_help(stdout);
}

/// The path instead of the name: the command may change its folder or its root before it asks.
bool put_profile(uwarp::Settings& settings) {
  std::string path;
  const std::string error = uwarp::take_profile(settings, true, uwarp::own_folder(), path);
  if (!error.empty()) std::fprintf(stderr, "uwarp-run: UWARP_PROFILE: %s\n", error.c_str());
  if (!error.empty() || path.empty()) return error.empty();
  char whole[PATH_MAX];
  const char* const value = realpath(path.c_str(), whole) != nullptr ? whole : path.c_str();
  return setenv("UWARP_PROFILE", value, 1) == 0;
}

// A test with faults or limits that are not understood would prove nothing, so nothing runs.
bool check(uwarp::Settings& settings) {
  std::string error;
  (void)uwarp::FaultPlan::parse(settings.fault, error);
  if (!error.empty()) std::fprintf(stderr, "uwarp-run: UWARP_FAULT: %s\n", error.c_str());
  return error.empty() && put_profile(settings);
}

/// The command still runs: it may be a wrapper that starts programs into which the library comes.
void advise_if_unreached(const char* command) {
  const std::string path = uwarp::find_program(command);
  const uwarp::Unreached found = path.empty() ? uwarp::Unreached{} : uwarp::why_unreached(path);
  if (found.why.empty()) return;
  std::fprintf(stderr,
               "uwarp-run: %s %s: it runs without uwarp. %s (UWARP_LOG=0 hides this line)\n",
               path.c_str(), found.why.c_str(), found.cure.c_str());
}

int run(char** command) {
  auto settings = uwarp::parse_settings([](const char* name) { return std::getenv(name); },
                                        [](const std::string&) {});
  if (!check(settings)) return kExitUsage;
  const std::string library = uwarp::find_preload();
  if (library.empty()) {
    std::fprintf(stderr, "uwarp-run: cannot find %s beside me or in %s\n", uwarp::kPreloadName,
                 uwarp::install_folder());
    return kExitUsage;
  }
  if (!preload_into_environment(library) || !allow_address_sanitizer() || !allow_nccl())
    return kExitUsage;
  raise_open_files();
  if (settings.advice) advise_if_unreached(command[0]);
  execvp(command[0], command);
  const int error = errno;
  std::fprintf(stderr, "uwarp-run: %s: %s\n", command[0], std::strerror(error));
  return error == ENOENT ? kExitNotFound : kExitCannotRun;
}

/// The command line up to the command. Options become variables, which a process that the command
/// starts has as well.
class Options {
 public:
  /// Takes the options off the front. False after a complaint.
  bool parse(char** arguments) {
    for (next_ = arguments; *next_ != nullptr && (*next_)[0] == '-';) {
      const std::string_view word = *next_++;
      if (word == "--") break;
      if (!take(word)) return false;
    }
    if (*next_ == nullptr) return usage();
    return true;
  }
  /// What is left: the command and its arguments.
  char** command() const { return next_; }

  bool put_into_environment() const {
    return put("UWARP_PERSONA", persona_) && put("UWARP_NETDEVS", netdevs_) &&
           put("UWARP_STAT", stat_) && put("UWARP_PROFILE", profile_);
  }

 private:
  bool take(std::string_view word) {
    const size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    if (name == "--netdev") {
      std::string value;
      return take_value(word, equals, value) && take_netdev(value);
    }
    if (name == "--profile") return take_value(word, equals, profile_);
    if (word == "--roce" || word == "--iwarp") return take_persona(std::string(word.substr(2)));
    if (word != "--stat") return complain("there is no option " + std::string(word));
    stat_ = "end";
    return true;
  }

  /// --name=VALUE, or VALUE in the next word.
  bool take_value(std::string_view word, size_t equals, std::string& value) {
    if (equals != std::string_view::npos)
      value = word.substr(equals + 1);
    else if (*next_ != nullptr)
      value = *next_++;
    if (!value.empty() && value[0] != '-') return true;
    return complain(std::string(word.substr(0, equals)) + " needs a name");
  }

  bool take_persona(const std::string& persona) {
    if (!persona_.empty() && persona_ != persona) return complain("--roce or --iwarp, not both");
    persona_ = persona;
    return true;
  }

  bool take_netdev(const std::string& name) {
    netdevs_ += (netdevs_.empty() ? "" : ",") + name;
    return true;
  }

  static bool put(const char* variable, const std::string& value) {
    return value.empty() || setenv(variable, value.c_str(), 1) == 0;
  }
  static bool complain(const std::string& line) {
    std::fprintf(stderr, "uwarp-run: %s\n", line.c_str());
    return usage();
  }
  static bool usage() {
    std::fprintf(
        stderr,
        "usage: uwarp-run [OPTION]... COMMAND [ARGUMENT]...   (uwarp-run --help for more)\n");
    return false;
  }

  char** next_ = nullptr;
  std::string persona_;
  std::string netdevs_;
  std::string stat_;
  std::string profile_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--help") {
    print_help();
    return 0;
  }
  if (argc > 1 && std::string_view(argv[1]) == "--version") {
    std::puts("uwarp " UWARP_VERSION);
    return 0;
  }
  Options options;
  if (argc < 1 || !options.parse(argv + 1) || !options.put_into_environment()) return kExitUsage;
  return run(options.command());
}
