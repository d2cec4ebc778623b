// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Calls that follow or list names: links, real paths, folders; and those that ask for what a file
// system knows of a name.
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <type_traits>

#include "preload/listing.h"
#include "preload/paths.h"
#include "preload/real.h"

using namespace uwarp_preload;

namespace {

constinit Real<ssize_t(const char*, char*, size_t)> real_readlink("readlink");
constinit Real<ssize_t(int, const char*, char*, size_t)> real_readlinkat("readlinkat");
constinit Real<char*(const char*, char*)> real_realpath("realpath");
constinit Real<DIR*(const char*)> real_opendir("opendir");
constinit Real<DIR*(int)> real_fdopendir("fdopendir");
constinit Real<int(const char*)> real_chdir("chdir");
constinit Real<ssize_t(const char*, const char*, void*, size_t)> real_getxattr("getxattr");
constinit Real<ssize_t(const char*, const char*, void*, size_t)> real_lgetxattr("lgetxattr");
constinit Real<ssize_t(const char*, char*, size_t)> real_listxattr("listxattr");
constinit Real<ssize_t(const char*, char*, size_t)> real_llistxattr("llistxattr");
constinit Real<int(const char*, struct statfs*)> real_statfs("statfs");
constinit Real<int(const char*, struct statvfs*)> real_statvfs("statvfs");
constinit Real<long(const char*, int)> real_pathconf("pathconf");
constinit Real<int(int, const char*, uint32_t)> real_inotify_add_watch("inotify_add_watch");
using ScandirFilter = int(const dirent*);
using ScandirOrder = int(const dirent**, const dirent**);
constinit Real<int(const char*, dirent***, ScandirFilter*, ScandirOrder*)> real_scandir("scandir");
constinit Real<int(int, const char*, dirent***, ScandirFilter*, ScandirOrder*)> real_scandirat(
    "scandirat");

ssize_t readlink_ours(const Resolved& target, char* buffer, size_t size) {
  if (!is_node(target.kind)) return real_readlink(target.path, buffer, size);
  errno = EINVAL;  // a node is no link
  return -1;
}

/// class/infiniband/NAME/device, or class/infiniband_verbs/NAME/device.
bool is_place_on_bus(const char* below_root) {
  constexpr char kName[] = "/device";
  size_t length = strlen(below_root);
  while (length != 0 && below_root[length - 1] == '/') --length;
  constexpr size_t kLength = sizeof kName - 1;
  return length > kLength && strncmp(below_root, "class/", 6) == 0 &&
         strncmp(below_root + length - kLength, kName, kLength) == 0;
}

char* realpath_ours(const Resolved& target, const char* path, char* buffer) {
  if (!is_node(target.kind)) {
    // NCCL, hwloc and UCX take what it resolves to for the adapter's place on the PCI bus. There is
    // none, as with rxe and siw.
    if (is_place_on_bus(target.below_root())) return errno = ENOENT, nullptr;
    return real_realpath(target.path, buffer);
  }
  const char* name = strrchr(path, '/');
  char whole[64];
  snprintf(whole, sizeof whole, "/dev/infiniband/%s", name == nullptr ? path : name + 1);
  return buffer == nullptr ? strdup(whole) : strcpy(buffer, whole);
}

/// The path to pass on for calls that make no sense on a node: what stands in for it gives the
/// errors that a device gives.
const char* redirected(const char* path, Resolved& target, int folder = AT_FDCWD) {
  resolve(folder, path, target);
  if (is_node(target.kind)) return kStandIn;
  return target.kind == PathKind::kFile ? target.path : path;
}

template <typename Result, typename... Rest>
[[gnu::noinline]] Result pass_ours(Real<Result(const char*, Rest...)>& function, const char* path,
                                   Rest... rest) {
  Resolved target;
  return function(redirected(path, target), rest...);
}

/// A call whose first argument is the path.
template <typename Result, typename... Rest>
Result pass(Real<Result(const char*, Rest...)>& function, const char* path,
            std::type_identity_t<Rest>... rest) {
  return may_be_ours(path) ? pass_ours<Result, Rest...>(function, path, rest...)
                           : function(path, rest...);
}

[[gnu::noinline]] int inotify_add_watch_ours(int fd, const char* path, uint32_t mask) {
  Resolved target;
  return real_inotify_add_watch(fd, redirected(path, target), mask);
}

[[gnu::noinline]] DIR* opendir_ours(const char* path) {
  Resolved target;
  DIR* folder = real_opendir(redirected(path, target));
  if (folder != nullptr && target.kind == PathKind::kFile && is_listing(target.below_root())) {
    sort_listing(folder);
  }
  return folder;
}

[[gnu::noinline]] int scandir_ours(int folder, const char* path, dirent*** names,
                                   ScandirFilter* filter, ScandirOrder* order) {
  Resolved target;
  const char* passed = redirected(path, target, folder);
  return folder == AT_FDCWD ? real_scandir(passed, names, filter, order)
                            : real_scandirat(folder, passed, names, filter, order);
}

}  // namespace

