// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "carrier/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace uwarp {
namespace {

// Raw calls where libc has a cancellation point.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

SharedMemory::~SharedMemory() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

int SharedMemory::map() {
  void* const at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (at == MAP_FAILED) return errno;
  base_ = static_cast<std::byte*>(at);
  (void)madvise(at, bytes_, MADV_DONTFORK);  // a child has no connections
  return 0;
}

Result<SharedMemory> SharedMemory::create(size_t bytes) {
  EngineFd fd(memfd_create("uwarp-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return Error{errno};
  SharedMemory memory(std::move(fd), bytes);
  if (ftruncate(memory.fd(), static_cast<off_t>(bytes)) != 0 ||
      syscall(SYS_fcntl, memory.fd(), F_ADD_SEALS, kSeals) != 0)
    return Error{errno};
  if (int error = memory.map()) return Error{error};
  return memory;
}

Result<SharedMemory> SharedMemory::adopt(EngineFd fd, size_t bytes) {
  SharedMemory memory(std::move(fd), bytes);
  struct stat status {};
  if (fstat(memory.fd(), &status) != 0) return Error{errno};
  if (static_cast<size_t>(status.st_size) != bytes ||
      syscall(SYS_fcntl, memory.fd(), F_GET_SEALS) != kSeals)
    return Error{EPERM};
  if (int error = memory.map()) return Error{error};
  return memory;
}

}  // namespace uwarp
