// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "faults/denied_calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

std::atomic<bool> no_threads{false};
std::atomic<bool> no_eventfds{false};
thread_local bool nothing_denied = false;

namespace {

std::atomic<unsigned> denied{0};

bool deny(const std::atomic<bool>& kind) {
  if (!kind.load() || nothing_denied) return false;
  ++denied;
  return true;
}

}  // namespace

unsigned denied_calls() { return denied.load(); }

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (deny(no_threads)) return EAGAIN;
  return real(thread, attributes, start, argument);
}

extern "C" int eventfd(unsigned value, int flags) noexcept {
  if (!deny(no_eventfds)) return static_cast<int>(syscall(SYS_eventfd2, value, flags));
  errno = EMFILE;
  return -1;
}
