// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Calls that follow or list names: links, real paths, folders.
#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>

#include "preload/listing.h"
#include "preload/paths.h"
#include "preload/real.h"

using namespace uwarp_preload;

namespace {

constinit Real<ssize_t(const char*, char*, size_t)> real_readlink("readlink");
constinit Real<ssize_t(int, const char*, char*, size_t)> real_readlinkat("readlinkat");
constinit Real<char*(const char*, char*)> real_realpath("realpath");
constinit Real<DIR*(const char*)> real_opendir("opendir");
constinit Real<int(const char*)> real_chdir("chdir");
constinit Real<ssize_t(const char*, const char*, void*, size_t)> real_getxattr("getxattr");
constinit Real<ssize_t(const char*, const char*, void*, size_t)> real_lgetxattr("lgetxattr");
using ScandirFilter = int(const dirent*);
using ScandirOrder = int(const dirent**, const dirent**);
constinit Real<int(const char*, dirent***, ScandirFilter*, ScandirOrder*)> real_scandir("scandir");

[[gnu::noinline]] bool readlink_ours(const char* path, char* buffer, size_t size, ssize_t& result) {
  Resolved target;
  resolve(path, target);
  if (target.kind == PathKind::kForeign) return false;
  if (is_node(target.kind)) {
    errno = EINVAL;  // a node is no link
    result = -1;
  } else {
    result = real_readlink(target.path, buffer, size);
  }
  return true;
}

[[gnu::noinline]] bool realpath_ours(const char* path, char* buffer, char*& result) {
  Resolved target;
  resolve(path, target);
  if (target.kind == PathKind::kForeign) return false;
  if (!is_node(target.kind)) {
    result = real_realpath(target.path, buffer);
  } else {
    result = buffer == nullptr ? strdup(path) : strcpy(buffer, path);
  }
  return true;
}

/// The path to pass on for calls that make no sense on a node: /dev/full, which stands in for it,
/// gives the errors that a device gives.
const char* redirected(const char* path, Resolved& target) {
  resolve(path, target);
  if (is_node(target.kind)) return "/dev/full";
  return target.kind == PathKind::kFile ? target.path : path;
}

[[gnu::noinline]] int chdir_ours(const char* path) {
  Resolved target;
  return real_chdir(redirected(path, target));
}

using RealGetxattr = Real<ssize_t(const char*, const char*, void*, size_t)>;
[[gnu::noinline]] ssize_t getxattr_ours(RealGetxattr& function, const char* path, const char* name,
                                        void* value, size_t size) {
  Resolved target;
  return function(redirected(path, target), name, value, size);
}

[[gnu::noinline]] DIR* opendir_ours(const char* path) {
  Resolved target;
  DIR* folder = real_opendir(redirected(path, target));
  if (folder != nullptr && target.kind == PathKind::kFile && is_listing(target.below_root())) {
    sort_listing(folder);
  }
  return folder;
}

[[gnu::noinline]] int scandir_ours(const char* path, dirent*** names, ScandirFilter* filter,
                                   ScandirOrder* order) {
  Resolved target;
  return real_scandir(redirected(path, target), names, filter, order);
}

}  // namespace

// The definitions below repeat libc's prototypes, exception specification included.
extern "C" {

ssize_t readlink(const char* path, char* buffer, size_t size) noexcept {
  ssize_t result;
  if (may_be_ours(path) && readlink_ours(path, buffer, size, result)) return result;
  return real_readlink(path, buffer, size);
}

ssize_t readlinkat(int folder, const char* path, char* buffer, size_t size) noexcept {
  ssize_t result;
  if (may_be_ours(path) && readlink_ours(path, buffer, size, result)) return result;
  return real_readlinkat(folder, path, buffer, size);
}

ssize_t __readlink_chk(const char* path, char* buffer, size_t size, size_t room) {
  if (size > room) abort();
  return readlink(path, buffer, size);
}

char* realpath(const char* path, char* buffer) noexcept {
  char* result;
  if (may_be_ours(path) && realpath_ours(path, buffer, result)) return result;
  return real_realpath(path, buffer);
}

char* __realpath_chk(const char* path, char* buffer, size_t room) {
  if (room < PATH_MAX) abort();
  return realpath(path, buffer);
}

char* canonicalize_file_name(const char* path) noexcept { return realpath(path, nullptr); }

int chdir(const char* path) noexcept {
  return may_be_ours(path) ? chdir_ours(path) : real_chdir(path);
}

// `ls -l` asks for these.
ssize_t getxattr(const char* path, const char* name, void* value, size_t size) noexcept {
  return may_be_ours(path) ? getxattr_ours(real_getxattr, path, name, value, size)
                           : real_getxattr(path, name, value, size);
}

ssize_t lgetxattr(const char* path, const char* name, void* value, size_t size) noexcept {
  return may_be_ours(path) ? getxattr_ours(real_lgetxattr, path, name, value, size)
                           : real_lgetxattr(path, name, value, size);
}

DIR* opendir(const char* path) {
  return may_be_ours(path) ? opendir_ours(path) : real_opendir(path);
}

int scandir(const char* path, dirent*** names, ScandirFilter* filter, ScandirOrder* order) {
  return may_be_ours(path) ? scandir_ours(path, names, filter, order)
                           : real_scandir(path, names, filter, order);
}

int scandir64(const char* path, dirent64*** names, int (*filter)(const dirent64*),
              int (*order)(const dirent64**, const dirent64**)) {
  static_assert(sizeof(dirent) == sizeof(dirent64));
  return scandir(path, reinterpret_cast<dirent***>(names), reinterpret_cast<ScandirFilter*>(filter),
                 reinterpret_cast<ScandirOrder*>(order));
}

}  // extern "C"
