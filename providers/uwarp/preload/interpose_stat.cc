// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// stat() and access() in all their forms. Device nodes answer like /dev/full, which stands in for
// them.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "preload/engine_link.h"
#include "preload/fd_kinds.h"
#include "preload/paths.h"
#include "preload/real.h"

using namespace uwarp_preload;

namespace {

constinit Real<int(int, struct stat*)> real_fstat("fstat");
constinit Real<int(int, const char*, struct stat*, int)> real_fstatat("fstatat");
constinit Real<int(int, const char*, int, unsigned, struct statx*)> real_statx("statx");
constinit Real<int(const char*, int)> real_access("access");
constinit Real<int(const char*, int)> real_euidaccess("euidaccess");
constinit Real<int(int, const char*, int, int)> real_faccessat("faccessat");

// struct stat and struct stat64 are one layout where we run, and so are their calls.
static_assert(sizeof(struct stat) == sizeof(struct stat64));

// The kernel gives rdma_cm a dynamic minor of the misc class; nothing compares it.
constexpr unsigned kMiscMajor = 10;
constexpr unsigned kRdmaCmMinor = 58;

// Before libc 2.33 these were not functions of libc itself.

int kernel_fstatat(int folder, const char* path, struct stat* out, int flags) {
  return static_cast<int>(syscall(SYS_newfstatat, folder, path, out, flags));
}

int pass_fstat(int fd, struct stat* out) {
  auto* function = real_fstat.get();
  return function ? function(fd, out) : kernel_fstatat(fd, "", out, AT_EMPTY_PATH);
}

int pass_fstatat(int folder, const char* path, struct stat* out, int flags) {
  auto* function = real_fstatat.get();
  return function ? function(folder, path, out, flags) : kernel_fstatat(folder, path, out, flags);
}

void look_like_rdma_cm(struct stat* out) {
  out->st_mode = S_IFCHR | 0666;
  out->st_rdev = makedev(kMiscMajor, kRdmaCmMinor);
}

void look_like_rdma_cm(struct statx* out) {
  out->stx_mode = S_IFCHR | 0666;
  out->stx_rdev_major = kMiscMajor;
  out->stx_rdev_minor = kRdmaCmMinor;
}

/// After a call that succeeded, for which an empty path (newer kernels: none) means the fd.
bool is_channel_itself(int fd, const char* path) {
  asm("" : "+r"(path));  // libc's declarations promise that it is never null
  return (path == nullptr || path[0] == '\0') && kind_of(fd) == UWARP_FD_RDMA_CM;
}

/// What the kernel is asked about in its place.
const char* file_of(const Resolved& target) {
  // Enumeration in libibverbs asks for the node before it matches drivers.
  if (target.kind == PathKind::kUverbs) load_plugin();
  return is_node(target.kind) ? kStandIn : target.path;
}

int stat_at(int folder, const char* path, struct stat* out, int flags) {
  return by_path(
      folder, path,
      [&](const Resolved& target) {
        const int result =
            pass_fstatat(AT_FDCWD, file_of(target), out, is_node(target.kind) ? 0 : flags);
        if (result == 0 && target.kind == PathKind::kRdmaCm) look_like_rdma_cm(out);
        return result;
      },
      [&] {
        const int result = pass_fstatat(folder, path, out, flags);
        if (result == 0 && is_channel_itself(folder, path)) look_like_rdma_cm(out);
        return result;
      });
}

template <typename Pass>
int access_by(int folder, const char* path, int mode, int flags, Pass pass) {
  return by_path(
      folder, path,
      [&](const Resolved& target) {
        return real_faccessat(AT_FDCWD, file_of(target), mode, flags);
      },
      pass);
}

}  // namespace

// The definitions below repeat libc's prototypes, exception specification included.
extern "C" {

int stat(const char* path, struct stat* out) noexcept { return stat_at(AT_FDCWD, path, out, 0); }

int lstat(const char* path, struct stat* out) noexcept {
  return stat_at(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}

int fstat(int fd, struct stat* out) noexcept {
  const int result = pass_fstat(fd, out);
  if (result == 0 && kind_of(fd) == UWARP_FD_RDMA_CM) look_like_rdma_cm(out);
  return result;
}

int fstatat(int folder, const char* path, struct stat* out, int flags) noexcept {
  return stat_at(folder, path, out, flags);
}

// What programs built before libc 2.33 call; the version argument has one legal value.
int __xstat(int, const char* path, struct stat* out) { return stat(path, out); }
int __lxstat(int, const char* path, struct stat* out) { return lstat(path, out); }
int __fxstat(int, int fd, struct stat* out) { return fstat(fd, out); }
int __fxstatat(int, int folder, const char* path, struct stat* out, int flags) {
  return fstatat(folder, path, out, flags);
}
int statx(int folder, const char* path, int flags, unsigned mask, struct statx* out) noexcept {
  return by_path(
      folder, path,
      [&](const Resolved& target) {
        const int result = real_statx(AT_FDCWD, file_of(target), flags, mask, out);
        if (result == 0 && target.kind == PathKind::kRdmaCm) look_like_rdma_cm(out);
        return result;
      },
      [&] {
        const int result = real_statx(folder, path, flags, mask, out);
        if (result == 0 && is_channel_itself(folder, path)) look_like_rdma_cm(out);
        return result;
      });
}

int access(const char* path, int mode) noexcept {
  return access_by(AT_FDCWD, path, mode, 0, [&] { return real_access(path, mode); });
}

int euidaccess(const char* path, int mode) noexcept {
  return access_by(AT_FDCWD, path, mode, AT_EACCESS, [&] { return real_euidaccess(path, mode); });
}

int faccessat(int folder, const char* path, int mode, int flags) noexcept {
  return access_by(folder, path, mode, flags,
                   [&] { return real_faccessat(folder, path, mode, flags); });
}

// Further names of the same calls.
decltype(stat64) stat64 __attribute__((alias("stat")));
decltype(lstat64) lstat64 __attribute__((alias("lstat")));
decltype(fstat64) fstat64 __attribute__((alias("fstat")));
decltype(fstatat64) fstatat64 __attribute__((alias("fstatat")));
decltype(__xstat) __xstat64 __attribute__((alias("__xstat")));
decltype(__lxstat) __lxstat64 __attribute__((alias("__lxstat")));
decltype(__fxstat) __fxstat64 __attribute__((alias("__fxstat")));
decltype(__fxstatat) __fxstatat64 __attribute__((alias("__fxstatat")));
decltype(eaccess) eaccess __attribute__((alias("euidaccess")));

}  // extern "C"
