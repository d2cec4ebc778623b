// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The send queue: a ring of requests from posting to completion. Posting threads share the post
// lock; everything behind the posted position belongs to the transmit side.
//
//   freed <= retired <= started <= posted; requests in [retired, started) are on their way, those
//   in [started, posted) wait. A retired request keeps its slot until its completion has been
//   polled, or that of a later request if it has none: programs count free slots by what they poll.
//   Positions count requests and never wrap (64 bits).
#pragma once

#include <array>
#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/cache_line.h"
#include "base/limits.h"
#include "base/spinlock.h"
#include "counters/trace_sink.h"
#include "memory/region_table.h"
#include "protocol/ddp/segment.h"
#include "qp/completion_queue.h"
#include "qp/work_request.h"

namespace uwarp {

/// A posted request. Written by the poster before it is published, then owned by the transmit side
/// until it retires; `answered` alone is set by the receive side.
struct alignas(kCacheLineBytes) SendWqe {
  static constexpr uint64_t kNotBuilt = ~uint64_t{0};

  uint64_t wr_id = 0;
  uint64_t remote_address = 0;
  /// Until it retires, the stream position behind its last byte, once that is built. From then on
  /// the index of its completion (CompletionQueue::polled()), or one of these two.
  std::atomic<uint64_t> end_position{kNotBuilt};
  static constexpr uint64_t kNoCompletion = kNotBuilt;
  static constexpr uint64_t kNotStored = kNotBuilt - 1;
  Sge first_sge{};  // the others are beside the ring
  uint32_t length_bytes = 0;
  uint32_t rkey = 0;
  uint32_t imm_or_invalidate = 0;
  uint32_t msn = 0;  // of the untagged message, for a Terminate that names it; before, its queue
  uint16_t sge_count = 0;
  SendOpcode opcode = SendOpcode::kSend;
  uint8_t flags = 0;
  std::atomic<bool> answered{false};  // Read, atomic: the answer is complete

  // A binding uses the fields that it has no other use for.
  void keep_binding(const SendRequest& request) {
    first_sge = {request.bind_length_bytes, request.bind_access, request.bind_lkey};
  }
  WindowBinding binding() const {
    return {STag{rkey}, first_sge.lkey, remote_address, first_sge.address, first_sge.length_bytes};
  }
};
static_assert(sizeof(SendWqe) == kCacheLineBytes);  // many queue pairs are bound by such lines
static_assert(kMaxMessageBytes <= UINT32_MAX);

/// Of an atomic; kept beside the ring, because few queue pairs see one.
struct AtomicOperands {
  uint64_t compare_add = 0;
  uint64_t swap = 0;
  uint64_t compare_mask = 0;  // these two of a masked one only
  uint64_t add_or_swap_mask = 0;
};

/// A member of its queue pair, with one ring for all its time. Each request is posted, started,
/// retired and freed, in this order. Ends when no thread posts or transmits; what has not retired
/// then gets no completion.
class SendQueue {
 public:
  struct Shape {
    uint32_t depth = 1;
    uint32_t max_sge = 1;
    uint32_t max_inline_bytes = 0;
    bool signal_all = false;
    bool extensions = true;  // of RFC 7306
    bool answers = true;     // Reads and atomics
    bool atomics = true;
    uint32_t max_read_sge = kMaxSgeRead;
    uint32_t max_message_bytes = kMaxMessageBytes;
  };

 private:
  const Shape shape_;
  /// What may be asked of an opcode.
  struct Rule {
    uint8_t refusal;  // 0 or an errno
    uint8_t max_sge;
  };
  static constexpr size_t kOpcodes = static_cast<size_t>(SendOpcode::kMaskedFetchAdd) + 1;
  using Rules = std::array<Rule, kOpcodes>;
  static Rules rules_of(const Shape& shape);
  const Rules rules_;
  const CompletionQueue& completions_;
  TraceSink* trace_ = nullptr;
  uint32_t trace_name_ = 0;
  uint64_t mask_;
  std::unique_ptr<SendWqe[]> ring_;
  std::unique_ptr<Sge[]> more_sges_;  // behind the first
  std::unique_ptr<std::byte[]> inline_;
  std::unique_ptr<AtomicOperands[]> operands_;  // made at the first atomic

