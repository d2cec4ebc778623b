// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The interposed calls that take a path. A path that is not ours goes on untouched; one below our
// tree goes on redirected; a device node is answered by the engine.
#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>

#include "preload/engine_link.h"
#include "preload/fd_kinds.h"
#include "preload/listing.h"
#include "preload/paths.h"
#include "preload/real.h"

using namespace uwarp_preload;

namespace {

constinit Real<int(const char*, int, ...)> real_open("open");
constinit Real<int(const char*, int, ...)> real_open64("open64");
constinit Real<int(int, const char*, int, ...)> real_openat("openat");
constinit Real<int(int, const char*, int, ...)> real_openat64("openat64");
constinit Real<int(const char*, struct stat*)> real_stat("stat");
constinit Real<int(const char*, struct stat*)> real_lstat("lstat");
constinit Real<int(int, struct stat*)> real_fstat("fstat");
constinit Real<int(int, const char*, struct stat*, int)> real_fstatat("fstatat");
constinit Real<int(int, const char*, int, unsigned, struct statx*)> real_statx("statx");
constinit Real<int(const char*, int)> real_access("access");
constinit Real<int(const char*, int)> real_euidaccess("euidaccess");
constinit Real<int(int, const char*, int, int)> real_faccessat("faccessat");
constinit Real<ssize_t(const char*, char*, size_t)> real_readlink("readlink");
constinit Real<ssize_t(int, const char*, char*, size_t)> real_readlinkat("readlinkat");
constinit Real<char*(const char*, char*)> real_realpath("realpath");
constinit Real<FILE*(const char*, const char*)> real_fopen("fopen");
constinit Real<FILE*(const char*, const char*)> real_fopen64("fopen64");
constinit Real<DIR*(const char*)> real_opendir("opendir");
using ScandirFilter = int(const dirent*);
using ScandirOrder = int(const dirent**, const dirent**);
constinit Real<int(const char*, dirent***, ScandirFilter*, ScandirOrder*)> real_scandir("scandir");

// struct stat and struct stat64 are one layout where we run, and so are their calls.
static_assert(sizeof(struct stat) == sizeof(struct stat64));

constexpr char kStandIn[] = "/dev/full";
// The kernel gives rdma_cm a dynamic minor of the misc class; nothing compares it.
constexpr unsigned kMiscMajor = 10;
constexpr unsigned kRdmaCmMinor = 58;

bool needs_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

// One word, whatever its type: how variadic arguments are passed where we run.
mode_t mode_argument(int flags, va_list arguments) {
  return needs_mode(flags) ? va_arg(arguments, mode_t) : 0;
}

// ---- stat, before libc 2.33 not a function of libc itself --------------------------------------

int kernel_fstatat(int folder, const char* path, struct stat* out, int flags) {
  return static_cast<int>(syscall(SYS_newfstatat, folder, path, out, flags));
}

int pass_stat(const char* path, struct stat* out) {
  auto* function = real_stat.get();
  return function ? function(path, out) : kernel_fstatat(AT_FDCWD, path, out, 0);
}

int pass_lstat(const char* path, struct stat* out) {
  auto* function = real_lstat.get();
  return function ? function(path, out) : kernel_fstatat(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}

int pass_fstat(int fd, struct stat* out) {
  auto* function = real_fstat.get();
  return function ? function(fd, out) : kernel_fstatat(fd, "", out, AT_EMPTY_PATH);
}

int pass_fstatat(int folder, const char* path, struct stat* out, int flags) {
  auto* function = real_fstatat.get();
  return function ? function(folder, path, out, flags) : kernel_fstatat(folder, path, out, flags);
}

bool is_node(PathKind kind) { return kind == PathKind::kUverbs || kind == PathKind::kRdmaCm; }

void look_like_rdma_cm(struct stat* out) {
  out->st_mode = S_IFCHR | 0666;
  out->st_rdev = makedev(kMiscMajor, kRdmaCmMinor);
}

int stat_node(PathKind kind, struct stat* out) {
  // Enumeration in libibverbs asks for the node before it matches drivers.
  if (kind == PathKind::kUverbs) load_plugin();
  const int result = pass_stat(kStandIn, out);
  if (result == 0 && kind == PathKind::kRdmaCm) look_like_rdma_cm(out);
  return result;
}

int open_node(const Resolved& target, int flags) {
  const uwarp_host_table* engine = host();
  const UncancelledEngineCall guard;
  return target.kind == PathKind::kUverbs ? engine->open_uverbs(target.uverbs_number, flags)
                                          : engine->open_rdma_cm(flags);
}

/// -1 with ENOENT when the file is no counter.
int open_counter(const Resolved& target, int flags) {
  const uwarp_host_table* engine = host();
  const UncancelledEngineCall guard;
  return engine->open_counter(target.below_root(), flags);
}

/// open() of a path that may be ours. False: it is not.
[[gnu::noinline]] bool open_ours(const char* path, int flags, mode_t mode, int& fd) {
  Resolved target;
  resolve(path, target);
  if (target.kind == PathKind::kForeign) return false;
  if (is_node(target.kind)) {
    fd = open_node(target, flags);
    return true;
  }
  const int saved = errno;
  fd = open_counter(target, flags);
  if (fd < 0) {
    errno = saved;
    fd = real_open(target.path, flags, mode);
  }
  return true;
}

[[gnu::noinline]] bool stat_ours(const char* path, struct stat* out, bool follow, int& result) {
  Resolved target;
  resolve(path, target);
  if (target.kind == PathKind::kForeign) return false;
  if (is_node(target.kind)) {
    result = stat_node(target.kind, out);
  } else {
    result = follow ? pass_stat(target.path, out) : pass_lstat(target.path, out);
  }
  return true;
}

[[gnu::noinline]] bool access_ours(const char* path, int mode, int flags, int& result) {
  Resolved target;
  resolve(path, target);
  if (target.kind == PathKind::kForeign) return false;
  if (target.kind == PathKind::kUverbs) load_plugin();
  const char* file = is_node(target.kind) ? kStandIn : target.path;
  result = real_faccessat(AT_FDCWD, file, mode, flags);
  return true;
}

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

/// The flags that fopen's mode string stands for, for reading and updating of nodes and counters.
int flags_of(const char* mode) {
  const bool update = strchr(mode, '+') != nullptr;
  int flags = update ? O_RDWR : (mode[0] == 'r' ? O_RDONLY : O_WRONLY);
  if (strchr(mode, 'e') != nullptr) flags |= O_CLOEXEC;
  return flags;
}

[[gnu::noinline]] bool fopen_ours(const char* path, const char* mode, FILE*& file) {
  Resolved target;
  resolve(path, target);
  if (target.kind == PathKind::kForeign) return false;
  const int saved = errno;
  const int fd = is_node(target.kind) ? open_node(target, flags_of(mode))
                                      : open_counter(target, flags_of(mode));
  if (fd >= 0) {
    file = fdopen(fd, mode);
    if (file == nullptr) close(fd);
  } else if (target.kind == PathKind::kFile) {
    errno = saved;
    file = real_fopen(target.path, mode);
  } else {
    file = nullptr;
  }
  return true;
}

/// The path to pass on for calls that make no sense on a node.
const char* redirected(const char* path, Resolved& target) {
  resolve(path, target);
  return target.kind == PathKind::kFile ? target.path : path;
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

[[gnu::noinline]] bool statx_ours(const char* path, int flags, unsigned mask, struct statx* out,
                                  int& result) {
  Resolved target;
  resolve(path, target);
  if (target.kind == PathKind::kForeign) return false;
  if (target.kind == PathKind::kUverbs) load_plugin();
  const char* file = is_node(target.kind) ? kStandIn : target.path;
  result = real_statx(AT_FDCWD, file, flags, mask, out);
  if (result == 0 && target.kind == PathKind::kRdmaCm) {
    out->stx_rdev_major = kMiscMajor;
    out->stx_rdev_minor = kRdmaCmMinor;
  }
  return true;
}

}  // namespace

// The definitions below repeat libc's prototypes, exception specification included.
extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  int fd;
  if (may_be_ours(path) && open_ours(path, flags, mode, fd)) return fd;
  return real_open(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  int fd;
  if (may_be_ours(path) && open_ours(path, flags, mode, fd)) return fd;
  return real_open64(path, flags, mode);
}

int __open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return open(path, flags, mode);
}

int __open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return open64(path, flags, mode);
}

