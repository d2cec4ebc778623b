// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The fd table and its owner.
#include "preload/fd_kinds.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace uwarp_preload {

// A page of zeros is only mapped once something on it is marked.
constinit uint8_t fd_kinds[kFdTableSize] = {};

namespace {
constinit std::atomic<int> highest{-1};
constinit std::atomic<long> owner{0};
/// On a page that the kernel clears in the child of a fork; null before Linux 4.14.
constinit std::atomic<std::atomic<bool>*> no_copy{nullptr};

std::atomic<bool>* map_cleared_in_copies() {
  const size_t size = sizeof(std::atomic<bool>);
  void* page = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (madvise(page, size, MADV_WIPEONFORK) == 0) return static_cast<std::atomic<bool>*>(page);
  munmap(page, size);
  return nullptr;
}
}  // namespace

void set_kind(int fd, uwarp_fd_kind kind) {
  if (static_cast<unsigned>(fd) >= static_cast<unsigned>(kFdTableSize)) return;
  fd_kind(fd).store(static_cast<uint8_t>(kind), std::memory_order_relaxed);
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

bool memory_is_ours() {
  const std::atomic<bool>* mark = no_copy.load(std::memory_order_acquire);
  return mark != nullptr ? mark->load(std::memory_order_relaxed) : table_is_ours();
}

void own_table() {
  owner.store(syscall(SYS_getpid), std::memory_order_relaxed);
  std::atomic<bool>* mark = no_copy.load(std::memory_order_acquire);
  if (mark == nullptr) mark = map_cleared_in_copies();
  if (mark == nullptr) return;
  mark->store(true, std::memory_order_relaxed);
  no_copy.store(mark, std::memory_order_release);
}

}  // namespace uwarp_preload
