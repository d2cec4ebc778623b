// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/content.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace uwarp::nfs {

namespace {

constexpr uint64_t kPageBytes = 4096;
// Address space is plentiful and untouched pages cost nothing, so capacity grows in large steps.
constexpr uint64_t kGrowth = 8;
constexpr uint64_t kCapacityMax = uint64_t{1} << 40;

uint64_t capacity_for(uint64_t size) {
  uint64_t capacity = kPageBytes;
  while (capacity < size) {
    capacity *= kGrowth;
  }
  return std::min(capacity, kCapacityMax);
}

}  // namespace

/// A mapping of zeros.
class Content::Memory {
 public:
  explicit Memory(uint64_t capacity) : capacity_(capacity) {
    void* start = mmap(nullptr, capacity, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
      throw std::bad_alloc();
    }
    start_ = static_cast<std::byte*>(start);
  }
  ~Memory() { munmap(start_, capacity_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// May move the memory, so no range of it may be in use elsewhere.
  void grow(uint64_t capacity) {
    void* start = mremap(start_, capacity_, capacity, MREMAP_MAYMOVE);
    if (start == MAP_FAILED) {
      throw std::bad_alloc();
    }
    start_ = static_cast<std::byte*>(start);
    capacity_ = capacity;
  }

  void zero(uint64_t from, uint64_t to) {
    uint64_t page = (from + kPageBytes - 1) / kPageBytes * kPageBytes;
    std::memset(start_ + from, 0, std::min(page, to) - from);
    if (page < to) {
      madvise(start_ + page, to - page, MADV_DONTNEED);  // up to the end of the last page
    }
  }

  std::byte* start() const { return start_; }
  uint64_t capacity() const { return capacity_; }

 private:
  std::byte* start_;
  uint64_t capacity_;
};

ConstBytes Content::range(uint64_t offset, size_t count) const {
  if (offset >= size_) {
    return {};
  }
  return {memory_->start() + offset, std::min<uint64_t>(count, size_ - offset)};
}

void Content::reserve(uint64_t size) {
  if (size > kCapacityMax) {
    throw std::bad_alloc();
  }
  if (size == 0 || (memory_ && size <= memory_->capacity())) {
    return;
  }
  if (memory_ && memory_.use_count() == 1) {
    memory_->grow(capacity_for(size));
    return;
  }
  auto larger = std::make_shared<Memory>(capacity_for(size));
  if (size_ > 0) {
    std::memcpy(larger->start(), memory_->start(), size_);
  }
  memory_ = std::move(larger);
}

void Content::resize(uint64_t size) {
  if (size == 0) {
    memory_.reset();
  } else if (size < size_) {
    memory_->zero(size, size_);
  } else {
    reserve(size);
  }
  size_ = size;
}

void Content::write(uint64_t offset, ConstBytes data) {
  if (data.empty()) {
    return;
  }
  reserve(offset + data.size());
  std::memcpy(memory_->start() + offset, data.data(), data.size());
  size_ = std::max(size_, offset + data.size());
}

}  // namespace uwarp::nfs
