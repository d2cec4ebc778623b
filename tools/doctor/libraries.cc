// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Libraries: those of rdma-core, which applications bring, and ours.
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>

#include "installed_files.h"
#include "machine.h"
#include "program_reach.h"
#include "provider_abi.h"

namespace doctor {
namespace {

using uwarp::provider_abi::kRegisterDriverNames;

/// Path of a loaded library with all links followed.
std::string path_of(void* library) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return {};
  char resolved[PATH_MAX];
  return realpath(map->l_name, resolved) != nullptr ? resolved : map->l_name;
}

/// rdma-core names its libraries libX.so.<major>.<minor>.<release>.0; 0: not so named.
int release_of(const std::string& path) {
  const size_t suffix = path.find(".so.");
  if (suffix == std::string::npos) return 0;
  int major = 0, minor = 0, release = 0;
  const int count = std::sscanf(path.c_str() + suffix, ".so.%d.%d.%d", &major, &minor, &release);
  return count == 3 ? release : 0;
}

std::string named_release(const std::string& path) {
  const int release = release_of(path);
  return path + ", " +
         (release != 0 ? "rdma-core " + std::to_string(release) : "release of rdma-core unknown");
}

/// The newest number under which this libibverbs registers plugins; 0: none that we know.
int plugin_number(void* library) {
  int number = 0;
  for (const char* name : kRegisterDriverNames)
    if (dlsym(library, name) != nullptr) number = std::atoi(std::strrchr(name, '_') + 1);
  return number;
}

/// First release with the layout that `release` has (kernel-abi/provider_abi.h).
int layout_of(int release) {
  int layout = 0;
  for (const int first : {34, 35, 36, 59, 62, 64})
    if (release >= first) layout = first;
  return layout;
}

void check_verbs(Report& report) {
  void* library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    report.problem("libibverbs", why != nullptr ? why : "cannot be loaded",
                   "Install it: libibverbs1 (Debian), libibverbs (Fedora)");
    return;
  }
  const std::string path = path_of(library);
  const int number = plugin_number(library);
  const int layout = layout_of(release_of(path));
  if (number == 0) {
    report.problem("libibverbs", named_release(path) + ": its interface for plugins is not known",
                   "Use a release of rdma-core from 34 on, or a newer uwarp");
    return;
  }
  std::string text = named_release(path) + ", interface for plugins " + std::to_string(number);
  if (layout != 0) text += " (layout of release " + std::to_string(layout) + ")";
  report.ok("libibverbs", text);
}

void check_rdma_cm(Report& report) {
  void* library = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    report.warning("librdmacm", why != nullptr ? why : "cannot be loaded",
                   "Programs that use rdma_cm need it: librdmacm1 (Debian), librdmacm (Fedora)");
    return;
  }
  report.ok("librdmacm", named_release(path_of(library)));
}

void check_beside(Report& report, const char* check, const std::string& folder, const char* name) {
  const std::string path = folder + "/" + name;
  if (access(path.c_str(), R_OK) == 0) return report.ok(check, path);
  report.problem(check, path + " is missing",
                 "Build all targets, or install the whole package again");
}

}  // namespace

void check_libraries(Report& report) {
  check_verbs(report);
  check_rdma_cm(report);
}

void check_own_files(Report& report) {
  const std::string launcher = uwarp::own_folder() + "/uwarp-run";
  if (access(launcher.c_str(), X_OK) == 0) {
    report.ok("uwarp-run", launcher + ", version " UWARP_VERSION);
  } else {
    report.problem("uwarp-run", launcher + " is missing",
                   "Install it beside uwarp-doctor: programs are started with it");
  }
  const std::string preload = uwarp::find_preload();
  if (preload.empty()) {
    report.problem("preload",
                   std::string(uwarp::kPreloadName) + " is neither in ../lib nor in " +
                       uwarp::install_folder(),
                   "Build all targets, or install the whole package again");
    return;
  }
  report.ok("preload", preload);
  const std::string folder = preload.substr(0, preload.rfind('/'));
  check_beside(report, "engine", folder, uwarp::kEngineName);
  check_beside(report, "provider", folder, uwarp::kPluginName);
}

void check_program(Report& report, const std::string& name) {
  const std::string path = uwarp::find_program(name);
  if (path.empty())
    return report.problem("program", name + " is no program that this user may run",
                          "Give its path, or a name in PATH");
  const uwarp::Unreached found = uwarp::why_unreached(path);
  if (found.why.empty()) return report.ok("program", path + " can be run under uwarp-run");
  report.problem("program", path + " " + found.why, found.cure);
}

}  // namespace doctor
