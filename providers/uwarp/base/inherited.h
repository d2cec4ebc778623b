// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A value with which a forked child goes on. It is replaced whole, so that a fork at any moment
// finds one that is complete.
#pragma once

#include <atomic>
#include <utility>

namespace uwarp {

/// A static variable; constant-initialised. The caller's lock lets one thread at a time in.
template <typename T>
class Inherited {
 public:
  /// T() before the first replace(). Throws std::bad_alloc.
  T copy() const {
    const T* const current = current_.load(std::memory_order_acquire);
    return current != nullptr ? *current : T();
  }
  /// Throws std::bad_alloc; the value is then what it was.
  void replace(T value) {
    delete current_.exchange(new T(std::move(value)), std::memory_order_acq_rel);
  }

 private:
  std::atomic<const T*> current_{nullptr};
};

}  // namespace uwarp
