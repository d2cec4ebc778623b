// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The fd table and its owner.
#include "preload/fd_kinds.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace uwarp_preload {

// A page of zeros is only mapped once something on it is marked.
constinit std::atomic<uint8_t> fd_kinds[kFdTableSize] = {};

namespace {
constinit std::atomic<int> highest{-1};
constinit std::atomic<long> owner{0};
}  // namespace

void set_kind(int fd, uwarp_fd_kind kind) {
  if (static_cast<unsigned>(fd) >= static_cast<unsigned>(kFdTableSize)) return;
  fd_kinds[fd].store(static_cast<uint8_t>(kind), std::memory_order_relaxed);
  if (kind == UWARP_FD_FOREIGN) return;
  int seen = highest.load(std::memory_order_relaxed);
  while (seen < fd && !highest.compare_exchange_weak(seen, fd, std::memory_order_relaxed)) {
  }
}

int highest_marked() { return highest.load(std::memory_order_relaxed); }

bool table_is_ours() {
  // Not getpid(): this must ask the kernel, also in a vfork child.
  return syscall(SYS_getpid) == owner.load(std::memory_order_relaxed);
}

void own_table() { owner.store(syscall(SYS_getpid), std::memory_order_relaxed); }

}  // namespace uwarp_preload
