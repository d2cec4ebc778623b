// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "os/sealed_memory.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace uwarp {
namespace {

// <linux/memfd.h> and <linux/fcntl.h> of older systems lack the newer ones.
constexpr unsigned kCloseOnExec = 1, kAllowSealing = 2, kNoExecSeal = 8;
constexpr int kSealOfNoExec = 0x20;

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

EngineFd make_sealed_memory(const char* name, size_t bytes) {
  const unsigned flags = kCloseOnExec | kAllowSealing;
  long made = syscall(SYS_memfd_create, name, flags | kNoExecSeal);
  if (made < 0 && errno == EINVAL) made = syscall(SYS_memfd_create, name, flags);
  EngineFd fd(static_cast<int>(made));
  if (!fd || syscall(SYS_ftruncate, fd.get(), bytes) != 0 ||
      syscall(SYS_fcntl, fd.get(), F_ADD_SEALS, kSizeSeals) != 0)
    return {};
  return fd;
}

bool is_sealed_memory(int fd) {
  const long seals = syscall(SYS_fcntl, fd, F_GET_SEALS);
  return seals >= 0 && (seals & ~long{kSealOfNoExec}) == kSizeSeals;
}

}  // namespace uwarp
