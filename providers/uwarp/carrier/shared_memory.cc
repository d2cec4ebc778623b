// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "carrier/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "os/engine_fds.h"

namespace uwarp {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

SharedMemory::~SharedMemory() {
  if (base_ != nullptr) munmap(base_, bytes_);
  close_fd();
}

void SharedMemory::close_fd() {
  if (fd_ >= 0) close_engine_fd(std::exchange(fd_, -1));
}

int SharedMemory::map() {
  void* const at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (at == MAP_FAILED) return errno;
  base_ = static_cast<std::byte*>(at);
  return 0;
}

Result<SharedMemory> SharedMemory::create(size_t bytes) {
  const int fd = adopt_engine_fd(memfd_create("uwarp-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd < 0) return Error{errno};
  SharedMemory memory(fd, bytes);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 || fcntl(fd, F_ADD_SEALS, kSeals) != 0)
    return Error{errno};
  if (int error = memory.map()) return Error{error};
  return memory;
}

Result<SharedMemory> SharedMemory::adopt(int fd, size_t bytes) {
  SharedMemory memory(fd, bytes);
  struct stat status {};
  if (fstat(fd, &status) != 0) return Error{errno};
  if (static_cast<size_t>(status.st_size) != bytes || fcntl(fd, F_GET_SEALS) != kSeals)
    return Error{EPERM};
  if (int error = memory.map()) return Error{error};
  return memory;
}

}  // namespace uwarp
