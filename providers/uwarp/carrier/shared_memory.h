// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Memory that two processes share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/result.h"
#include "os/engine_fds.h"

namespace uwarp {

/// Move-only. Errors are positive errnos.
class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept
      : fd_(std::move(other.fd_)),
        base_(std::exchange(other.base_, nullptr)),
        bytes_(other.bytes_) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SharedMemory();

  /// Fresh memory, zeros. `name` is what /proc shows.
  static Result<SharedMemory> create(size_t bytes, const char* name = "uwarp-rings");
  /// What another process has made. EPERM, and `fd` stays as it is: it is not sealed, or of another
  /// size.
  enum class Use : uint8_t { kReadWrite, kReadOnly };
  static Result<SharedMemory> adopt(ForeignFd& fd, size_t bytes, Use use = Use::kReadWrite);

  std::byte* base() const { return base_; }
  /// -1 once it has been closed.
  int fd() const { return fd_.get(); }
  /// The mapping stays.
  void close_fd() { fd_ = EngineFd(); }

 private:
  SharedMemory(EngineFd fd, size_t bytes) : fd_(std::move(fd)), bytes_(bytes) {}
  int map(Use use);

  EngineFd fd_;
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace uwarp
