// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Addresses that an application may put into a command: memory in which the bytes behind the
// allowed ones are checked, and addresses that a kernel answers with EFAULT.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "fuzz/script.h"

namespace uwarp::fuzz {

/// Three pages: one to read and write, then one that is not accessible, then one to read only.
class GuardedPages {
 public:
  GuardedPages() : size_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    void* pages =
        mmap(nullptr, 3 * size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    UWARP_REQUIRE(pages != MAP_FAILED);
    base_ = static_cast<std::byte*>(pages);
    UWARP_REQUIRE(mprotect(base_ + size_, size_, PROT_NONE) == 0);
    UWARP_REQUIRE(mprotect(base_ + 2 * size_, size_, PROT_READ) == 0);
  }
  /// The last `length` accessible bytes.
  std::byte* last(size_t length) { return base_ + size_ - length; }
  std::byte* hole() { return base_ + size_; }
  std::byte* read_only() { return base_ + 2 * size_; }

 private:
  const size_t size_;
  std::byte* base_;
};

/// Where a command is to write its response.
class ResponseArea {
 public:
  static constexpr size_t kSize = 2048;

  ResponseArea() { refresh(); }
  void refresh() { bytes_.fill(kUntouched); }
  uint64_t address() const { return reinterpret_cast<uint64_t>(bytes_.data()); }
  template <typename T>
  T as() const {
    T value;
    std::memcpy(&value, bytes_.data(), sizeof value);
    return value;
  }
  bool untouched_from(size_t offset) const {
    for (size_t i = offset; i < kSize; ++i) {
      if (bytes_[i] != kUntouched) return false;
    }
    return true;
  }

 private:
  static constexpr std::byte kUntouched{0xA5};
  alignas(8) std::array<std::byte, kSize> bytes_;
};

/// An invalid address, or one that is only partly valid: `last(n)` allows up to n bytes.
inline uint64_t bad_address(Script& script, GuardedPages& pages) {
  switch (script.below(8)) {
    case 0:
      return 0;
    case 1:
      return script.next();
    case 2:
      return reinterpret_cast<uint64_t>(pages.hole());
    case 3:
      return reinterpret_cast<uint64_t>(pages.read_only());
    case 4:
      return 0xffff800000000000;
    case 5:
      return ~uint64_t{0} - script.next();
    case 6:
      return 0x0000800000000000;
    default:
      return reinterpret_cast<uint64_t>(pages.last(script.next()));
  }
}

}  // namespace uwarp::fuzz
