// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a thread keeps for itself as long as there is any code to run on it.
#pragma once

#include <memory>

#include "base/fork.h"

namespace uwarp {

namespace thread_own_detail {
/// One of T that is not destroyed with its surroundings.
template <typename T>
union Place {
  constexpr Place() : value() {}
  // NOLINTNEXTLINE(modernize-use-equals-default): by Emptying instead, and not the object itself
  ~Place() {}
  T value;
};
}  // namespace thread_own_detail

/// The calling thread's own T, one for each thread and type. It is made empty (T()) with the
/// thread's other thread-local objects, but may be used after that: their destructors, and in the
/// main thread those of static objects and the exit handlers, belong to the application and may
/// call verbs. What is put into it then is never destroyed. In a forked child the thread begins
/// with an empty one, and the parent's is left as it was: fork() may have interrupted its use.
template <typename T>
T& thread_own() {
  static constinit thread_local thread_own_detail::Place<T> place;
  static constinit thread_local uint32_t generation = 0;
  struct Emptying {
    ~Emptying() {
      if (generation == fork_generation()) place.value = T();
    }
  };
  static thread_local const Emptying emptying;
  if (generation != fork_generation()) [[unlikely]] {
    generation = fork_generation();
    std::construct_at(&place.value);
  }
  return place.value;
}

}  // namespace uwarp
