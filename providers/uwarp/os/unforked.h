// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Memory that no forked child has. A signal handler may fork between any two instructions of ours,
// and return there in the child: what lies here is not used a second time by it, nor by a system
// call of its, whatever was looked at before.
#pragma once

#include <sys/mman.h>

#include <type_traits>
#include <utility>

namespace uwarp {

/// One of T, zeros at first. A child that touches it ends with SIGSEGV. Move-only.
template <typename T>
class Unforked {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  Unforked() = default;
  Unforked(Unforked&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
  Unforked& operator=(Unforked&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Unforked() {
    if (value_ != nullptr) munmap(value_, sizeof(T));
  }

  /// Maps it at the first call. Null: no memory.
  T* get() {
    if (value_ == nullptr) [[unlikely]]
      map();
    return value_;
  }

 private:
  void map() {
    void* const at =
        mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return;
    (void)madvise(at, sizeof(T), MADV_DONTFORK);
    value_ = static_cast<T*>(at);
  }

  T* value_ = nullptr;
};

}  // namespace uwarp
