// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Whether a folder that the environment names is this user's alone. Inline and by raw system calls,
// because the preload asks too, before there is an engine.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace uwarp {

/// It exists, belongs to the effective user, and no other user can write to it.
inline bool is_private_folder(const char* path) {
  struct stat status;
  return syscall(SYS_newfstatat, AT_FDCWD, path, &status, 0) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == static_cast<uid_t>(syscall(SYS_geteuid)) &&
         (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

}  // namespace uwarp
