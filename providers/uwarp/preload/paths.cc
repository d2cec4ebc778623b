// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Path rules. Runs inside open() and stat() of any program: no allocation, no libc state.
#include "preload/paths.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "preload/engine_link.h"
#include "preload/own_root.h"
#include "sysfs/private_folder.h"

namespace uwarp_preload {
namespace {

constexpr char kDeviceFolder[] = "/dev/infiniband";
constexpr char kSysClass[] = "/sys/class/infiniband";
constexpr char kSysRdmaCm[] = "/sys/class/misc/rdma_cm";
constexpr size_t kSysLength = 4;  // "/sys"
constexpr const char* kListings[] = {"class/infiniband_verbs", kDeviceFolder + 1};
// Below it are the devices of the host; net_device.h has the same number.
constexpr int kFirstUverbsNumber = 192;

// libibverbs composes paths in 256 bytes; ours end in up to 80 below the root.
constexpr size_t kRootMax = 160;
// Written by the constructor only.
char own_root[kRootMax];
size_t own_root_length = 0;
/// The tree's root if it is not own_root: after a fork, or when own_root could not be made. Null
/// before the first use of such a tree.
constinit std::atomic<const char*> other_root{nullptr};

template <size_t N>
bool starts_with(const char* path, const char (&prefix)[N]) {
  return strncmp(path, prefix, N - 1) == 0;
}

/// `path` is `prefix` or lies below it.
bool is_below(const char* path, const char* prefix, size_t length) {
  return length != 0 && strncmp(path, prefix, length) == 0 &&
         (path[length] == '/' || path[length] == '\0');
}

/// How much of the path is the root of our tree; 0: it is not in there.
size_t length_of_root(const char* path) {
  if (is_below(path, own_root, own_root_length)) return own_root_length;
  const char* other = other_root.load(std::memory_order_acquire);
  const size_t length = other == nullptr ? 0 : strlen(other);
  return is_below(path, other, length) ? length : 0;
}

/// What comes after "/dev/infiniband" and slashes; null when the path is not there.
const char* name_of_node(const char* path) {
  if (!is_below(path, kDeviceFolder, sizeof kDeviceFolder - 1)) return nullptr;
  const char* name = path + sizeof kDeviceFolder - 1;
  return name + strspn(name, "/");
}

bool is_sys_class(const char* path) {
  if (is_below(path, kSysRdmaCm, sizeof kSysRdmaCm - 1)) return true;
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
  if (strcmp(root, own_root) != 0) other_root.store(root, std::memory_order_release);
  const size_t root_length = strlen(root);
  const size_t below_length = strlen(below_root);
  if (root_length + below_length >= sizeof result.path) return;
  memmove(result.path + root_length, below_root, below_length + 1);  // may be in there itself
  memcpy(result.path, root, root_length);
  result.root_length = root_length;
  result.kind = PathKind::kFile;
}

bool has_devices() {
  const uwarp_host_table* engine = host();
  if (engine == nullptr) return false;
  const UncancelledEngineCall guard;
  return engine->has_devices() != 0;
}

void resolve_absolute(const char* path, Resolved& result) {
  const size_t root_length = length_of_root(path);
  const bool own = root_length != 0;
  const char* below_root = path + root_length;
  if (const char* name = name_of_node(below_root)) {
    if (name[0] != '\0')
      resolve_node(name, result);
    else if (has_devices())  // else the folder is the host's
      resolve_file(below_root, result);
    // A node of the host's, to which the tree has a link.
    if (own && result.kind == PathKind::kForeign) resolve_file(below_root, result);
  } else if (own) {
    resolve_file(below_root, result);
  } else if (is_sys_class(path)) {
    resolve_file(path + kSysLength, result);
  }
}

/// The name of an open folder, which is not terminated, or of the current one; 0: it has none.
size_t name_of_folder(int folder, char (&name)[PATH_MAX]) {
  char link[32] = "/proc/self/cwd";
  if (folder != AT_FDCWD) snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  const long got = syscall(SYS_readlinkat, AT_FDCWD, link, name, sizeof name);
  return got > 0 && name[0] == '/' ? static_cast<size_t>(got) : 0;
}

/// False when it has no name or is too long.
bool name_from_root(int folder, const char* path, char (&whole)[PATH_MAX]) {
  size_t length = name_of_folder(folder, whole);
  if (length == 0) return false;
  if (length == 1) length = 0;  // the root itself
  while (path[0] == '.' && path[1] == '/') path += 1 + strspn(path + 1, "/");
  if (length + 1 + strlen(path) >= sizeof whole) return false;
  whole[length++] = '/';
  strcpy(whole + length, path);
  return true;
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
  if (path == nullptr) return false;
  if (path[0] != '/') {
    return path[0] != '\0' &&
           (host_if_loaded() != nullptr || strstr(path, "infiniband") != nullptr);
  }
  return starts_with(path, kDeviceFolder) || starts_with(path, kSysClass) ||
         starts_with(path, kSysRdmaCm) || length_of_root(path) != 0;
}

bool is_listing(const char* below_root) {
  for (const char* folder : kListings) {
    const size_t length = strlen(folder);
    if (strncmp(below_root, folder, length) != 0) continue;
    const char* rest = below_root + length;
    if (rest[strspn(rest, "/")] == '\0') return true;
  }
  return false;
}

bool is_open_listing(int fd) {
  if (host_if_loaded() == nullptr) return false;
  const int saved = errno;
  char name[PATH_MAX];
  const size_t length = name_of_folder(fd, name);
  errno = saved;
  for (const char* folder : kListings) {
    const size_t end = strlen(folder) + 1;  // with the slash in front
    if (length <= end || memcmp(name + length - end + 1, folder, end - 1) != 0) continue;
    name[length - end] = '\0';
    return is_uwarp_tree(name);
  }
  return false;
}

void resolve(int folder, const char* path, Resolved& result) {
  const int saved = errno;
  result.kind = PathKind::kForeign;
  // A relative path becomes an absolute one where its result will be: stacks may be small.
  if (path[0] != '/') path = name_from_root(folder, path, result.path) ? result.path : "";
  if (path[0] == '/' && may_be_ours(path)) resolve_absolute(path, result);
  errno = saved;
}

void set_sysfs_path() {
  const char* inherited = secure_getenv("SYSFS_PATH");
  if (inherited != nullptr && inherited[0] != '\0' && !is_uwarp_tree(inherited)) {
    setenv("UWARP_HOST_SYSFS", inherited, 1);
  }
  // Unpredictable, so that no other user can make it first.
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