// The fortified forms, for calls without a mode.
int __open_2(const char* path, int flags) { return open(path, flags, 0); }
int __open64_2(const char* path, int flags) { return open64(path, flags, 0); }

int creat(const char* path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char* path, mode_t mode) {
  return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  int fd;
  if (may_be_ours(path) && open_ours(path, flags, mode, fd)) return fd;
  return real_openat(folder, path, flags, mode);
}

int openat64(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  int fd;
  if (may_be_ours(path) && open_ours(path, flags, mode, fd)) return fd;
  return real_openat64(folder, path, flags, mode);
}

int __openat_2(int folder, const char* path, int flags) { return openat(folder, path, flags, 0); }
int __openat64_2(int folder, const char* path, int flags) {
  return openat64(folder, path, flags, 0);
}

int stat(const char* path, struct stat* out) noexcept {
  int result;
  if (may_be_ours(path) && stat_ours(path, out, true, result)) return result;
  return pass_stat(path, out);
}

int lstat(const char* path, struct stat* out) noexcept {
  int result;
  if (may_be_ours(path) && stat_ours(path, out, false, result)) return result;
  return pass_lstat(path, out);
}

int fstat(int fd, struct stat* out) noexcept {
  const int result = pass_fstat(fd, out);
  if (result == 0 && kind_of(fd) == UWARP_FD_RDMA_CM) look_like_rdma_cm(out);
  return result;
}