// The definitions below repeat libc's prototypes, exception specification included.
extern "C" {

ssize_t readlink(const char* path, char* buffer, size_t size) noexcept {
  return by_path(
      AT_FDCWD, path, [&](const Resolved& target) { return readlink_ours(target, buffer, size); },
      [&] { return real_readlink(path, buffer, size); });
}

ssize_t readlinkat(int folder, const char* path, char* buffer, size_t size) noexcept {
  return by_path(
      folder, path, [&](const Resolved& target) { return readlink_ours(target, buffer, size); },
      [&] { return real_readlinkat(folder, path, buffer, size); });
}

ssize_t __readlinkat_chk(int folder, const char* path, char* buffer, size_t size,
                         size_t buffer_size) {
  if (size > buffer_size) abort();
  return readlinkat(folder, path, buffer, size);
}

ssize_t __readlink_chk(const char* path, char* buffer, size_t size, size_t buffer_size) {
  if (size > buffer_size) abort();
  return readlink(path, buffer, size);
}

char* realpath(const char* path, char* buffer) noexcept {
  return by_path(
      AT_FDCWD, path, [&](const Resolved& target) { return realpath_ours(target, path, buffer); },
      [&] { return real_realpath(path, buffer); });
}

char* __realpath_chk(const char* path, char* buffer, size_t buffer_size) {
  if (buffer_size < PATH_MAX) abort();
  return realpath(path, buffer);
}

char* canonicalize_file_name(const char* path) noexcept { return realpath(path, nullptr); }

int chdir(const char* path) noexcept { return pass(real_chdir, path); }

// `ls -l` asks for these.
ssize_t getxattr(const char* path, const char* name, void* value, size_t size) noexcept {
  return pass(real_getxattr, path, name, value, size);
}

ssize_t lgetxattr(const char* path, const char* name, void* value, size_t size) noexcept {
  return pass(real_lgetxattr, path, name, value, size);
}

ssize_t listxattr(const char* path, char* names, size_t size) noexcept {
  return pass(real_listxattr, path, names, size);
}

ssize_t llistxattr(const char* path, char* names, size_t size) noexcept {
  return pass(real_llistxattr, path, names, size);
}

int statfs(const char* path, struct statfs* out) noexcept { return pass(real_statfs, path, out); }
int statvfs(const char* path, struct statvfs* out) noexcept {
  return pass(real_statvfs, path, out);
}
long pathconf(const char* path, int name) noexcept { return pass(real_pathconf, path, name); }

int inotify_add_watch(int fd, const char* path, uint32_t mask) noexcept {
  return may_be_ours(path) ? inotify_add_watch_ours(fd, path, mask)
                           : real_inotify_add_watch(fd, path, mask);
}

DIR* opendir(const char* path) {
  return may_be_ours(path) ? opendir_ours(path) : real_opendir(path);
}

DIR* fdopendir(int fd) {
  DIR* folder = real_fdopendir(fd);
  if (folder != nullptr && is_open_listing(fd)) sort_listing(folder);
  return folder;
}

int scandir(const char* path, dirent*** names, ScandirFilter* filter, ScandirOrder* order) {
  return may_be_ours(path) ? scandir_ours(AT_FDCWD, path, names, filter, order)
                           : real_scandir(path, names, filter, order);
}

int scandirat(int folder, const char* path, dirent*** names, ScandirFilter* filter,
              ScandirOrder* order) {
  return may_be_ours(path) ? scandir_ours(folder, path, names, filter, order)
                           : real_scandirat(folder, path, names, filter, order);
}

// Further names of the same calls: the structs are the same ones where we run.
static_assert(sizeof(struct statfs) == sizeof(struct statfs64) &&
              sizeof(struct statvfs) == sizeof(struct statvfs64) &&
              sizeof(dirent) == sizeof(dirent64));
decltype(statfs64) statfs64 __attribute__((alias("statfs")));
decltype(statvfs64) statvfs64 __attribute__((alias("statvfs")));
decltype(scandir64) scandir64 __attribute__((alias("scandir")));
decltype(scandirat64) scandirat64 __attribute__((alias("scandirat")));

}  // extern "C"
