// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Reads and atomics under way: those we asked for (bounded by ORD) and those we owe an answer
// (bounded by IRD; one depth covers both kinds, rule A2). Each is a ring between the two directions
// of one stream. RFC 5040 5.2, RFC 7306 5.2, RFC 6581 9.1.
#pragma once

#include <atomic>
#include <cassert>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <variant>

#include "base/ids.h"
#include "protocol/wire/rdmap_headers.h"

namespace uwarp {

/// Fixed ring, one producer and one consumer; both sides are queue pair directions, so each is one
/// thread at a time. Entries stay where they are until popped.
template <typename T>
class SpscRing {
 public:
  /// Sets the capacity. Not while in use. Takes all the memory that the ring will ever need, so
  /// that push() cannot fail; it is not touched before, because most connections never read.
  /// Throws std::bad_alloc, and has changed nothing then.
  void reset(uint32_t capacity) {
    uint32_t size = 1;
    while (size < capacity) size *= 2;
    if (slots_ == nullptr || size != mask_ + 1)
      slots_ = std::make_unique_for_overwrite<Slot[]>(size);
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
    assert(size() <= mask_);
    std::construct_at(&slots_[tail & mask_].value, value);
    tail_.store(tail + 1, std::memory_order_release);
  }
  /// Consumer: the oldest entry, null when empty.
  T* front() {
    uint32_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return nullptr;
    return &slots_[head & mask_].value;
  }
  /// The oldest entry that satisfies `wanted`, null if none does. The producer may ask, too:
  /// entries stay as they are when they are popped.
  template <typename Predicate>
  const T* find(Predicate wanted) const {
    const uint32_t tail = tail_.load(std::memory_order_acquire);
    for (uint32_t i = head_.load(std::memory_order_acquire); i != tail; ++i)
      if (wanted(slots_[i & mask_].value)) return &slots_[i & mask_].value;
    return nullptr;
  }
  void pop() {
    assert(!empty());
    head_.store(head_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

 private:
  /// Room for an entry, which is made by push().
  union Slot {
    Slot() {}  // NOLINT(modernize-use-equals-default): T may have a constructor
    T value;
  };
  static_assert(std::is_trivially_destructible_v<T>);

  std::unique_ptr<Slot[]> slots_;
  uint32_t mask_ = 0;
  uint32_t capacity_ = 0;
  std::atomic<uint32_t> head_{0};
  std::atomic<uint32_t> tail_{0};
};

/// A Read or atomic that we requested. Pushed when its request is built, popped when the answer is
/// complete.
struct OutboundRequest {
  /// Send queue position of the request; kNoRequest for a Read of our own, which has no completion.
  static constexpr uint64_t kNoRequest = ~uint64_t{0};
  uint64_t request = kNoRequest;
  /// What only its answer may carry: the SinkSTag token of a Read (it is in no STag table), the
  /// Request Identifier of an atomic.
  uint32_t token = 0;
  uint32_t length_bytes = 0;
  Msn msn;
  bool atomic = false;
  /// Its answer acknowledges the send requests before this position; 0: none.
  uint64_t acknowledges = 0;
};

/// A Read or atomic that the peer requested. Pushed on arrival, popped when the last segment of the
/// answer is built.
struct InboundRequest {
  std::variant<ReadRequestHeader, AtomicRequestHeader> header;
  /// Found on arrival. The answers owed before it still go out, then the Terminate.
  std::optional<TerminateCode> error;
  std::byte ddp_header[UntaggedHeader::kWireSize];
  /// The last message that the peer sent before it and that has been delivered: the answer says so.
  Msn delivered;

  const ReadRequestHeader* read() const { return std::get_if<ReadRequestHeader>(&header); }
  /// A Read without bytes: as a rule the peer's way to ask whether all before has been placed. Its
  /// answer is not to wait behind our own requests.
  bool wants_nothing() const { return read() != nullptr && read()->size == 0; }
  const AtomicRequestHeader* atomic() const { return std::get_if<AtomicRequestHeader>(&header); }
};

using OutboundRequests = SpscRing<OutboundRequest>;
using InboundRequests = SpscRing<InboundRequest>;

}  // namespace uwarp
