// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "carrier/shared_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "os/sealed_memory.h"

namespace uwarp {

SharedMemory::~SharedMemory() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

int SharedMemory::map(Use use) {
  const int writes = use == Use::kReadWrite ? PROT_WRITE : 0;
  void* const at = mmap(nullptr, bytes_, PROT_READ | writes, MAP_SHARED, fd_.get(), 0);
  if (at == MAP_FAILED) return errno;
  base_ = static_cast<std::byte*>(at);
  (void)madvise(at, bytes_, MADV_DONTFORK);  // a child has no connections
  return 0;
}

Result<SharedMemory> SharedMemory::create(size_t bytes, const char* name) {
  EngineFd fd = make_sealed_memory(name, bytes);
  if (!fd) return Error{errno};
  SharedMemory memory(std::move(fd), bytes);
  if (int error = memory.map(Use::kReadWrite)) return Error{error};
  return memory;
}

// The seals first: no call on such memory waits.
Result<SharedMemory> SharedMemory::adopt(ForeignFd& fd, size_t bytes, Use use) {
  struct stat status {};
  if (!is_sealed_memory(fd.get()) || fstat(fd.get(), &status) != 0 ||
      static_cast<size_t>(status.st_size) != bytes)
    return Error{EPERM};
  SharedMemory memory(fd.adopt(), bytes);
  if (int error = memory.map(use)) return Error{error};
  return memory;
}

}  // namespace uwarp
