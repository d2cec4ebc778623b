// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One object per process, made at first use. It is leaked, because exit handlers may still use it,
// and left behind in a forked child, where its locks may be held for ever.
#pragma once

#include <atomic>
#include <memory>

namespace uwarp {

/// A static variable: constant-initialised, and never destroyed with what it has. Any thread.
template <typename T>
class ProcessOwn {
 public:
  /// Throws std::bad_alloc.
  T& get() {
    T* found = find();
    if (found != nullptr) return *found;
    auto made = std::make_unique<T>();
    if (current_.compare_exchange_strong(found, made.get())) return *made.release();
    return *found;
  }
  /// Null before the first use.
  T* find() const { return current_.load(std::memory_order_acquire); }
  /// Null when there is none, or none any more; the caller destroys it.
  std::unique_ptr<T> take() { return std::unique_ptr<T>(current_.exchange(nullptr)); }
  /// In a forked child: the next use makes another one.
  void leave_to_parent() { current_.store(nullptr, std::memory_order_release); }

 private:
  std::atomic<T*> current_{nullptr};
};

}  // namespace uwarp
