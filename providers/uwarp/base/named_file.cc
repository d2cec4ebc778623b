// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "base/named_file.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace uwarp {

int open_named_file(const char* path, int more_flags, mode_t mode) {
  // Without O_NONBLOCK the open of a FIFO would wait for a reader.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, kFlags | more_flags, mode));
  // ENXIO: a FIFO that no process reads.
  if (fd < 0) return errno == ENXIO ? -EINVAL : -errno;
  struct stat status;
  int error = 0;
  if (syscall(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH) != 0)
    error = errno;
  else if (!S_ISREG(status.st_mode))
    error = EINVAL;
  if (error == 0) return fd;
  syscall(SYS_close, fd);
  return -error;
}

const char* named_file_error(int result) {
  if (result == -EINVAL) return "no regular file";
  return result == -ELOOP ? "a symbolic link" : strerror(-result);
}

}  // namespace uwarp
