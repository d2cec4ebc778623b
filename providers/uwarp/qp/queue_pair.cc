// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/queue_pair.h"

#include <cassert>
#include <cerrno>

#include "base/mutex.h"

namespace uwarp {

QueuePair::~QueuePair() {
  // Its number may be given to another, which must not inherit its windows.
  if (transmitter_.bound_windows()) config_.regions->unbind_stream(stream_.identity);
}

QueuePair::QueuePair(const QpConfig& config)
    : config_(config),
      own_slot_(config.slot == nullptr ? std::make_unique<QueuePairSlot>() : nullptr),
      slot_(config.slot == nullptr ? *own_slot_ : *config.slot),
      sends_({config.max_send_wr, config.max_send_sge, config.max_inline_bytes, config.signal_all,
              config.extensions, !is_unreliable(config.transport), config.atomics,
              config.max_read_sge, config.max_message_bytes},
             *config.send_cq),
      own_receives_(config.srq != nullptr ? 0 : config.max_recv_wr, config.max_recv_sge),
      receives_(config.srq != nullptr ? config.srq : &own_receives_),
      stream_(config.listener),
      transmitter_(config_, sends_, stream_, slot_),
      receiver_(config_, sends_, *receives_, stream_, {transmit_side_, transmitter_.completer()},
                slot_.receive) {
  sends_.trace(config.trace, config.number.value);
  own_receives_.trace(config.trace, config.number.value);
  stream_.mine.watch(transmit_side_, receive_side_);
}

// Only a uwarp takes a Send with Immediate. Under InfiniBand's rules it is posted as soon as there
// is a connection, or before.
bool QueuePair::takes_send_with_immediate() const {
  if (peer_is_uwarp() || state() == QpState::kErr) return true;
  return config_.acknowledged ? !peer_has_spoken() : stream_.peer_will_show();
}

// Either this sees ERR, or the flush that sets it sees what was posted.
void QueuePair::flush_late() {
  const auto transmit = transmit_side_.lock_exclusive();
  if (state() == QpState::kErr) transmitter_.completer().flush_late();  // and not RESET by now
}

// In one piece, like Transmitter::fill().
[[gnu::flatten]] int QueuePair::post_send_locked(const SendRequest& request) {
  if (int error = sends_.check(request)) return error;
  if (request.opcode == SendOpcode::kSendWithImm && !takes_send_with_immediate()) return EOPNOTSUPP;
  const QpState now = state();
  if (now == QpState::kReset || now == QpState::kInit) return EINVAL;
  return sends_.push_locked(request);
}

int QueuePair::post_send(const SendRequest& request) {
  {
    const Lock lock(post_lock());
    if (int error = post_send_locked(request)) return error;
  }
  flush_late_posts();
  return 0;
}

int QueuePair::post_sends(std::span<const SendRequest> requests) {
  for (const SendRequest& request : requests) {
    if (int error = sends_.check(request)) return error;
    if (request.opcode == SendOpcode::kSendWithImm && !takes_send_with_immediate())
      return EOPNOTSUPP;
  }
  {
    const Lock lock(post_lock());
    if (state() == QpState::kReset || state() == QpState::kInit) return EINVAL;
    if (int error = sends_.push_all_locked(requests)) return error;
  }
  flush_late_posts();
  return 0;
}

int QueuePair::post_recv(uint64_t wr_id, std::span<const Sge> sges) {
  if (config_.srq != nullptr || state() == QpState::kReset) return EINVAL;
  if (int error = own_receives_.post(wr_id, sges)) return error;
  if (state() == QpState::kErr) {
    const auto receive = receive_side_.lock_exclusive();
    if (state() == QpState::kErr) receiver_.flush();  // and not RESET by now
  }
  return 0;
}

// Any thread may be failing the queue pair meanwhile, and ERR is left through RESET only.
void QueuePair::move_to(QpState next) {
  QpState now = state();
  while (now != QpState::kErr &&
         !state_.compare_exchange_weak(now, next, std::memory_order_acq_rel)) {
  }
  show_state();
}

void QueuePair::to_rts() {
  stream_.drain.end();
  stream_.establish_event.store(false, std::memory_order_relaxed);
  move_to(QpState::kRts);
}

void QueuePair::to_sqd(bool notify) {
  const auto transmit = transmit_side_.lock_exclusive();
  stream_.drain.begin(notify);
  move_to(QpState::kSqd);
  state() == QpState::kSqd ? transmitter_.completer().check_drain() : stream_.drain.forget();
}

void QueuePair::drop_work(CompletionQueue::Drop completions) {
  const Exclusive exclusive = lock_exclusive();
  set_state(QpState::kReset);
  stream_.running.store(false, std::memory_order_release);
  stream_.peer_is_uwarp.store(false, std::memory_order_relaxed);
  stream_.drain.end();
  set_remote_access(~0u);
  receiver_.reset();
  transmitter_.reset();
  if (config_.srq == nullptr) own_receives_.reset();
  stream_.clear_failure();
  // With both sides held, nothing of this queue pair can be pushed any more.
  const uint32_t number = config_.number.value;
  config_.send_cq->drop(number, completions);
  if (config_.recv_cq != config_.send_cq) config_.recv_cq->drop(number, completions);
}

void QueuePair::to_error() {
  stream_.fail(StreamFailure{}, std::nullopt);
  flush();
}

void QueuePair::to_error(WcStatus oldest) {
  StreamFailure failure;
  failure.oldest_request = true;
  failure.status = oldest;
  stream_.fail(failure, std::nullopt);
  flush();
}

void QueuePair::flush() {
  const Exclusive exclusive = lock_exclusive();
  const bool first = state_.exchange(QpState::kErr, std::memory_order_acq_rel) != QpState::kErr;
  show_state();
  stream_.drain.forget();
  const StreamFailure& failure = stream_.failure();
  if (first && (failure.send_terminate || failure.by_peer || failure.oldest_request))
    slot_.stream.failures.add(1);
  // Sends first: where both share a queue, the status that says why comes ahead of what it flushed.
  const bool reported = transmitter_.flush();
  // A requester with InfiniBand's acknowledgements has a completion that says so, as a rule.
  if (first && failure.by_peer && config_.acknowledged && !reported) stream_.raise(QpEvent::kFatal);
  receiver_.flush();
  // The buffer that it had taken is flushed; it takes no more.
  if (first && config_.shares_receives()) stream_.raise(QpEvent::kLastWqeReached);
}

bool QueuePair::start_stream(const StreamConfig& config) {
  const Exclusive exclusive = lock_exclusive();
  if (state() == QpState::kReset || state() == QpState::kErr) return false;
  // Where a connection manager reports the connection, this event would only repeat it.
  const bool early = state() == QpState::kRtr && config.silent_fin;
  stream_.restart(config);
  stream_.establish_event.store(early, std::memory_order_relaxed);
  receiver_.restart();
  transmitter_.restart();
  slot_.stream.connections.add(1);
  if (state() != QpState::kSqd) set_state(QpState::kRts);
  return true;
}

bool QueuePair::finish_input() {
  const auto receive = receive_side_.lock_exclusive();
  if (receiver_.mid_message() || stream_.failed()) return false;
  const auto transmit = transmit_side_.lock_exclusive();
  transmitter_.forget_dry();
  return !transmitter_.idle() ||
         !stream_.inbound.empty();  // what came since the last look included
}

bool QueuePair::fall_silent(StreamEnd end) {
  const auto receive = receive_side_.lock_exclusive();
  if (receiver_.mid_message() || stream_.failed()) return false;
  stream_.silent.store(true, std::memory_order_release);
  const auto transmit = transmit_side_.lock_exclusive();
  transmitter_.settle(end == StreamEnd::kFin, false);
  return true;
}

void QueuePair::count_end(StreamEnd end) {
  if (end == StreamEnd::kFin) slot_.stream.fins.add(1);
  if (end == StreamEnd::kReset) slot_.stream.resets.add(1);
  if (end == StreamEnd::kTimeout) slot_.stream.timeouts.add(1);
}

bool QueuePair::lose_peer(StreamEnd end) {
  const Exclusive exclusive = lock_exclusive();
  if (stream_.lost.exchange(true)) return false;
  close_gate();
  count_end(end);
  receiver_.close();
  transmitter_.lose();
  return true;
}

void QueuePair::lose_sends() {
  const auto transmit = transmit_side_.lock_exclusive();
  if (!stream_.running.load(std::memory_order_acquire) && state() == QpState::kRts)
    transmitter_.lose();
}

void QueuePair::note_peer_end(uint64_t unread_bytes) {
  const auto transmit = transmit_side_.lock_exclusive();
  transmitter_.note_peer_end(unread_bytes);
}

bool QueuePair::end_stream(StreamEnd end) {
  bool mid_message, sends_open;
  {
    const auto receive = receive_side_.lock_exclusive();
    mid_message = receiver_.mid_message();
    // The peer may answer, finish and leave while the thread that sent the last bytes has not yet
    // noted that they are gone: what has been done counts as done first.
    const auto transmit = transmit_side_.lock_exclusive();
    transmitter_.settle(end == StreamEnd::kFin && !mid_message,
                        end == StreamEnd::kReset || end == StreamEnd::kTimeout);
    count_end(end);
    sends_open = !sends_.drained();
  }
  const bool open = sends_open || mid_message || (config_.srq == nullptr && !own_receives_.empty());
  // InfiniBand's connection manager tells of a peer's disconnect, and moves no queue pair.
  const bool outlives_peer = stream_.config.silent_fin || config_.acknowledged;
  const bool silent = end == StreamEnd::kFin && !mid_message && outlives_peer;
  if (silent && !sends_open && !stream_.failed()) {
    stream_.lost.store(true, std::memory_order_release);
    return false;
  }
  StreamFailure failure;
  // With acknowledgements a request that has none is one that the peer did not answer. Otherwise
  // what an orderly end leaves behind is flushed, as RNICs do.
  const bool unanswered = sends_open && (config_.acknowledged || silent);
  const bool orderly = end == StreamEnd::kFin && !mid_message && !unanswered;
  if (end != StreamEnd::kLocalClose && !orderly) {
    failure.oldest_request = true;
    failure.status = WcStatus::kRetryExcErr;
  }
  // FIN inside a message is an error; a reset is one if it takes work with it, and always where no
  // connection manager tells the application. Between InfiniBand adapters a completion is all that
  // says so, if there is one. RFC 5040-6.2-c, 5041-6.2.2-a, 5044-7.2-b/c.
  const bool reported = config_.acknowledged && failure.oldest_request && sends_open;
  const bool wrong = end == StreamEnd::kFin
                         ? mid_message
                         : end != StreamEnd::kLocalClose && (open || stream_.config.silent_fin);
  stream_.fail(failure, wrong && !reported ? std::optional(QpEvent::kFatal) : std::nullopt);
  flush();
  return open;
}

void QueuePair::detach_stream() {
  const Exclusive exclusive = lock_exclusive();
  stream_.running.store(false, std::memory_order_release);
}

void QueuePair::quiesce(const MemoryRegion& region) {
  const Exclusive exclusive = lock_exclusive();
  receiver_.quiesce(region);
  transmitter_.quiesce(region, region.shape());
}

void QueuePair::region_changed(const MemoryRegion& region, const RegionShape& old, bool revoke) {
  assert(transmit_side_.mine() && receive_side_.mine());
  receiver_.resolve_again(region);
  if (!revoke) return;
  receiver_.quiesce(region);
  transmitter_.quiesce(region, old);
}

}  // namespace uwarp
