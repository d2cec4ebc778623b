// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "faults/failing_allocations.h"

#include <execinfo.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> live{0};
std::atomic<int64_t> made{0};
std::atomic<int64_t> until_any_fails{0};
thread_local int64_t until_own_fails = 0;
std::atomic<bool> failed{false};

/// Prints the stack of the failing allocation.
void show_caller() {
  void* frames[24];
  backtrace_symbols_fd(frames, backtrace(frames, 24), 2);
}

bool fails() {
  const bool own = until_own_fails > 0 && --until_own_fails == 0;
  const bool any = until_any_fails.load() > 0 && until_any_fails.fetch_sub(1) == 1;
  if (own || any) failed.store(true);
  if ((own || any) && std::getenv("UWARP_TEST_BACKTRACE") != nullptr) show_caller();
  return own || any;
}

void* allocate(size_t size, size_t alignment) {
  made.fetch_add(1);
  if (fails()) return nullptr;
  void* memory = nullptr;
  if (alignment <= alignof(std::max_align_t)) {
    memory = std::malloc(size == 0 ? 1 : size);
  } else if (posix_memalign(&memory, alignment, size) != 0) {
    memory = nullptr;
  }
  if (memory != nullptr) live.fetch_add(1);
  return memory;
}

void* allocate_or_throw(size_t size, size_t alignment = 1) {
  void* memory = allocate(size, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) {
  if (memory == nullptr) return;
  live.fetch_sub(1);
  std::free(memory);
}

}  // namespace

void fail_allocation(int64_t count, Whose whose) {
  failed.store(false);
  if (whose == Whose::kThisThread) {
    until_own_fails = count;
  } else {
    until_any_fails.store(count);
  }
}

bool stop_failing_allocations() {
  until_own_fails = 0;
  until_any_fails.store(0);
  return failed.load();
}

int64_t live_allocations() { return live.load(); }

int64_t allocations_made() { return made.load(); }

// All forms that libstdc++ does not implement by another form.
void* operator new(size_t size) { return allocate_or_throw(size); }
void* operator new[](size_t size) { return allocate_or_throw(size); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return allocate(size, 1); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return allocate(size, 1); }
void* operator new(size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete[](void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { release(memory); }
