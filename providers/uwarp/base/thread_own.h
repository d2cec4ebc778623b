// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a thread keeps for itself as long as there is any code to run on it.
#pragma once

namespace uwarp {

/// The calling thread's own T, one for each thread and type. It is made empty (T()) with the
/// thread's other thread-local objects, but may be used after that: their destructors, and in the
/// main thread those of static objects and the exit handlers, belong to the application and may
/// call verbs. What is put into it then is never destroyed.
template <typename T>
T& thread_own() {
  union Place {
    constexpr Place() : value() {}
    // NOLINTNEXTLINE(modernize-use-equals-default): by Emptying instead, and not the object itself
    ~Place() {}
    T value;
  };
  static constinit thread_local Place place;
  struct Emptying {
    ~Emptying() { place.value = T(); }
  };
  static thread_local const Emptying emptying;
  return place.value;
}

}  // namespace uwarp
