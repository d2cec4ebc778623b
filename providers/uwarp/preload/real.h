// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The functions that we stand in front of: looked up once each with RTLD_NEXT, so that further
// preloaded libraries (librspreload) keep their turn. Constant-initialised, because other
// constructors call us before ours ran.
#pragma once

#include <dlfcn.h>

#include <atomic>

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

  template <typename... Arguments>
  auto operator()(Arguments... arguments) {
    return get()(arguments...);
  }

 private:
  const char* name_;
  std::atomic<void*> address_{nullptr};
};

}  // namespace uwarp_preload