  // Written by threads that post, ...
  alignas(64) SpinLock post_lock_;
  std::atomic<uint64_t> posted_{0};
  uint64_t freed_ GUARDED_BY(post_lock_) = 0;
  // ... those from freed_ to here have retired without a completion.
  uint64_t uncovered_ GUARDED_BY(post_lock_) = 0;

  // ... and under the transmit side.
  alignas(64) std::atomic<uint64_t> started_{0};
  std::atomic<uint64_t> retired_{0};
  std::atomic<uint64_t> completed_{0};  // retired_, a little later

 public:
  /// `completions`, where its completions go, outlives the queue.
  SendQueue(const Shape& shape, const CompletionQueue& completions);

  /// Checks a request against the shape alone; touches nothing. 0, EINVAL or EOPNOTSUPP.
  int check(const SendRequest& request) const;
  /// Appends a checked request, copying SGEs or inline bytes. ENOMEM when no slot is free.
  int push_locked(const SendRequest& request) REQUIRES(post_lock_);
  /// The same for several: all of them or none.
  int push_all_locked(std::span<const SendRequest> requests) REQUIRES(post_lock_);
  /// There is room for `requests` more.
  bool has_space_locked(uint64_t requests) REQUIRES(post_lock_) {
    return fits(requests) || (free_polled(), fits(requests));
  }
  SpinLock& post_lock() RETURN_CAPABILITY(post_lock_) { return post_lock_; }
  /// Posts are told to `sink` (may be null) as those of this queue pair. Before the first one.
  void trace(TraceSink* sink, uint32_t queue_pair) {
    trace_ = sink;
    trace_name_ = queue_pair;
  }

  uint64_t posted() const { return posted_.load(std::memory_order_acquire); }
  uint64_t started() const { return started_.load(std::memory_order_relaxed); }
  uint64_t retired() const { return retired_.load(std::memory_order_acquire); }
  bool waiting() const { return started() != posted(); }
  bool drained() const { return retired() == posted(); }

  SendWqe& at(uint64_t position) { return ring_[position & mask_]; }
  /// Only of an atomic.
  const AtomicOperands& operands(uint64_t position) const { return operands_[position & mask_]; }

  // Transmit side.
  void start_one() {
    assert(waiting());
    started_.store(started() + 1, std::memory_order_relaxed);
  }
  /// Gathers the payload of a request into `list`. False when an SGE is not allowed: key unknown,
  /// foreign domain, out of range, or without the right `needed`.
  bool gather(uint64_t position, const RegionTable& regions, const ProtectionDomain& domain,
              uint32_t needed, BufferList& list);
  /// Takes the oldest request off the queue. Its slot stays taken until the completion whose index
  /// is stored in the place returned has been polled; null if it has no completion (not
  /// `reported`).
  std::atomic<uint64_t>* retire_one(bool reported) {
    assert(retired() != started());
    std::atomic<uint64_t>& index = at(retired()).end_position;
    index.store(reported ? SendWqe::kNotStored : SendWqe::kNoCompletion, std::memory_order_relaxed);
    retired_.store(retired() + 1, std::memory_order_release);
    return reported ? &index : nullptr;
  }
  /// ... and what completion it has, if any, has been stored.
  void note_completed() { completed_.store(retired(), std::memory_order_release); }
  /// Some requests have been begun whose completions have not been stored.
  bool in_flight() const { return completed_.load(std::memory_order_acquire) != started(); }
  bool signaled(const SendWqe& wqe) const {
    return shape_.signal_all || (wqe.flags & kSendSignaled) != 0;
  }
  /// Forgets everything without completions. Both sides quiet.
  void reset();

 private:
  bool fits(uint64_t requests) const REQUIRES(post_lock_) {
    return posted_.load(std::memory_order_relaxed) + requests - freed_ <= shape_.depth;
  }
  [[gnu::noinline]] void free_polled() REQUIRES(post_lock_);
  std::byte* inline_area(uint64_t position) {
    return inline_.get() + (position & mask_) * shape_.max_inline_bytes;
  }
  [[gnu::noinline, gnu::cold]] void trace_posted(uint64_t position) const;
  bool make_operands();
  [[gnu::noinline]] bool keep_operands(uint64_t position, const SendRequest& request);
  Sge* more_sges(uint64_t position) {
    return more_sges_.get() + (position & mask_) * (shape_.max_sge - 1);
  }
};

/// Completion opcode of a send opcode.
WcOpcode completion_opcode(SendOpcode opcode);

}  // namespace uwarp
