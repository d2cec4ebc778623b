// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "os/engine_thread.h"

#include <dlfcn.h>
#include <signal.h>

#include <atomic>

namespace uwarp {
namespace {

/// A thread runs code of this library: unloading it is off. Once: the loader's lock may be held by
/// a constructor that waits for what the calling thread serves.
void pin_library() {
  static std::atomic<bool> pinned{false};
  Dl_info place{};
  if (pinned.load() || dladdr(reinterpret_cast<void*>(&pin_library), &place) == 0) return;
  pinned = dlopen(place.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) != nullptr;
}

}  // namespace

Result<pthread_t> start_engine_thread(const char* name, void* (*body)(void*), void* argument,
                                      size_t stack_bytes) {
  pin_library();
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack_bytes);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, body, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (error != 0) return Error{error};
  pthread_setname_np(thread, name);
  return thread;
}

}  // namespace uwarp
