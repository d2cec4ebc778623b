// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The functions that we stand in front of: looked up once each with RTLD_NEXT, so that further
// preloaded libraries (librspreload) keep their turn. Constant-initialised, because other
// constructors call us before ours ran.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <type_traits>

namespace uwarp_preload {

template <typename Function>
class Real {
 public:
  constexpr explicit Real(const char* name) : name_(name) {}

  /// Null when no later library has it. After the first call async-signal-safe.
  Function* get() {
    void* address = address_.load(std::memory_order_relaxed);
    if (address == nullptr) {
      address = dlsym(RTLD_NEXT, name_);
      address_.store(address, std::memory_order_relaxed);
    }
    return reinterpret_cast<Function*>(address);
  }

  /// Where no later library has it: fails with ENOSYS, as a call that the kernel does not have.
  template <typename... Arguments>
  auto operator()(Arguments... arguments) {
    Function* function = get();
    using Result = decltype(function(arguments...));
    if (function == nullptr) [[unlikely]] {
      errno = ENOSYS;
      if constexpr (std::is_integral_v<Result>)
        return Result{-1};
      else
        return Result();  // null, or nothing
    }
    return function(arguments...);
  }

 private:
  const char* name_;
  std::atomic<void*> address_{nullptr};
};

}  // namespace uwarp_preload
