// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// open(), fopen() and freopen() in all their forms. A path that is not ours goes on untouched; one
// below our tree goes on redirected; a device node is opened by the engine.
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>

#include "preload/engine_link.h"
#include "preload/given_up.h"
#include "preload/paths.h"
#include "preload/real.h"

using namespace uwarp_preload;

namespace {

constinit Real<int(const char*, int, ...)> real_open("open");
constinit Real<int(int, const char*, int, ...)> real_openat("openat");
constinit Real<FILE*(const char*, const char*)> real_fopen("fopen");
constinit Real<FILE*(const char*, const char*, FILE*)> real_freopen("freopen");

// Variadic arguments are passed in one word each where we run, independent of their type.
mode_t mode_argument(int flags, va_list arguments) {
  const bool given = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return given ? va_arg(arguments, mode_t) : 0;
}

/// A node or a counter; -1 with ENOENT when the file is to be opened as it is.
int open_by_engine(const Resolved& target, int flags) {
  const uwarp_host_table* engine = host();
  const UncancelledEngineCall guard;
  if (target.kind == PathKind::kUverbs) return engine->open_uverbs(target.uverbs_number, flags);
  if (target.kind == PathKind::kRdmaCm) return engine->open_rdma_cm(flags);
  return engine->open_counter(target.below_root(), flags);
}

int open_ours(const Resolved& target, int flags, mode_t mode) {
  const int saved = errno;
  const int fd = open_by_engine(target, flags);
  if (fd >= 0 || is_node(target.kind)) return fd;
  errno = saved;
  return real_open(target.path, flags, mode);
}

/// The flags that fopen's mode string stands for, for reading and updating of nodes and counters.
int flags_of(const char* mode) {
  const bool update = strchr(mode, '+') != nullptr;
  int flags = update ? O_RDWR : (mode[0] == 'r' ? O_RDONLY : O_WRONLY);
  if (strchr(mode, 'e') != nullptr) flags |= O_CLOEXEC;
  return flags;
}

FILE* fopen_ours(const Resolved& target, const char* mode) {
  const int saved = errno;
  const int fd = open_by_engine(target, flags_of(mode));
  if (fd >= 0) {
    FILE* file = fdopen(fd, mode);
    if (file == nullptr) close(fd);
    return file;
  }
  if (target.kind != PathKind::kFile) return nullptr;
  errno = saved;
  return real_fopen(target.path, mode);
}

/// The stream is opened on the stand-in of nodes, whose place the fd of ours takes.
FILE* freopen_fd(int fd, const char* mode, FILE* stream) {
  FILE* file = real_freopen(kStandIn, mode, stream);
  if (file != nullptr && dup3(fd, fileno(file), flags_of(mode) & O_CLOEXEC) < 0) {
    const int error = errno;
    fclose(file);
    file = nullptr;
    errno = error;
  }
  close(fd);
  return file;
}

FILE* freopen_ours(const Resolved& target, const char* mode, FILE* stream) {
  const int saved = errno;
  const int fd = open_by_engine(target, flags_of(mode));
  if (fd >= 0) return freopen_fd(fd, mode, stream);
  if (target.kind == PathKind::kFile) {
    errno = saved;
    return real_freopen(target.path, mode, stream);
  }
  const int error = errno;
  fclose(stream);  // as freopen() does when it fails
  errno = error;
  return nullptr;
}

}  // namespace

// The definitions below repeat libc's prototypes, exception specification included.
extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return by_path(
      AT_FDCWD, path, [&](const Resolved& target) { return open_ours(target, flags, mode); },
      [&] { return real_open(path, flags, mode); });
}

// The fortified forms, for calls without a mode.
int __open_2(const char* path, int flags) { return open(path, flags, 0); }

int creat(const char* path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return by_path(
      folder, path, [&](const Resolved& target) { return open_ours(target, flags, mode); },
      [&] { return real_openat(folder, path, flags, mode); });
}

int __openat_2(int folder, const char* path, int flags) { return openat(folder, path, flags, 0); }

FILE* fopen(const char* path, const char* mode) {
  return by_path(
      AT_FDCWD, path, [&](const Resolved& target) { return fopen_ours(target, mode); },
      [&] { return real_fopen(path, mode); });
}

FILE* freopen(const char* path, const char* mode, FILE* stream) {
  give_up(stream);
  return by_path(
      AT_FDCWD, path, [&](const Resolved& target) { return freopen_ours(target, mode, stream); },
      [&] { return real_freopen(path, mode, stream); });
}

// Further names of the same calls, as where we run file offsets have 64 bits in any case.
static_assert(sizeof(off_t) == sizeof(off64_t));
decltype(open) __open __attribute__((alias("open")));
decltype(open) __open64 __attribute__((alias("open")));
decltype(open64) open64 __attribute__((alias("open")));
decltype(__open_2) __open64_2 __attribute__((alias("__open_2")));
decltype(creat64) creat64 __attribute__((alias("creat")));
decltype(openat64) openat64 __attribute__((alias("openat")));
decltype(__openat_2) __openat64_2 __attribute__((alias("__openat_2")));
decltype(fopen64) fopen64 __attribute__((alias("fopen")));
decltype(freopen64) freopen64 __attribute__((alias("freopen")));

}  // extern "C"
