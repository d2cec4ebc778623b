// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A connection in FPDU mode: what it starts with, and what its stream reports.
#include "connect/connection.h"

#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "base/limits.h"
#include "base/log.h"
#include "base/settings.h"
#include "connect/connect_context.h"
#include "connect/endpoint.h"
#include "connect/listener.h"
#include "connect/peer_magic.h"
#include "os/clock.h"
#include "protocol/mpa/fpdu.h"

namespace uwarp {
namespace {

/// If neither the queue pair nor UWARP_PEER_TIMEOUT_MS says anything (rdma_cm sets no timeout on
/// iWARP).
constexpr uint32_t kDefaultPeerTimeoutMs = 30'000;
/// What a queue pair's own timeout is raised to. It is meant for a network that never loses
/// packets; TCP needs some retransmissions of up to a second each before silence means anything.
constexpr uint32_t kLeastPeerTimeoutMs = 5'000;
/// Looks at a peer that owes acknowledgements, within its timeout.
constexpr uint32_t kPeerLooks = 2;
/// How long requests to a peer that went without a word wait before they fail: as long as an
/// adapter would repeat them, within these limits.
constexpr uint32_t kLeastSilenceMs = 100;
constexpr uint32_t kLongestSilenceMs = 600;

StreamConfig::Rtr rtr_of(RtrKind kind) {
  switch (kind) {
    case RtrKind::kWrite:
      return StreamConfig::Rtr::kWrite;
    case RtrKind::kRead:
      return StreamConfig::Rtr::kRead;
    case RtrKind::kNone:
      break;
  }
  return StreamConfig::Rtr::kNone;
}

const char* describe(StreamEnd end) {
  switch (end) {
    case StreamEnd::kFin:
      return "the peer has closed it";
    case StreamEnd::kReset:
      return "the peer has reset it";
    case StreamEnd::kTimeout:
      return "the peer does not answer any more";
    case StreamEnd::kLocalClose:
      break;
  }
  return "closed";
}

/// An FPDU has gone in part. The rest of it is in memory of our own once the queue pair is flushed.
bool half_sent(QueuePair& qp) {
  const auto transmit = qp.transmit_side().hold();
  return !qp.transmitter().window().empty();
}

/// What the owner of a failing queue pair wants to know first.
void log_failure(Qpn number, const StreamFailure& failure) {
  if (failure.by_peer)
    log_event("qp %#x: the peer terminates the stream: %s", number.value,
              describe(failure.terminate.code));
  else if (failure.send_terminate)
    log_event("qp %#x: stream terminated: %s", number.value, describe(failure.terminate.code));
  else
    log_event("qp %#x: stream failed", number.value);
}

}  // namespace

Connection::Connection(ConnectContext& context, std::weak_ptr<ConnectionOwner> owner)
    : context_(context), owner_(std::move(owner)) {
  calls_.reserve(kMostCalls);
}

Connection::~Connection() {
  // A request that nobody wanted is rejected. No other thread can be here any more.
  if (phase_ == Phase::kRequested && !peer_left_) {
    try {
      (void)send_reply_locked(responder_->reject({}).bytes);
    } catch (const std::bad_alloc&) {  // then the end says it
    }
  }
  unregister_locked();
  socket_.close_gently();
}

// --- FPDU mode
// ------------------------------------------------------------------------------------

StreamConfig Connection::stream_config(const MpaNegotiated& negotiated, bool initiator) const {
  StreamConfig config;
  config.crc = negotiated.crc;
  config.ord = config.read_depth = negotiated.ord;
  config.ird = negotiated.ird;
  // The peer may have granted the one that is kept for acknowledgements.
  if (settings().acknowledged()) config.ord = std::min(config.ord, parameters_.initiator_depth);
  config.wait_for_first_fpdu = !initiator;
  config.silent_fin = rendezvous_;
  // The private data of a rendezvous says who is there; an answer to the mark could meet a peer
  // that has sent its one message and gone, and would be answered by RST.
  config.peer_is_uwarp = rendezvous_;
  config.answer_magic = !initiator && !rendezvous_;
  config.magic_stag = kPeerMagicStag;
  config.magic_offset = kPeerMagicOffset;
  if (initiator) {
    config.rtr = rtr_of(negotiated.rtr);
    config.rtr_stag = kPeerMagicStag;
    config.rtr_offset = kPeerMagicOffset;
    config.nudge_first_fpdu = !rendezvous_;
  }
  // Peers that ask for CRCs look like adapters, which want one FPDU per segment.
  const bool peer_wants_crc = initiator ? initiator_->reply().crc : responder_->request().crc;
  if (settings().fpdu_bytes != 0) {
    config.mulpdu = static_cast<uint16_t>(settings().fpdu_bytes);
  } else if (peer_wants_crc && !rendezvous_) {
    config.mulpdu = static_cast<uint16_t>(mulpdu_for(socket_.segment_bytes()));
  }
  return config;
}

int Connection::open_stream_locked(const MpaNegotiated& negotiated, bool initiator) {
  StreamConfig config = stream_config(negotiated, initiator);
  deadlines_[Deadline::kStartup] = 0;
  if (config.nudge_first_fpdu) deadlines_[Deadline::kNudge] = now_ns() + nudge_wait_ns_;
  update_deadline_locked();
  set_peer_timeout_locked();
  // Killed: a peer that holds messages back would never see a FIN behind them.
  if (rendezvous_ || settings().acknowledged()) socket_.set_reset_on_close(true);
  if (!endpoint_->open_stream(*this, config, ends())) return ECONNABORTED;
  phase_ = Phase::kOpen;
  {
    const std::lock_guard guard(endpoint_lock_);
    open_ = true;
  }
  pump_due_ = true;
  return 0;
}

Result<std::shared_ptr<Connection>> Connection::connect_to_itself(
    ConnectContext& context, std::shared_ptr<Endpoint> endpoint, uint16_t depth,
    std::weak_ptr<ConnectionOwner> owner) {
  if (int error = context.progress.start_helper()) return Error{error};
  auto pair = TcpSocket::open_pair();
  if (!pair) return Error{pair.error()};
  std::shared_ptr<Connection> connection(new Connection(context, std::move(owner)));
  if (int error = endpoint->claim(connection, true)) return Error{error};
  Lock lock(connection->mutex_);
  connection->rendezvous_ = true;
  connection->socket_ = std::move(pair->first);
  connection->loop_ = std::move(pair->second);
  connection->endpoint_ = std::move(endpoint);
  const int error = connection->start_or_leave_locked([&, self = connection.get()] {
    auto in = context.progress.add(*self, self->socket_.fd());
    if (!in) return in.error();
    self->ticket_ = *in;
    auto out = context.progress.add(*self, self->loop_.fd());
    if (!out) return out.error();
    self->loop_ticket_ = *out;
    StreamConfig config;
    config.ord = depth;
    config.read_depth = config.ird = depth + 1;
    config.silent_fin = config.peer_is_uwarp = true;
    return self->endpoint_->open_stream(*self, config, self->ends()) ? 0 : ECONNABORTED;
  });
  if (error != 0) return Error{error};
  connection->phase_ = Phase::kOpen;
  {
    const std::lock_guard guard(connection->endpoint_lock_);
    connection->open_ = true;
  }
  connection->pump_due_ = true;
  connection->established_locked();
  connection->finish_later(lock);
  return connection;
}

uint32_t Connection::usual_peer_timeout_ms() {
  return settings().peer_timeout_ms != 0 ? settings().peer_timeout_ms : kDefaultPeerTimeoutMs;
}

// RFC 1122 keepalive finds a peer that vanished while nothing was under way,
// look_after_peer_locked() one that owes an acknowledgement.
void Connection::set_peer_timeout_locked() {
  const uint32_t own_ms = settings().peer_timeout_ms != 0 ? 0 : endpoint_->peer_timeout_ms();
  peer_timeout_ms_ = own_ms == 0 ? usual_peer_timeout_ms() : std::max(own_ms, kLeastPeerTimeoutMs);
  socket_.set_keepalive(peer_timeout_ms_);
}

void Connection::watch_peer_locked() {
  deadlines_[Deadline::kPeer] = now_ns() + peer_timeout_ms_ * kNsPerMs / kPeerLooks;
  update_deadline_locked();
}

// A peer that a debugger has stopped takes nothing, but its TCP still answers; where that is silent
// too, although something was owed all the time, the peer is lost.
void Connection::look_after_peer_locked() {
  endpoint_->stream().unwatch_peer();
  if (!socket_.owes_acknowledgement()) {
    peer_looks_ = 0;
    return;
  }
  if (peer_looks_ >= kPeerLooks && socket_.silent_for(peer_timeout_ms_))
    return stream_ended_locked(StreamEnd::kTimeout);
  ++peer_looks_;
  watch_peer_locked();
}

void Connection::established_locked() {
  if (established_) return;
  ConnectParameters peer;
  if (active_) {
    const auto octets = initiator_->private_data();
    peer.private_data.assign(octets.begin(), octets.end());
  }
  established_ = true;  // nothing fails from here on
  deadlines_[Deadline::kStartup] = 0;
  update_deadline_locked();
  const StreamConfig& config = endpoint_->qp().stream();
  peer.initiator_depth = settings().acknowledged() && config.ird > 0 ? config.ird - 1 : config.ird;
  peer.responder_resources = config.ord;
  initiator_.reset();
  responder_.reset();
  tell_locked(OwnerCall::kEstablished, 0, std::move(peer));
}

void Connection::on_events(const StreamEvents& notice) {
  Lock lock(mutex_);
  if (phase_ != Phase::kOpen) return finish(lock);
  QueuePair& qp = endpoint_->qp();
  FaultScript* const script = qp.script();
  if (script != nullptr && apply_faults_locked(*script)) return finish(lock);
  if (notice.began_to_send && deadlines_[Deadline::kPeer] == 0) watch_peer_locked();
  // Whoever read the first FPDU may come here later than another thread that has read the end.
  if (!first_fpdu_seen_ && qp.peer_has_spoken()) {
    first_fpdu_seen_ = true;
    if (!active_ && peer_to_peer_) established_locked();
  }
  if ((notice.outcome & (kRxFailed | kRxTerminated)) != 0 || qp.flush_due()) {
    stream_failed_locked();
  } else if ((notice.outcome & kRxHeld) != 0 && qp.receiver().held()) {
    const bool stalled = script != nullptr && script->receive_stalled();
    deadlines_[Deadline::kHold] = stalled ? 0 : endpoint_->hold_deadline_ns();
    update_deadline_locked();
  }
  if (notice.ended && phase_ == Phase::kOpen) stream_ended_locked(notice.end);
  if (phase_ == Phase::kOpen) hung_up_locked(endpoint_->stream().hang_up());
  if (phase_ == Phase::kOpen) check_transmit_locked();
  finish(lock);
}

// What a script has decided inside the stream. True: the connection is no more.
bool Connection::apply_faults_locked(FaultScript& script) {
  if (script.take_reset() && !failing_) {
    stream_ended_locked(StreamEnd::kReset);
    return true;
  }
  deadlines_[Deadline::kFault] = script.deadline_ns(now_ns());
  update_deadline_locked();
  return false;
}

void Connection::nudge_locked() {
  pump_due_ = true;  // the Write, or the end that has waited for this moment
  if (!endpoint_->qp().nudge()) return;
  if (nudge_wait_ns_ >= kLastNudgeNs) return;
  nudge_wait_ns_ *= 8;
  deadlines_[Deadline::kNudge] = now_ns() + nudge_wait_ns_;
}

// What siw has overlooked it never sees if our FIN follows, and its iw_cm may not survive it.
bool Connection::first_nudge_due_locked() const {
  return nudge_wait_ns_ == kFirstNudgeNs && deadlines_[Deadline::kNudge] != 0 && !first_fpdu_seen_;
}

// The connection is gone as far as epoll or a send could tell.
void Connection::hung_up_locked(uint32_t events) {
  if (events == 0) return;
  const bool dead = (events & (EPOLLHUP | EPOLLERR)) != 0;
  const bool held = endpoint_->qp().receiver().held();
  if (dead && failing_) {
    // Nobody is left to read the Terminate.
    leave_endpoint_locked();
    close_locked(CloseMode::kReset);
  } else if (dead && peer_finished_) {
    stream_ended_locked(StreamEnd::kFin);
  } else if ((events & EPOLLERR) != 0 && endpoint_->stream().ended()) {
    // The answer to what was sent as the silent end came: nobody has read it.
    stream_ended_locked(StreamEnd::kReset);
  } else if (dead && held) {
    const int error = socket_.take_error();
    stream_ended_locked(error == ETIMEDOUT ? StreamEnd::kTimeout : StreamEnd::kReset);
  } else if (dead && !endpoint_->stream().ended()) {
    request_turn();  // what came before the end is read first
  } else if (held && !rendezvous_) {
    // A FIN behind messages that can still be delivered: the owner hears of it, the queue pair
    // keeps its chance until the grace time is over.
    tell_end_locked();
  }
}

void Connection::stream_failed_locked() {
  if (failing_) return;
  failing_ = true;
  if (log_enabled()) log_failure(endpoint_->number(), endpoint_->qp().failure());
  deadlines_[Deadline::kHold] = 0;
  deadlines_[Deadline::kClose] = now_ns() + kCloseWaitNs;
  endpoint_->qp().flush();
  send_before_end_locked();  // the Terminate
}

// The end is told of now; the connection goes when check_transmit_locked() finds all sent, or when
// Deadline::kClose has passed.
void Connection::send_before_end_locked() {
  update_deadline_locked();
  endpoint_->stream().watch_transmit();
  tell_end_locked();
  pump_due_ = true;
}

// A FIN ends one direction only (RFC 5041 6.2.1): what can be sent without an answer is sent, and
// no frame is cut. Not with acknowledgements, of which none can come any more.
bool Connection::send_the_rest_locked(StreamEnd end) {
  if (end != StreamEnd::kFin || peer_finished_ || failing_ || rendezvous_) return false;
  if (settings().acknowledged() || !endpoint_->qp().finish_input()) return false;
  peer_finished_ = true;
  if (deadlines_[Deadline::kClose] == 0) deadlines_[Deadline::kClose] = now_ns() + kCloseWaitNs;
  send_before_end_locked();
  return true;
}

// Without rdma_cm a peer's end has no words. Between InfiniBand adapters requests fail only after
// all repetitions, and applications with many queue pairs rely on that: when one queue pair's peer
// leaves, what it sent on the others has still to be polled. True while that time lasts.
bool Connection::still_silent_locked(StreamEnd end) {
  const bool wordless = end == StreamEnd::kFin || end == StreamEnd::kReset;
  if (!rendezvous_ || failing_ || !wordless) return false;
  if (silent_end_.has_value()) {
    if (deadlines_[Deadline::kSilence] == 0) return false;
    if (end == StreamEnd::kReset) silent_end_ = end;
    return endpoint_->qp().fall_silent();
  }
  if (!endpoint_->qp().fall_silent()) return false;
  silent_end_ = end;
  const uint32_t timeout_ms = endpoint_->peer_timeout_ms();
  deadlines_[Deadline::kSilence] =
      now_ns() + kNsPerMs * (timeout_ms == 0
                                 ? kLongestSilenceMs
                                 : std::clamp(timeout_ms, kLeastSilenceMs, kLongestSilenceMs));
  update_deadline_locked();
  return true;
}

void Connection::stream_ended_locked(StreamEnd end) {
  QueuePair& qp = endpoint_->qp();
  if (send_the_rest_locked(end)) return;
  // Our Terminate goes out first; then this end is found again while draining.
  if (failing_ && end == StreamEnd::kFin && !qp.transmitter().finished()) return;
  const bool never_used = !active_ && rendezvous_ && !first_fpdu_seen_ && !established_;
  if (!never_used && still_silent_locked(end)) return;
  if (!failing_ && !never_used) {
    const bool open = qp.end_stream(end);
    log_event("qp %#x: end of the stream: %s%s", endpoint_->number().value, describe(end),
              open ? ", with work open" : "");
    // Without rdma_cm the other side's end is its own affair until something is sent to it; the
    // stream stays attached, so that requests posted later fail.
    if (rendezvous_ && end == StreamEnd::kFin && !qp.flush_due() && qp.state() != QpState::kErr)
      return;
    // Where the rest may not follow, the FPDU that is half sent does: the peer may still listen.
    if (end == StreamEnd::kFin && !peer_finished_ && half_sent(qp)) return finish_fpdu_locked();
  }
  tell_end_locked();
  leave_endpoint_locked();
  close_locked(end == StreamEnd::kFin ? CloseMode::kGentle : CloseMode::kReset);
}

// As behind a failure, but without a Terminate.
void Connection::finish_fpdu_locked() {
  failing_ = true;
  deadlines_[Deadline::kClose] = now_ns() + kCloseWaitNs;
  send_before_end_locked();
}

// Something waited for the send side: the Terminate, or the last of what was posted.
void Connection::check_transmit_locked() {
  QueuePair& qp = endpoint_->qp();
  if (failing_) {
    if (!qp.transmitter().finished()) return;
  } else if (peer_finished_) {
    if (!qp.transmitter().dry()) return;
    (void)qp.end_stream(StreamEnd::kFin);
  } else if (disconnecting_) {
    if (!qp.transmitter().idle() || first_nudge_due_locked()) return;
    (void)qp.end_stream(StreamEnd::kLocalClose);
    tell_end_locked();
  } else {
    return;
  }
  leave_endpoint_locked();
  drain_locked();
}

}  // namespace uwarp
