// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Path rules. Runs inside open() and stat() of any program: no allocation, no libc state.
#include "preload/paths.h"

#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "host/private_folder.h"
#include "preload/engine_link.h"
#include "preload/own_root.h"

namespace uwarp_preload {
namespace {

constexpr char kDeviceFolder[] = "/dev/infiniband/";
constexpr char kSysClass[] = "/sys/class/infiniband";
constexpr size_t kSysLength = 4;  // "/sys"
// Below it are the devices of the host; net_device.h has the same number.
constexpr int kFirstUverbsNumber = 192;

// libibverbs composes paths in 256 bytes; ours end in up to 80 below the root.
constexpr size_t kRootMax = 160;
// Written by the constructor only.
char own_root[kRootMax];
size_t own_root_length = 0;

template <size_t N>
bool starts_with(const char* path, const char (&prefix)[N]) {
  return strncmp(path, prefix, N - 1) == 0;
}

/// `path` is `prefix` or lies below it.
bool is_below(const char* path, const char* prefix, size_t length) {
  return length != 0 && strncmp(path, prefix, length) == 0 &&
         (path[length] == '/' || path[length] == '\0');
}

bool is_sys_class(const char* path) {
  if (!starts_with(path, kSysClass)) return false;
  const char* rest = path + sizeof kSysClass - 1;
  if (starts_with(rest, "_verbs")) rest += sizeof "_verbs" - 1;
  return *rest == '/' || *rest == '\0';
}

/// The N of "uverbs<N>", -1 for any other name.
int uverbs_number(const char* name) {
  if (!starts_with(name, "uverbs")) return -1;
  const char* digits = name + sizeof "uverbs" - 1;
  int number = 0;
  for (const char* c = digits; *c != '\0'; ++c) {
    if (*c < '0' || *c > '9' || c - digits >= 6) return -1;
    number = number * 10 + (*c - '0');
  }
  return digits[0] == '\0' ? -1 : number;
}

void resolve_node(const char* name, Resolved& result) {
  const int number = uverbs_number(name);
  const bool rdma_cm = strcmp(name, "rdma_cm") == 0;
  if (number < kFirstUverbsNumber && !rdma_cm) return;
  const uwarp_host_table* engine = host();
  if (engine == nullptr) return;
  const UncancelledEngineCall guard;
  if (rdma_cm) {
    if (engine->has_rdma_cm()) result.kind = PathKind::kRdmaCm;
  } else if (engine->has_uverbs(number)) {
    result.kind = PathKind::kUverbs;
    result.uverbs_number = number;
  }
}

/// `below_root` starts with a slash or is empty.
void resolve_file(const char* below_root, Resolved& result) {
  const uwarp_host_table* engine = host();
  if (engine == nullptr) return;
  const UncancelledEngineCall guard;
  // A listing is the moment to look for changes.
  const char* root = below_root[0] == '/' && is_listing(below_root + 1)
                         ? engine->sysfs_root(own_root)
                         : engine->sysfs_root_cached(own_root);
  if (root == nullptr) return;
  const size_t root_length = strlen(root);
  const size_t below_length = strlen(below_root);
  if (root_length + below_length >= sizeof result.path) return;
  memcpy(result.path, root, root_length);
  memcpy(result.path + root_length, below_root, below_length + 1);
  result.root_length = root_length;
  result.kind = PathKind::kFile;
}

/// Trees are called uwarp-<pid>-<16 hex digits>.
bool is_uwarp_tree(const char* path) {
  const char* slash = strrchr(path, '/');
  const char* name = slash == nullptr ? path : slash + 1;
  return starts_with(name, "uwarp-") && strlen(name) > sizeof "uwarp-" + 16;
}

/// The first folder we may write to; the engine looks further when the tree cannot be made there.
const char* tree_folder() {
  constexpr size_t kFolderMax = kRootMax - 40;  // for "/uwarp-<pid>-<hex>"
  const char* runtime = secure_getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/' && strlen(runtime) < kFolderMax &&
      uwarp::is_private_folder(runtime) && syscall(SYS_faccessat, -1, runtime, W_OK | X_OK) == 0) {
    return runtime;
  }
  return syscall(SYS_faccessat, -1, "/tmp", W_OK | X_OK) == 0 ? "/tmp" : "/dev/shm";
}

}  // namespace

bool may_be_ours(const char* path) {
  // Libc's declarations promise the compiler that paths are never null; callers need not keep it.
  asm("" : "+r"(path));
  if (path == nullptr || path[0] != '/') return false;
  return starts_with(path, kDeviceFolder) || starts_with(path, kSysClass) ||
         is_below(path, own_root, own_root_length);
}

bool is_listing(const char* below_root) {
  return strcmp(below_root, "class/infiniband_verbs") == 0;
}

void resolve(const char* path, Resolved& result) {
  const int saved = errno;
  result.kind = PathKind::kForeign;
  if (starts_with(path, kDeviceFolder)) {
    resolve_node(path + sizeof kDeviceFolder - 1, result);
  } else if (is_below(path, own_root, own_root_length)) {
    resolve_file(path + own_root_length, result);
  } else if (is_sys_class(path)) {
    resolve_file(path + kSysLength, result);
  }
  errno = saved;
}

void set_sysfs_path() {
  const char* inherited = secure_getenv("SYSFS_PATH");
  if (inherited != nullptr && inherited[0] != '\0' && !is_uwarp_tree(inherited)) {
    setenv("UWARP_HOST_SYSFS", inherited, 1);
  }
  // Unpredictable, so that nobody else can be there first.
  uint64_t random = 0;
  if (syscall(SYS_getrandom, &random, sizeof random, GRND_NONBLOCK) != sizeof random) {
    random = reinterpret_cast<uintptr_t>(&random) ^ reinterpret_cast<uintptr_t>(own_root);
  }
  const int length = snprintf(own_root, sizeof own_root, "%s/uwarp-%ld-%016llx", tree_folder(),
                              syscall(SYS_getpid), static_cast<unsigned long long>(random));
  if (length <= 0 || static_cast<size_t>(length) >= sizeof own_root) return;
  own_root_length = static_cast<size_t>(length);
  setenv("SYSFS_PATH", own_root, 1);
}

bool refresh_tree() {
  if (own_root_length == 0) return false;
  const uwarp_host_table* engine = host();
  if (engine == nullptr) return false;
  const int saved = errno;
  const UncancelledEngineCall guard;
  const bool made = engine->sysfs_root(own_root) != nullptr && engine->has_devices();
  errno = saved;
  return made;
}

}  // namespace uwarp_preload