int fstatat(int folder, const char* path, struct stat* out, int flags) noexcept {
  int result;
  const bool follow = (flags & AT_SYMLINK_NOFOLLOW) == 0;
  if (may_be_ours(path) && stat_ours(path, out, follow, result)) return result;
  result = pass_fstatat(folder, path, out, flags);
  if (result == 0 && (flags & AT_EMPTY_PATH) && path[0] == '\0' &&
      kind_of(folder) == UWARP_FD_RDMA_CM) {
    look_like_rdma_cm(out);
  }
  return result;
}

int stat64(const char* path, struct stat64* out) noexcept {
  return stat(path, reinterpret_cast<struct stat*>(out));
}
int lstat64(const char* path, struct stat64* out) noexcept {
  return lstat(path, reinterpret_cast<struct stat*>(out));
}
int fstat64(int fd, struct stat64* out) noexcept {
  return fstat(fd, reinterpret_cast<struct stat*>(out));
}
int fstatat64(int folder, const char* path, struct stat64* out, int flags) noexcept {
  return fstatat(folder, path, reinterpret_cast<struct stat*>(out), flags);
}

// What programs built before libc 2.33 call; the version argument has one legal value.
int __xstat(int, const char* path, struct stat* out) { return stat(path, out); }
int __xstat64(int, const char* path, struct stat64* out) { return stat64(path, out); }
int __lxstat(int, const char* path, struct stat* out) { return lstat(path, out); }
int __lxstat64(int, const char* path, struct stat64* out) { return lstat64(path, out); }
int __fxstat(int, int fd, struct stat* out) { return fstat(fd, out); }
int __fxstat64(int, int fd, struct stat64* out) { return fstat64(fd, out); }
int __fxstatat(int, int folder, const char* path, struct stat* out, int flags) {
  return fstatat(folder, path, out, flags);
}
int __fxstatat64(int, int folder, const char* path, struct stat64* out, int flags) {
  return fstatat64(folder, path, out, flags);
}

int statx(int folder, const char* path, int flags, unsigned mask, struct statx* out) noexcept {
  int result;
  if (may_be_ours(path) && statx_ours(path, flags, mask, out, result)) return result;
  return real_statx(folder, path, flags, mask, out);
}

int access(const char* path, int mode) noexcept {
  int result;
  if (may_be_ours(path) && access_ours(path, mode, 0, result)) return result;
  return real_access(path, mode);
}

int euidaccess(const char* path, int mode) noexcept {
  int result;
  if (may_be_ours(path) && access_ours(path, mode, AT_EACCESS, result)) return result;
  return real_euidaccess(path, mode);
}

int eaccess(const char* path, int mode) noexcept { return euidaccess(path, mode); }

int faccessat(int folder, const char* path, int mode, int flags) noexcept {
  int result;
  if (may_be_ours(path) && access_ours(path, mode, flags, result)) return result;
  return real_faccessat(folder, path, mode, flags);
}

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

FILE* fopen(const char* path, const char* mode) {
  FILE* file;
  if (may_be_ours(path) && fopen_ours(path, mode, file)) return file;
  return real_fopen(path, mode);
}

FILE* fopen64(const char* path, const char* mode) {
  FILE* file;
  if (may_be_ours(path) && fopen_ours(path, mode, file)) return file;
  return real_fopen64(path, mode);
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
