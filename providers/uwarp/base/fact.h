// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Something about the machine or the settings that is found out once and stays true, also for
// forked children. Without a lock, which a thread that finds it out during a fork would hold in the
// child for ever: two threads may both find it out.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace uwarp {

/// A static variable: constant-initialised, never destroyed. Any thread.
template <typename T>
class Fact {
 public:
  /// Calls `find` for a T if it is not known yet. Throws what `find` does, and std::bad_alloc.
  template <typename Find>
  const T& get(const Find& find) {
    if (const T* known = known_.load(std::memory_order_acquire)) return *known;
    std::unique_ptr<const T> found(new T(find()));
    const T* known = nullptr;
    if (!known_.compare_exchange_strong(known, found.get(), std::memory_order_acq_rel))
      return *known;
    return *found.release();
  }

 private:
  std::atomic<const T*> known_{nullptr};
};

/// A number or a bool, for which no memory is needed.
template <typename T>
requires std::is_integral_v<T> &&(sizeof(T) <= sizeof(uint32_t)) class Fact<T> {
 public:
  template <typename Find>
  T get(const Find& find) {
    uint64_t known = known_.load(std::memory_order_relaxed);
    if (known == 0) [[unlikely]] {
      const uint64_t found = kKnown | static_cast<uint32_t>(find());
      if (known_.compare_exchange_strong(known, found, std::memory_order_relaxed)) known = found;
    }
    return static_cast<T>(static_cast<uint32_t>(known));
  }

 private:
  static constexpr uint64_t kKnown = uint64_t{1} << 32;
  std::atomic<uint64_t> known_{0};
};

}  // namespace uwarp
