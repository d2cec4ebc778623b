// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/send_queue.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/limits.h"
#include "base/mutex.h"
#include "qp/receive_queue.h"

namespace uwarp {
namespace {

bool inline_allowed(SendOpcode opcode) {
  return opcode == SendOpcode::kSend || opcode == SendOpcode::kSendWithInvalidate ||
         opcode == SendOpcode::kSendWithImm || is_write(opcode);
}

// EOPNOTSUPP for what iWARP cannot say, or what is switched off; EINVAL for what the transport
// lacks (ibv_post_send(3)). RFC 7306-1.1-c.
uint8_t refusal(SendOpcode opcode, const SendQueue::Shape& shape) {
  if (awaits_answer(opcode) && !shape.answers) return EINVAL;
  if (is_atomic(opcode) && !shape.atomics) return EOPNOTSUPP;
  switch (opcode) {
    case SendOpcode::kSend:
    case SendOpcode::kSendWithInvalidate:
    case SendOpcode::kWrite:
    case SendOpcode::kRead:
    case SendOpcode::kSendWithImm:  // if the peer is a uwarp, which the queue pair knows
    case SendOpcode::kLocalInvalidate:
    case SendOpcode::kBindWindow:
      return 0;
    case SendOpcode::kWriteWithImm:
    case SendOpcode::kCompareSwap:
    case SendOpcode::kFetchAdd:
    case SendOpcode::kMaskedCompareSwap:
    case SendOpcode::kMaskedFetchAdd:
      return shape.extensions ? 0 : EOPNOTSUPP;
    default:
      return EOPNOTSUPP;
  }
}

}  // namespace

WcOpcode completion_opcode(SendOpcode opcode) {
  switch (opcode) {
    case SendOpcode::kWrite:
    case SendOpcode::kWriteWithImm:
      return WcOpcode::kWrite;
    case SendOpcode::kRead:
      return WcOpcode::kRead;
    case SendOpcode::kCompareSwap:
    case SendOpcode::kMaskedCompareSwap:
      return WcOpcode::kCompareSwap;
    case SendOpcode::kFetchAdd:
    case SendOpcode::kMaskedFetchAdd:
      return WcOpcode::kFetchAdd;
    case SendOpcode::kLocalInvalidate:
      return WcOpcode::kLocalInvalidate;
    case SendOpcode::kBindWindow:
      return WcOpcode::kBindWindow;
    default:
      return WcOpcode::kSend;
  }
}

SendQueue::Rules SendQueue::rules_of(const Shape& shape) {
  Rules rules;
  for (size_t i = 0; i < kOpcodes; ++i) {
    const auto opcode = static_cast<SendOpcode>(i);
    const bool read = opcode == SendOpcode::kRead;
    const uint32_t sges = read ? std::min(shape.max_sge, shape.max_read_sge) : shape.max_sge;
    rules[i] = {refusal(opcode, shape), static_cast<uint8_t>(sges)};
  }
  return rules;
}

SendQueue::SendQueue(const Shape& shape, const CompletionQueue& completions)
    : shape_(shape), rules_(rules_of(shape)), completions_(completions) {
  const uint64_t slots = std::bit_ceil(static_cast<uint64_t>(std::max(shape.depth, 1u)));
  mask_ = slots - 1;
  ring_ = std::make_unique<SendWqe[]>(slots);
  if (shape.max_sge > 1) more_sges_ = std::make_unique<Sge[]>(slots * (shape.max_sge - 1));
  if (shape.max_inline_bytes > 0)
    inline_ = std::make_unique<std::byte[]>(slots * shape.max_inline_bytes);
}

int SendQueue::check(const SendRequest& request) const {
  const auto opcode = static_cast<size_t>(request.opcode);
  if (opcode >= kOpcodes) return EOPNOTSUPP;
  if (int error = rules_[opcode].refusal) return error;
  const bool inlined = request.flags & kSendInline;
  if (inlined && !inline_allowed(request.opcode)) return EINVAL;
  if (is_local(request.opcode) && !request.sges.empty()) return EINVAL;
  // Inline data leaves no SGEs behind, so only its bytes count against the queue's shape.
  if (request.sges.size() > (inlined ? kMaxSge : rules_[opcode].max_sge)) return EINVAL;
  if (request.sges.bytes > (inlined ? shape_.max_inline_bytes : shape_.max_message_bytes))
    return EINVAL;
  return 0;
}

int SendQueue::push_locked(const SendRequest& request) {
  if (!has_space_locked(1)) return ENOMEM;
  const uint64_t position = posted_.load(std::memory_order_relaxed);
  if (is_atomic(request.opcode) && !keep_operands(position, request)) return ENOMEM;
  assert(position - freed_ < shape_.depth);
  SendWqe& wqe = at(position);
  wqe.wr_id = request.wr_id;
  wqe.remote_address = request.remote_address;
  wqe.rkey = request.rkey;
  wqe.imm_or_invalidate = request.imm_or_invalidate;
  wqe.msn = request.receive_queue;
  wqe.opcode = request.opcode;
  wqe.flags = request.flags;
  wqe.end_position.store(SendWqe::kNotBuilt, std::memory_order_relaxed);
  wqe.answered.store(false, std::memory_order_relaxed);
  wqe.length_bytes = static_cast<uint32_t>(request.sges.bytes);
  wqe.sge_count = 0;
  if (request.flags & kSendInline) {
    std::byte* to = inline_area(position);
    assert(wqe.length_bytes <= shape_.max_inline_bytes);
    for (const Sge& sge : request.sges) {
      if (sge.length_bytes == 0) continue;  // its address may be null
      std::memcpy(to, reinterpret_cast<const void*>(sge.address), sge.length_bytes);
      to += sge.length_bytes;
    }
  } else if (!request.sges.empty()) {
    wqe.sge_count = static_cast<uint16_t>(request.sges.size());
    assert(wqe.sge_count <= shape_.max_sge);
    wqe.first_sge = request.sges.front();
    if (wqe.sge_count > 1) std::ranges::copy(request.sges.subspan(1), more_sges(position));
  }
  if (request.opcode == SendOpcode::kBindWindow) [[unlikely]]
    wqe.keep_binding(request);
  if (trace_ != nullptr) [[unlikely]]
    trace_posted(position);
  posted_.store(position + 1, std::memory_order_release);
  return 0;
}

// Before another thread can begin it.
void SendQueue::trace_posted(uint64_t position) const {
  const SendWqe& wqe = ring_[position & mask_];
  trace_->note({.kind = TraceStep::Kind::kSendPosted,
                .opcode = static_cast<uint8_t>(completion_opcode(wqe.opcode)),
                .queue_pair = trace_name_,
                .position = static_cast<uint32_t>(position),
                .bytes = wqe.length_bytes,
                .wr_id = wqe.wr_id});
}

int SendQueue::push_all_locked(std::span<const SendRequest> requests) {
  if (!has_space_locked(requests.size())) return ENOMEM;
  // What may fail comes before the first is published.
  for (const SendRequest& request : requests)
    if (is_atomic(request.opcode) && !make_operands()) return ENOMEM;
  for (const SendRequest& request : requests) (void)push_locked(request);
  return 0;
}

// Only when the queue seems full: polling and posting pay nothing for it.
void SendQueue::free_polled() {
  const uint64_t polled = completions_.polled();
  const uint64_t end = retired();
  assert(freed_ <= uncovered_ && uncovered_ <= end);
  for (; uncovered_ != end; ++uncovered_) {
    const uint64_t index = at(uncovered_).end_position.load(std::memory_order_relaxed);
    if (index == SendWqe::kNoCompletion) continue;
    if (index >= polled) return;
    freed_ = uncovered_ + 1;
  }
}

bool SendQueue::make_operands() {
  if (operands_ == nullptr) operands_.reset(new (std::nothrow) AtomicOperands[mask_ + 1]);
  return operands_ != nullptr;
}

bool SendQueue::keep_operands(uint64_t position, const SendRequest& request) {
  if (!make_operands()) return false;
  operands_[position & mask_] = {request.compare_add, request.swap, request.compare_mask,
                                 request.add_or_swap_mask};
  return true;
}

bool SendQueue::gather(uint64_t position, const RegionTable& regions,
                       const ProtectionDomain& domain, uint32_t needed, BufferList& list) {
  assert(position < posted());
  list.clear();
  const SendWqe& wqe = at(position);
  if (wqe.flags & kSendInline) {
    list.append(inline_area(position), static_cast<uint32_t>(wqe.length_bytes));
    return true;
  }
  if (wqe.sge_count == 0) return true;
  if (!append_local(list, wqe.first_sge, regions, domain, needed)) return false;
  const std::span more(more_sges(position), wqe.sge_count - size_t{1});
  return std::ranges::all_of(
      more, [&](const Sge& sge) { return append_local(list, sge, regions, domain, needed); });
}

void SendQueue::reset() {
  const Lock lock(post_lock_);
  const uint64_t position = posted_.load(std::memory_order_relaxed);
  started_.store(position, std::memory_order_relaxed);
  retired_.store(position, std::memory_order_release);
  note_completed();
  freed_ = uncovered_ = position;
}

}  // namespace uwarp
