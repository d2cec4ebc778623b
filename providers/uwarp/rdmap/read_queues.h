// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Reads under way: those we asked for (bounded by ORD) and those we owe an answer (bounded by IRD).
// Each is a ring between the two directions of one stream. RFC 5040 5.2, RFC 6581 9.1.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "mr/region_table.h"
#include "wire/rdmap_headers.h"

namespace uwarp {

/// Fixed ring, one producer and one consumer; both sides are queue pair directions, so each is one
/// thread at a time. Entries stay where they are until popped.
template <typename T>
class SpscRing {
 public:
  /// Makes room for `capacity` entries. Not while in use.
  void reset(uint32_t capacity) {
    uint32_t size = 1;
    while (size < capacity) size *= 2;
    if (size != mask_ + 1 || !slots_) slots_ = std::make_unique<T[]>(size);
    mask_ = size - 1;
    capacity_ = capacity;
    head_.store(0, std::memory_order_relaxed);
    tail_.store(0, std::memory_order_release);
  }
  uint32_t size() const {
    return tail_.load(std::memory_order_acquire) - head_.load(std::memory_order_acquire);
  }
  uint32_t capacity() const { return capacity_; }
  bool empty() const { return size() == 0; }
  bool full() const { return size() >= capacity_; }
  /// Producer. The caller checked full().
  void push(const T& value) {
    uint32_t tail = tail_.load(std::memory_order_relaxed);
    slots_[tail & mask_] = value;
    tail_.store(tail + 1, std::memory_order_release);
  }
  /// Consumer: the oldest entry, null when empty.
  T* front() {
    uint32_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return nullptr;
    return &slots_[head & mask_];
  }
  /// The oldest entry that satisfies `wanted`, null if none does. Consumer, or while it rests.
  template <typename Predicate>
  const T* find(Predicate wanted) const {
    const uint32_t tail = tail_.load(std::memory_order_acquire);
    for (uint32_t i = head_.load(std::memory_order_acquire); i != tail; ++i)
      if (wanted(slots_[i & mask_])) return &slots_[i & mask_];
    return nullptr;
  }
  void pop() {
    head_.store(head_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

 private:
  std::unique_ptr<T[]> slots_;
  uint32_t mask_ = 0;
  uint32_t capacity_ = 0;
  std::atomic<uint32_t> head_{0};
  std::atomic<uint32_t> tail_{0};
};

/// A Read that we requested. Pushed when its request is built, popped when the response is complete.
struct OutboundRead {
  /// Send queue position of the request; kNoRequest for an RTR Read, which nobody is told of.
  static constexpr uint64_t kNoRequest = ~uint64_t{0};
  uint64_t request = kNoRequest;
  STag sink;  // token that only this response may carry (it is in no STag table)
  uint32_t length_bytes = 0;
  Msn msn;
};

/// A Read that the peer requested. Pushed on arrival, popped when the last segment of the response
/// is built; `header` moves on with what has been sent, as a Terminate has to report it.
struct InboundRead {
  ReadRequestHeader header;
  /// Found on arrival. The answers owed before it still go out, then the Terminate.
  RegionFault fault = RegionFault::kNone;
  std::byte ddp_header[UntaggedHeader::kWireSize];
};

using OutboundReads = SpscRing<OutboundRead>;
using InboundReads = SpscRing<InboundRead>;

}  // namespace uwarp
