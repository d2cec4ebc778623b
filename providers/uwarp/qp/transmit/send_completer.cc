// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/transmit/send_completer.h"

#include <algorithm>
#include <mutex>

#include "qp/failed_request.h"

namespace uwarp {

void SendCompleter::restart() {
  acknowledging_.restart(config_.acknowledged,
                         std::max(stream_.config.ord, stream_.config.read_depth), queue_.started());
  stream_.acknowledged.store(queue_.started(), std::memory_order_relaxed);
  delivered_position_ = queue_.started();
  reason_told_ = false;
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

// In one piece, like Transmitter::fill().
[[gnu::flatten]] void SendCompleter::retire() {
  const uint32_t asked = retire_wish_.asked();
  if (stream_.lent != nullptr && !retire_wish_.granted(asked)) [[unlikely]]
    take_given_back();
  retire_before(writer_.sent_position());
  retire_wish_.grant(asked);
}

void SendCompleter::sent(size_t bytes) {
  note_sent(bytes);
  retire();
}

void SendCompleter::note_sent(size_t bytes) {
  writer_.sent(bytes);
  if (trace_ != nullptr) [[unlikely]]
    trace_->sent(queue_, writer_.batch().sent_bytes(), writer_.sent_position());
}

// The receive side asks when the peer has answered: the peer has read the question by then.
void SendCompleter::take_given_back() {
  const size_t bytes = stream_.lent->give_back();
  if (bytes != 0) note_sent(bytes);
}

void SendCompleter::retire_before(uint64_t sent_position) {
  if (acknowledging_.on()) [[unlikely]]
    note_peer_delivered();
  while (queue_.retired() != queue_.started()) {
    const SendWqe& wqe = queue_.at(queue_.retired());
    if (wqe.end_position.load(std::memory_order_relaxed) > sent_position) break;
    if (awaits_answer(wqe.opcode) && !wqe.answered.load(std::memory_order_acquire)) break;
    if (acknowledging_.on() && !awaits_answer(wqe.opcode) && !is_local(wqe.opcode) &&
        queue_.retired() >= stream_.acknowledged.load(std::memory_order_acquire) &&
        queue_.retired() >= delivered_position_)
      break;
    complete(queue_.retired(), WcStatus::kSuccess, 0);
  }
  look_for_drain();
}

void SendCompleter::acknowledge_before(std::optional<uint64_t> stream_position) {
  if (!stream_position) return acknowledging_.stop();
  uint64_t at = queue_.retired();
  while (at != queue_.started() &&
         queue_.at(at).end_position.load(std::memory_order_relaxed) <= *stream_position)
    ++at;
  if (at > stream_.acknowledged.load(std::memory_order_acquire))
    stream_.acknowledged.store(at, std::memory_order_release);
}

void SendCompleter::lose() {
  while (queue_.retired() != queue_.posted()) {
    if (queue_.started() == queue_.retired()) {
      if (is_local(queue_.at(queue_.started()).opcode)) break;
      queue_.start_one();
    }
    complete(queue_.retired(), WcStatus::kSuccess, 0);
  }
  look_for_drain();
}

void SendCompleter::look_for_drain() {
  if (stream_.drain.due([&] {
        return writer_.batch().empty() && queue_.retired() == queue_.started();
      })) [[unlikely]]
    stream_.raise(QpEvent::kSqDrained);
}

void SendCompleter::complete(uint64_t position, WcStatus status, uint32_t vendor_err) {
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
  const StreamFailure& failure = stream_.failure();
  const uint64_t own = failed_request(failure, stream_.outbound, queue_, acknowledging_.on());
  complete_before(own);
  if (failure.status == WcStatus::kWrFlushErr) return flush_requests(kNone, kNone);
  return flush_requests(own, queue_.retired());
}

void SendCompleter::flush_late() {
  const bool tell =
      config_.acknowledged && !reason_told_ && stream_.failure().status != WcStatus::kWrFlushErr;
  flush_requests(kNone, tell ? queue_.retired() : kNone);
}

void SendCompleter::complete_before(uint64_t failed) {
  const StreamFailure& failure = stream_.failure();
  if (failed == StreamFailure::kNoRequest || failure.oldest_request) return;
  if (acknowledging_.on() && failed > stream_.acknowledged.load(std::memory_order_acquire))
    stream_.acknowledged.store(failed, std::memory_order_release);
  retire_before(failure.send_terminate ? writer_.built_position() : writer_.sent_position());
}

bool SendCompleter::flush_requests(uint64_t own, uint64_t first) {
  std::lock_guard lock(queue_.post_lock());
  while (queue_.retired() != queue_.posted()) {
    const uint64_t position = queue_.retired();
    if (queue_.started() == position) queue_.start_one();
    const bool named = position == own || position == first;
    if (!named) counters_.flushed.add(1);
    complete(position, named ? stream_.failure().status : WcStatus::kWrFlushErr,
             named ? stream_.failure().vendor_err() : 0);
  }
  const bool told = first < queue_.retired();
  reason_told_ = reason_told_ || told;
  return told;
}

}  // namespace uwarp
