// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One object per process, made at first use. It is leaked, because exit handlers may still use it,
// and left behind in a forked child, where its locks may be held for ever.
#pragma once

#include <atomic>
#include <memory>

#include "base/fork.h"

namespace uwarp {

/// A static variable: constant-initialised, and never destroyed with what it has. Any thread.
template <typename T>
class ProcessOwn {
 public:
  /// The object of this process. Two threads may both make one at first, and one of them is
  /// dropped. Throws std::bad_alloc.
  T& get() {
    Made* found = current_.load(std::memory_order_acquire);
    if (is_ours(found)) [[likely]]
      return found->object;
    auto made = std::make_unique<Made>();
    while (!is_ours(found))
      if (current_.compare_exchange_weak(found, made.get(), std::memory_order_acq_rel))
        return made.release()->object;
    return found->object;
  }
  /// Null before the first use in this process.
  T* find() const {
    Made* const found = current_.load(std::memory_order_acquire);
    return is_ours(found) ? &found->object : nullptr;
  }
  /// In a forked child, before its first use: the parent's object, of which only what needs no lock
  /// may be used. Null if there was none.
  T* of_parent() const {
    Made* const found = current_.load(std::memory_order_acquire);
    return found != nullptr && !found->process.is_this() ? &found->object : nullptr;
  }
  /// Destroys the object of this process, if there is one; the next use makes another.
  void destroy() {
    Made* const found = current_.exchange(nullptr);
    if (is_ours(found)) delete found;
  }

 private:
  struct Made {
    const BirthProcess process{};
    T object;
  };
  static bool is_ours(const Made* found) { return found != nullptr && found->process.is_this(); }

  std::atomic<Made*> current_{nullptr};
};

}  // namespace uwarp
