// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// process_vm_readv/writev on ourselves: the kernel copies and tells about bad addresses. That costs
// as much as a message, so what lies on the caller's own stack, as all commands of librdmacm do, is
// copied as it is.
#include "events/user_memory.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace uwarp {

namespace {

struct Stack {
  uintptr_t lowest = 0;
  uintptr_t end = 0;
};

/// The calling thread's stack, empty if it is not known.
Stack find_stack() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return {};
  void* lowest = nullptr;
  size_t size = 0;
  const int error = pthread_attr_getstack(&attributes, &lowest, &size);
  pthread_attr_destroy(&attributes);
  if (error != 0) return {};
  return {reinterpret_cast<uintptr_t>(lowest), reinterpret_cast<uintptr_t>(lowest) + size};
}

/// A stack is mapped from the present frame to its end. False for a thread that runs on another
/// stack than the one it was born with: the kernel is asked then.
bool on_own_stack(uintptr_t address, size_t length) {
  thread_local const Stack stack = find_stack();
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  return here >= stack.lowest && address >= here && address < stack.end &&
         length <= stack.end - address;
}

/// True: done or failed as `result` says. False: sandboxes may forbid the call altogether.
bool copied(long number, void* local, void* remote, size_t length, int& result) {
  const iovec here{local, length};
  const iovec there{remote, length};
  const long done = syscall(number, syscall(SYS_getpid), &here, 1ul, &there, 1ul, 0ul);
  if (done < 0 && errno != EFAULT) return false;
  result = done == static_cast<long>(length) ? 0 : EFAULT;
  return true;
}

}  // namespace

int copy_from_user(void* to, const void* from, size_t length) {
  if (length == 0) return 0;
  if (from == nullptr) return EFAULT;
  int result;
  const bool safe = on_own_stack(reinterpret_cast<uintptr_t>(from), length);
  if (!safe && copied(SYS_process_vm_readv, to, const_cast<void*>(from), length, result))
    return result;
  std::memcpy(to, from, length);
  return 0;
}

int copy_to_user(uint64_t to, const void* from, size_t length) {
  if (length == 0) return 0;
  if (to == 0) return EFAULT;
  int result;
  void* address = reinterpret_cast<void*>(to);
  const bool safe = on_own_stack(to, length);
  if (!safe && copied(SYS_process_vm_writev, const_cast<void*>(from), address, length, result)) {
    return result;
  }
  std::memcpy(address, from, length);
  return 0;
}

}  // namespace uwarp
