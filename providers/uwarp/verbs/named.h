// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How a verb gets from the public struct of an object to the object. An application names an object
// to the kernel by the handle in that struct, and the kernel looks for it in the context that the
// struct names. Here the struct leads to the object itself, which compares both with its own.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "base/c_boundary.h"

namespace uwarp {

/// How libibverbs asks the kernel for what a verb does. A method of its ioctl() knows no object of
/// a wrong handle; to a command of its write() the handle is a wrong argument.
enum class AskedBy : int { kMethod = ENOENT, kWrite = EINVAL };

/// A base of `Object`, which also is a `Layout`, a struct that begins with the `Public` one.
template <typename Object, typename Layout, typename Public = Layout>
class Named {
 public:
  /// For every verb that asks the kernel. Throws ThrownErrno: the context has no object of that
  /// handle.
  static Object& of(Public* named, AskedBy asked = AskedBy::kMethod) {
    Object& object = unchecked(named);
    const Named& own = object;
    if (named->context != own.own_context_.load(std::memory_order_relaxed) ||
        handle_in(object) != own.own_handle_)
      throw ThrownErrno(static_cast<int>(asked));
    return object;
  }
  /// For the data path, which asks no kernel, and for objects that others keep.
  static Object& unchecked(Public* named) {
    return *static_cast<Object*>(reinterpret_cast<Layout*>(named));
  }

  /// Once, before the application sees the object.
  void give_handle(ibv_context* context, uint32_t handle) {
    Layout& layout = static_cast<Object&>(*this);
    reinterpret_cast<Public&>(layout).context = context;
    own_context_.store(context, std::memory_order_relaxed);
    handle_in(layout) = own_handle_ = handle;
  }
  /// By the verb that destroys the object: from now on no other verb that asks the kernel knows it,
  /// whichever threads call them.
  void take_handle_back() { own_context_.store(nullptr, std::memory_order_relaxed); }

 private:
  static uint32_t& handle_in(Layout& layout) {
    if constexpr (requires { layout.handle; })
      return layout.handle;
    else
      return layout.base.handle;
  }

  std::atomic<ibv_context*> own_context_{nullptr};
  uint32_t own_handle_ = 0;
};

}  // namespace uwarp
