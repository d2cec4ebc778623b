// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// dlopen of the engine and of the plugin, and forks.
#include "preload/engine_link.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>

#include "preload/fd_kinds.h"
#include "preload/listing.h"
#include "preload/real.h"

namespace uwarp_preload {
namespace {

constexpr char kEngineName[] = "libuwarp.so.0";
constexpr char kPluginName[] = "libuwarp-rdmav34.so";

constinit std::atomic<const uwarp_host_table*> table{nullptr};
// Initial-exec: no allocation at first use, hence usable in signal handlers.
constinit thread_local int engine_depth __attribute__((tls_model("initial-exec"))) = 0;
constinit pthread_once_t engine_once = PTHREAD_ONCE_INIT;
constinit std::atomic<bool> plugin_done{false};

/// In a forked child.
void forked() {
  own_table();
  forget_listings();
}

constexpr uwarp_preload_table kPreloadTable = {UWARP_HOST_TABLE_VERSION, set_kind, kind_of, forked};

/// Path of a file beside this library; false if that is too long or unknown.
bool path_beside(const char* name, char (&path)[PATH_MAX]) {
  Dl_info self;
  if (dladdr(&kPreloadTable, &self) == 0 || self.dli_fname == nullptr) return false;
  const char* slash = strrchr(self.dli_fname, '/');
  const size_t folder = slash == nullptr ? 0 : static_cast<size_t>(slash + 1 - self.dli_fname);
  if (folder + strlen(name) + 1 > sizeof path) return false;
  memcpy(path, self.dli_fname, folder);
  strcpy(path + folder, name);
  return true;
}

void complain(const char* what) {
  // Straight to the kernel: stderr may be anything, and write() is ours.
  const char prefix[] = "uwarp: ";
  syscall(SYS_write, STDERR_FILENO, prefix, sizeof prefix - 1);
  syscall(SYS_write, STDERR_FILENO, what, strlen(what));
  syscall(SYS_write, STDERR_FILENO, "\n", 1);
}

void load_engine() {
  const UncancelledEngineCall guard;
  char path[PATH_MAX];
  void* engine = path_beside(kEngineName, path) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (engine == nullptr) engine = dlopen(kEngineName, RTLD_NOW | RTLD_LOCAL);
  if (engine == nullptr) {
    const char* why = dlerror();
    complain(why != nullptr ? why : "cannot load libuwarp");
    return;
  }
  auto get = reinterpret_cast<const uwarp_host_table* (*)()>(dlsym(engine, "uwarp_host"));
  const uwarp_host_table* found = get == nullptr ? nullptr : get();
  if (found == nullptr || found->version != UWARP_HOST_TABLE_VERSION) {
    complain("libuwarp and libuwarp-preload are of different versions");
    return;
  }
  own_table();
  found->attach(&kPreloadTable);
  table.store(found, std::memory_order_release);
}

/// True when there is nothing more to do.
bool try_load_plugin() {
  if (dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD) == nullptr) return false;
  char path[PATH_MAX];
  if (!path_beside(kPluginName, path) || syscall(SYS_faccessat, AT_FDCWD, path, R_OK) != 0) {
    return true;
  }
  if (dlopen(path, RTLD_NOW | RTLD_LOCAL) == nullptr) {
    const char* why = dlerror();
    complain(why != nullptr ? why : "cannot load the libibverbs plugin");
  }
  return true;
}

}  // namespace

InsideEngine::InsideEngine() { ++engine_depth; }
InsideEngine::~InsideEngine() { --engine_depth; }
bool inside_engine() { return engine_depth != 0; }

UncancelledEngineCall::UncancelledEngineCall() {
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state_);
}
UncancelledEngineCall::~UncancelledEngineCall() { pthread_setcancelstate(cancel_state_, nullptr); }

const uwarp_host_table* host() {
  if (inside_engine()) return nullptr;
  const uwarp_host_table* loaded = table.load(std::memory_order_acquire);
  if (loaded != nullptr) return memory_is_ours() ? loaded : nullptr;
  const int saved = errno;
  pthread_once(&engine_once, load_engine);
  errno = saved;
  return table.load(std::memory_order_acquire);
}

const uwarp_host_table* host_if_loaded() { return table.load(std::memory_order_acquire); }

void load_plugin() {
  if (plugin_done.load(std::memory_order_acquire)) return;
  const int saved = errno;
  const UncancelledEngineCall guard;
  // Two threads at once do no harm: dlopen loads one file once.
  if (try_load_plugin()) plugin_done.store(true, std::memory_order_release);
  errno = saved;
}

}  // namespace uwarp_preload

using namespace uwarp_preload;

namespace {
constinit Real<pid_t()> real_bare_fork("_Fork");
constinit Real<int(int, int)> real_daemon("daemon");
constinit Real<pid_t()> real_setsid("setsid");

template <auto Say>
void let_engine_say() {
  const uwarp_host_table* engine = host_if_loaded();
  if (engine == nullptr || !memory_is_ours() || !table_is_ours()) return;
  const UncancelledEngineCall guard;
  (engine->*Say)();
}
}  // namespace

// It runs no fork handlers. The parent's sockets must not stay open because of the child; the
// engine's locks are not touched. As async-signal-safe as the real one.
extern "C" pid_t _Fork() noexcept {
  const pid_t child = real_bare_fork();
  if (child != 0) return child;
  for (int fd = 0; fd <= highest_marked(); ++fd) {
    if (kind_of(fd) != UWARP_FD_PRIVATE) continue;
    syscall(SYS_close, fd);
    set_kind(fd, UWARP_FD_FOREIGN);
  }
  return 0;
}

extern "C" int daemon(int stay_in_folder, int keep_stdio) noexcept {
  let_engine_say<&uwarp_host_table::becoming_daemon>();
  return real_daemon(stay_in_folder, keep_stdio);
}

extern "C" pid_t setsid() noexcept {
  let_engine_say<&uwarp_host_table::leading_session>();
  return real_setsid();
}
