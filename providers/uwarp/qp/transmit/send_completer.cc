// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/transmit/send_completer.h"

#include <algorithm>
#include <cassert>

#include "base/bytes.h"
#include "base/mutex.h"
#include "protocol/mpa/fpdu.h"
#include "protocol/wire/ddp_headers.h"
#include "protocol/wire/rdmap_headers.h"

namespace uwarp {

void TransmitTrace::record(TraceStep::Kind kind, uint64_t position) {
  sink_.note(
      {.kind = kind, .queue_pair = queue_pair_, .position = static_cast<uint32_t>(position)});
}

// An FPDU begins in one piece: its length and the two control bytes lie side by side.
void TransmitTrace::built(const SendQueue& queue, std::span<const iovec> bytes,
                          std::span<const uint32_t> ends) {
  for (; begun_ < queue.started(); ++begun_) record(TraceStep::Kind::kSendBegun, begun_);
  fpdus_.clear();
  gone_ = 0;
  size_t piece = 0, piece_begin = 0, begin = 0;
  for (const uint32_t end : ends) {
    while (piece < bytes.size() && piece_begin + bytes[piece].iov_len <= begin)
      piece_begin += bytes[piece++].iov_len;
    if (piece == bytes.size()) return;
    const auto* at = static_cast<const std::byte*>(bytes[piece].iov_base) + (begin - piece_begin);
    const RdmapControl control{static_cast<uint8_t>(at[kFpduLengthSize + 1])};
    fpdus_.push_back({end, static_cast<uint8_t>(control.opcode()), load_be16(at)});
    begin = end;
  }
}

void TransmitTrace::sent(SendQueue& queue, size_t batch_bytes, uint64_t stream_position) {
  for (; gone_ < fpdus_.size() && fpdus_[gone_].end <= batch_bytes; ++gone_)
    sink_.note({.kind = TraceStep::Kind::kFpduSent,
                .opcode = fpdus_[gone_].opcode,
                .queue_pair = queue_pair_,
                .bytes = fpdus_[gone_].bytes});
  // Requests that have completed already are not reported as with the kernel.
  with_kernel_ = std::max(with_kernel_, queue.retired());
  while (with_kernel_ < queue.started() &&
         queue.at(with_kernel_).end_position.load(std::memory_order_relaxed) <= stream_position)
    record(TraceStep::Kind::kSendWithKernel, with_kernel_++);
}

void TransmitTrace::completed(uint64_t position, const WorkCompletion& completion, bool reported) {
  sink_.note({.kind = TraceStep::Kind::kSendCompleted,
              .phase = position < with_kernel_ ? TraceStep::Phase::kWithKernel
                       : position < begun_     ? TraceStep::Phase::kBegun
                                               : TraceStep::Phase::kWaiting,
              .opcode = static_cast<uint8_t>(completion.opcode),
              .reported = reported,
              .queue_pair = queue_pair_,
              .position = static_cast<uint32_t>(position),
              .status = static_cast<uint32_t>(completion.status)});
  // A request that never was begun is not reported as begun later.
  begun_ = std::max(begun_, position + 1);
}

namespace {

// The class of the error says what kind of request it is about.
uint64_t likely_request(TerminateCode code, SendQueue& queue) {
  for (uint64_t i = queue.retired(); i != queue.started(); ++i)
    if (may_have_caused(code, queue.at(i).opcode)) return i;
  return queue.retired();
}

// Several open Writes may use one key; the offset tells them apart, as far as it can.
uint64_t failed_write(const TaggedHeader& header, SendQueue& queue) {
  uint64_t same_key = StreamFailure::kNoRequest;
  for (uint64_t i = queue.retired(); i != queue.started(); ++i) {
    const SendWqe& wqe = queue.at(i);
    if (!is_write(wqe.opcode) || wqe.rkey != header.stag.value) continue;
    const uint64_t offset = header.to - wqe.remote_address;
    if (offset == 0 || offset < wqe.length_bytes) return i;
    if (same_key == StreamFailure::kNoRequest) same_key = i;
  }
  return same_key;
}

uint64_t failed_send(Msn msn, SendQueue& queue) {
  for (uint64_t i = queue.retired(); i != queue.started(); ++i) {
    const SendWqe& wqe = queue.at(i);
    if (takes_receive(wqe.opcode) && wqe.msn == msn.value) return i;
  }
  return StreamFailure::kNoRequest;
}

}  // namespace

uint64_t failed_request(const StreamFailure& failure, const OutboundRequests& outbound,
                        SendQueue& queue, bool acknowledged) {
  if (failure.oldest_request) return queue.retired();
  if (!failure.by_peer) return failure.request;
  const TerminateHeader& terminate = failure.terminate;
  if (!terminate.has_ddp_header)
    return acknowledged ? likely_request(terminate.code, queue) : failure.request;
  const std::byte* header = terminate.ddp_header.data();
  if (terminate.ddp_header_size == TaggedHeader::kWireSize) {
    const RdmapControl control{static_cast<uint8_t>(header[1])};
    return control.opcode() == RdmapOpcode::kWrite
               ? failed_write(TaggedHeader::decode(header), queue)
               : StreamFailure::kNoRequest;
  }
  const UntaggedHeader untagged = UntaggedHeader::decode(header);
  switch (untagged.qn) {
    case QueueNumber::kSend:
      return failed_send(untagged.msn, queue);
    case QueueNumber::kReadRequest: {
      const OutboundRequest* open =
          outbound.find([&](const OutboundRequest& each) { return each.msn == untagged.msn; });
      return open != nullptr ? open->request : StreamFailure::kNoRequest;
    }
    default:
      return static_cast<uint32_t>(untagged.qn) >= kFirstSharedQueue
                 ? failed_send(untagged.msn, queue)
                 : StreamFailure::kNoRequest;
  }
}

void SendCompleter::restart() {
  assert(stream_.mine.transmit());
  acknowledging_.restart(config_.acknowledged,
                         std::max(stream_.config.ord, stream_.config.read_depth), queue_.started());
  stream_.acknowledged.store(queue_.started(), std::memory_order_relaxed);
  delivered_position_ = queue_.started();
  reason_reported_ = false;
  lent_from_.reset();
  peer_delivered_ = stream_.config.first_msn.previous().value;
}

// A number that the peer makes up finds no request, or one of its own that it loses.
void SendCompleter::note_peer_delivered() {
  const uint64_t said = stream_.peer_delivered.load(std::memory_order_acquire);
  if (said == peer_delivered_) return;
  const Msn delivered{static_cast<uint32_t>(said)}, before{static_cast<uint32_t>(peer_delivered_)};
  if (before.after(delivered)) return;
  peer_delivered_ = said;
  const bool next_waits = (said & StreamState::kNextWaits) != 0;
  const uint32_t named = next_waits ? delivered.next().value : delivered.value;
  for (uint64_t at = std::max(delivered_position_, queue_.retired()); at != queue_.started();
       ++at) {
    const SendWqe& wqe = queue_.at(at);
    if (!takes_receive(wqe.opcode) || wqe.msn != named) continue;
    delivered_position_ = next_waits ? at : at + 1;
    return;
  }
}

// In one piece, like Transmitter::fill(). Requests complete in order, once they are handed over;
// that does not say that they have arrived. RFC 5040-5.5-9/14/15.
[[gnu::flatten]] void SendCompleter::retire(bool built) {
  assert(stream_.mine.transmit());
  const uint32_t asked = retire_request_.asked();
  if (stream_.lent != nullptr && !retire_request_.granted(asked)) [[unlikely]]
    take_given_back();
  uint64_t placed = 0;
  if (acknowledging_.on()) [[unlikely]] {
    note_peer_delivered();
    placed = placed_position();
  }
  const uint64_t gone = built ? batch_.built_position() : batch_.sent_position();
  while (queue_.retired() != queue_.started()) {
    const SendWqe& wqe = queue_.at(queue_.retired());
    const uint64_t end = wqe.end_position.load(std::memory_order_relaxed);
    if (end > gone) break;
    if (awaits_answer(wqe.opcode) && !wqe.answered.load(std::memory_order_acquire)) break;
    if (acknowledging_.on() && !awaits_answer(wqe.opcode) && !is_local(wqe.opcode) &&
        end > placed && queue_.retired() >= stream_.acknowledged.load(std::memory_order_acquire) &&
        queue_.retired() >= delivered_position_)
      break;
    complete(queue_.retired(), WcStatus::kSuccess, 0);
  }
  check_drain();
  retire_request_.grant(asked);
}

void SendCompleter::note_sent(size_t bytes) {
  assert(stream_.mine.transmit());
  batch_.consume(bytes);
  if (batch_.empty()) {
    counters_.bytes.add(batch_.bytes());
    counters_.fpdus.add(batch_.fpdus());
  }
  if (trace_ != nullptr) [[unlikely]]
    trace_->sent(queue_, batch_.sent_bytes(), batch_.sent_position());
}

// The receive side asks when the peer has answered: the peer has read the question by then.
void SendCompleter::take_given_back() {
  assert(stream_.mine.transmit());
  const size_t bytes = stream_.lent->give_back();
  if (bytes != 0) note_sent(bytes);
}

std::optional<uint64_t> SendCompleter::read_position() {
  if (!lent_from_ || stream_.lent == nullptr) return std::nullopt;
  take_given_back();
  return *lent_from_ + stream_.lent->read_bytes();
}

// Before this position of the stream the peer has placed all, as far as the carrier tells. What
// came before the carrier was placed before that.
uint64_t SendCompleter::placed_position() {
  if (!lent_from_ || stream_.lent == nullptr) return 0;
  const uint64_t bytes = stream_.lent->placed_bytes();
  if (bytes == 0) return 0;
  acknowledging_.leave_to_carrier();
  return *lent_from_ + bytes;
}

void SendCompleter::acknowledge_before(std::optional<uint64_t> stream_position) {
  assert(stream_.mine.transmit());
  if (!stream_position) return acknowledging_.stop();
  uint64_t at = queue_.retired();
  while (at != queue_.started() &&
         queue_.at(at).end_position.load(std::memory_order_relaxed) <= *stream_position)
    ++at;
  stream_.acknowledge(at);
}

// All that has been begun has been placed.
void SendCompleter::note_placed() {
  if (stream_.lent != nullptr) take_given_back();
  stream_.acknowledge(queue_.started());
  acknowledging_.cover(queue_.started());
  retire();
}

bool SendCompleter::all_placed() {
  if (!batch_.empty() || !stream_.remote->settled()) return false;
  const auto of_application = [](const OutboundRequest& each) {
    return each.request != OutboundRequest::kNoRequest;
  };
  if (!stream_.outbound.empty() && stream_.outbound.find(of_application) != nullptr) return false;
  if (queue_.retired() != queue_.started()) note_placed();
  return queue_.retired() == queue_.started();
}

void SendCompleter::complete_direct(size_t requests) {
  for (; requests != 0; --requests) {
    SendWqe& wqe = queue_.at(queue_.started());
    const bool read = wqe.opcode == SendOpcode::kRead;
    queue_.start_one();
    counters_.count(read ? MessageKind::kReadRequest : MessageKind::kWrite);
    counters_.direct.add(1);
    if (!read) {  // as one frame, which it is not
      counters_.bytes.add(wqe.length_bytes);
      counters_.fpdus.add(1);
    }
    wqe.end_position.store(batch_.sent_position(), std::memory_order_relaxed);
    if (read) wqe.answered.store(true, std::memory_order_relaxed);
  }
  counters_.posted.set(queue_.posted());
  note_placed();
}

void SendCompleter::lose() {
  assert(stream_.mine.transmit());
  while (queue_.retired() != queue_.posted()) {
    if (queue_.started() == queue_.retired()) {
      if (is_local(queue_.at(queue_.started()).opcode)) break;
      queue_.start_one();
    }
    complete(queue_.retired(), WcStatus::kSuccess, 0);
  }
  check_drain();
}

void SendCompleter::raise_if_drained() {
  assert(stream_.mine.transmit());
  if (stream_.drain.due([&] { return batch_.empty() && queue_.retired() == queue_.started(); }))
      [[unlikely]]
    stream_.raise(QpEvent::kSqDrained);
}

void SendCompleter::complete(uint64_t position, WcStatus status, uint32_t vendor_err) {
  assert(position == queue_.retired() && position < queue_.started());
  const SendWqe& wqe = queue_.at(position);
  const bool wanted = status != WcStatus::kSuccess || queue_.signaled(wqe);
  WorkCompletion completion{};
  completion.wr_id = wqe.wr_id;
  completion.status = status;
  completion.opcode = completion_opcode(wqe.opcode);
  completion.vendor_err = vendor_err;
  completion.byte_len = static_cast<uint32_t>(wqe.length_bytes);
  completion.qp_num = config_.number.value;
  if (trace_ != nullptr) [[unlikely]] {
    completion.src_qp = static_cast<uint32_t>(position);
    trace_->completed(position, completion, wanted);
  }
  // Retired first: a thread that polls the completion may post again at once.
  std::atomic<uint64_t>* const index = queue_.retire_one(wanted);
  counters_.retired.set(position + 1);
  if (wanted && !config_.send_cq->push(completion, false, index))
    stream_.fail(StreamFailure::terminated_by_us(TerminateCode::kRdmapLocalCatastrophic),
                 QpEvent::kFatal);
  queue_.note_completed();
}

bool SendCompleter::flush() {
  assert(stream_.mine.transmit());
  const StreamFailure& failure = stream_.failure();
  const uint64_t own = failed_request(failure, stream_.outbound, queue_, acknowledging_.on());
  if (own != kNone && !failure.oldest_request) {  // what came before it
    if (acknowledging_.on()) stream_.acknowledge(own);
    retire(failure.send_terminate);
  }
  if (failure.status == WcStatus::kWrFlushErr) return flush_requests(kNone, kNone);
  return flush_requests(own, queue_.retired());
}

void SendCompleter::flush_late() {
  assert(stream_.mine.transmit());
  const bool report = config_.acknowledged && !reason_reported_ &&
                      stream_.failure().status != WcStatus::kWrFlushErr;
  flush_requests(kNone, report ? queue_.retired() : kNone);
}

// What is open completes once, with an error. RFC 5040-5.4-g, 5040-6.2.1-b, 5041-6.2.2-d.
bool SendCompleter::flush_requests(uint64_t own, uint64_t first) {
  const Lock lock(queue_.post_lock());
  while (queue_.retired() != queue_.posted()) {
    const uint64_t position = queue_.retired();
    if (queue_.started() == position) queue_.start_one();
    const bool named = position == own || position == first;
    if (!named) counters_.flushed.add(1);
    complete(position, named ? stream_.failure().status : WcStatus::kWrFlushErr,
             named ? stream_.failure().vendor_err() : 0);
  }
  const bool reported = first < queue_.retired();
  reason_reported_ = reason_reported_ || reported;
  return reported;
}

}  // namespace uwarp
