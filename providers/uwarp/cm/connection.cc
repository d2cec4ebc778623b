// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A connection in FPDU mode, and every way in which it ends.
#include "cm/connection.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "base/limits.h"
#include "base/log.h"
#include "base/settings.h"
#include "cm/endpoint.h"
#include "cm/engine.h"
#include "cm/listener.h"
#include "cm/peer_magic.h"
#include "io/clock.h"
#include "mpa/fpdu.h"

namespace uwarp {
namespace {

/// How long we read away what a peer still sends after our FIN, so that no RST destroys a Terminate
/// on its way; and how long disconnect() waits for a peer that takes nothing.
constexpr uint64_t kCloseWaitNs = 5 * kNsPerSecond;
/// Octets read away per turn.
constexpr size_t kReadAwayBytes = size_t{1} << 20;

/// Silence after which a peer is lost, if neither the queue pair nor UWARP_PEER_TIMEOUT_MS says
/// anything (rdma_cm sets no timeout on iWARP).
constexpr uint32_t kDefaultPeerTimeoutMs = 30'000;
/// What a queue pair's own timeout is raised to. It is meant for a network that never loses packets;
/// TCP needs some retransmissions of up to a second each before silence means anything, and the
/// kernel also counts the time in which a live peer's window is closed.
constexpr uint32_t kLeastPeerTimeoutMs = 5'000;

/// ULPDU that fills one segment: length field, CRC and up to 3 octets of pad go off. RFC 5044 5.1.
uint32_t segment_ulpdu(uint32_t segment_bytes) {
  constexpr uint32_t kFraming = 6;
  const uint32_t ulpdu = segment_bytes > kFraming ? (segment_bytes & ~3u) - kFraming : 0;
  return std::clamp(ulpdu, kUlpduMin, kUlpduMax);
}

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

}  // namespace

Connection::Connection(Engine& engine, std::weak_ptr<ConnectionOwner> owner)
    : engine_(engine), owner_(std::move(owner)) {}

Connection::~Connection() {
  // A request that nobody wanted is rejected. No other thread can be here any more.
  if (phase_ == Phase::kRequested && !peer_left_)
    (void)send_reply_locked(responder_->reject({}).bytes);
  unregister_locked();
  socket_.close_gently();
}

// --- FPDU mode ------------------------------------------------------------------------------------

StreamConfig Connection::stream_config(const MpaNegotiated& negotiated, bool initiator) const {
  StreamConfig config;
  config.crc = negotiated.crc;
  config.ord = negotiated.ord;
  config.ird = negotiated.ird;
  config.wait_for_first_fpdu = !initiator;
  config.silent_fin = rendezvous_;
  // The private data of a rendezvous says who is there; an answer to the mark could meet a peer that
  // has sent its one message and gone, and would be answered by RST.
  config.peer_is_uwarp = rendezvous_;
  config.answer_magic = !initiator && !rendezvous_;
  config.magic_stag = kPeerMagicStag;
  config.magic_offset = kPeerMagicOffset;
  if (initiator) {
    config.rtr = rtr_of(negotiated.rtr);
    config.rtr_stag = kPeerMagicStag;
    config.rtr_offset = kPeerMagicOffset;
    config.chase_first_fpdu = !rendezvous_;
  }
  // Peers that ask for CRCs look like adapters, which want one FPDU per segment.
  const bool peer_wants_crc = initiator ? initiator_->reply().crc : responder_->request().crc;
  if (settings().fpdu_bytes != 0) {
    config.mulpdu = static_cast<uint16_t>(settings().fpdu_bytes);
  } else if (peer_wants_crc && !rendezvous_) {
    config.mulpdu = static_cast<uint16_t>(segment_ulpdu(socket_.segment_bytes()));
  }
  return config;
}

int Connection::open_stream_locked(const MpaNegotiated& negotiated, bool initiator) {
  startup_deadline_ns_ = 0;
  update_deadline_locked();
  set_peer_timeout_locked();
  if (rendezvous_) socket_.set_reset_on_close(true);
  StreamConfig config = stream_config(negotiated, initiator);
  if (!endpoint_->open_stream(*this, config, socket_, loop_ ? loop_ : socket_)) return ECONNABORTED;
  phase_ = Phase::kOpen;
  {
    const std::lock_guard guard(endpoint_lock_);
    open_ = true;
  }
  pump_due_ = true;
  return 0;
}

Result<std::shared_ptr<Connection>> Connection::connect_to_itself(
    Engine& engine, std::shared_ptr<Endpoint> endpoint, uint16_t depth,
    std::weak_ptr<ConnectionOwner> owner) {
  engine.ensure_helper_thread();
  auto pair = TcpSocket::open_pair();
  if (!pair) return Error{pair.error()};
  std::shared_ptr<Connection> connection(new Connection(engine, std::move(owner)));
  if (int error = endpoint->claim(connection, true)) return Error{error};
  Lock lock(connection->mutex_);
  connection->rendezvous_ = true;
  connection->socket_ = std::move(pair->first);
  connection->loop_ = std::move(pair->second);
  connection->endpoint_ = std::move(endpoint);
  auto in = engine.progress().add(*connection, connection->socket_.fd());
  auto out = engine.progress().add(*connection, connection->loop_.fd());
  int error = !in ? in.error() : !out ? out.error() : 0;
  if (in) connection->ticket_ = *in;
  if (out) connection->loop_ticket_ = *out;
  if (error == 0) {
    StreamConfig config;
    config.ord = config.ird = depth;
    config.silent_fin = config.peer_is_uwarp = true;
    error = connection->endpoint_->open_stream(*connection, config, connection->socket_,
                                               connection->loop_)
                ? 0
                : ECONNABORTED;
  }
  if (error != 0) {
    connection->leave_endpoint_locked();
    connection->close_locked(Farewell::kReset);
    return Error{error};
  }
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

// RFC 1122 keepalive finds a peer that vanished while nothing was under way, the user timeout one
// that owes an acknowledgement.
void Connection::set_peer_timeout_locked() {
  uint32_t timeout_ms = settings().peer_timeout_ms;
  if (timeout_ms == 0) {
    const uint32_t own_ms = endpoint_->peer_timeout_ms();
    timeout_ms = own_ms == 0 ? kDefaultPeerTimeoutMs : std::max(own_ms, kLeastPeerTimeoutMs);
  }
  socket_.set_user_timeout(timeout_ms);
  socket_.set_keepalive(timeout_ms);
}

void Connection::established_locked() {
  if (established_) return;
  established_ = true;
  startup_deadline_ns_ = 0;
  update_deadline_locked();
  ConnectParameters peer;
  const StreamConfig& config = endpoint_->qp().stream();
  peer.initiator_depth = config.ird;
  peer.responder_resources = config.ord;
  if (active_) {
    const auto octets = initiator_->private_data();
    peer.private_data.assign(octets.begin(), octets.end());
  }
  tell_locked(OwnerCall::kEstablished, 0, std::move(peer));
}

void Connection::on_notice(const StreamNotice& notice) {
  Lock lock(mutex_);
  if (phase_ != Phase::kOpen) return finish(lock);
  QueuePair& qp = endpoint_->qp();
  if ((notice.outcome & kRxFirstFpdu) != 0) {
    first_fpdu_seen_ = true;
    if (!active_ && peer_to_peer_) established_locked();
  }
  if ((notice.outcome & (kRxFailed | kRxTerminated)) != 0 || qp.flush_due()) {
    stream_failed_locked();
  } else if ((notice.outcome & kRxHeld) != 0 && qp.receive_held()) {
    hold_deadline_ns_ = now_ns() + settings().rnr_timeout_ms * kNsPerMs;
    update_deadline_locked();
  }
  if (notice.ended && phase_ == Phase::kOpen) stream_ended_locked(notice.end);
  if (phase_ == Phase::kOpen) hung_up_locked(endpoint_->stream().hang_up());
  if (phase_ == Phase::kOpen) check_transmit_locked();
  finish(lock);
}

// The connection is gone as far as epoll or a send could tell.
void Connection::hung_up_locked(uint32_t events) {
  if (events == 0) return;
  const bool dead = (events & (EPOLLHUP | EPOLLERR)) != 0;
  const bool held = endpoint_->qp().receive_held();
  if (dead && failing_) {
    // Nobody is left to read the Terminate.
    leave_endpoint_locked();
    close_locked(Farewell::kReset);
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
  hold_deadline_ns_ = 0;
  close_deadline_ns_ = now_ns() + kCloseWaitNs;
  update_deadline_locked();
  endpoint_->qp().flush();
  endpoint_->stream().watch_transmit();
  tell_end_locked();
  pump_due_ = true;  // the Terminate
}

void Connection::stream_ended_locked(StreamEnd end) {
  QueuePair& qp = endpoint_->qp();
  // Our Terminate goes out first; then this end is found again while draining.
  if (failing_ && end == StreamEnd::kFin && !qp.transmit_finished()) return;
  const bool never_used = !active_ && rendezvous_ && !first_fpdu_seen_ && !established_;
  if (!failing_ && !never_used) {
    (void)qp.end_stream(end);
    // Without rdma_cm the other side's end is its own affair until something is sent to it; the
    // stream stays attached, so that requests posted later fail.
    if (rendezvous_ && end == StreamEnd::kFin && !qp.flush_due() && qp.state() != QpState::kErr)
      return;
  }
  tell_end_locked();
  leave_endpoint_locked();
  close_locked(end == StreamEnd::kFin ? Farewell::kGentle : Farewell::kReset);
}

// Something waited for the send side: the Terminate, or the last of what was posted.
void Connection::check_transmit_locked() {
  QueuePair& qp = endpoint_->qp();
  if (failing_) {
    if (!qp.transmit_finished()) return;
  } else if (disconnecting_) {
    if (!qp.transmit_idle()) return;
    (void)qp.end_stream(StreamEnd::kLocalClose);
    tell_end_locked();
  } else {
    return;
  }
  leave_endpoint_locked();
  drain_locked();
}

int Connection::disconnect() {
  Lock lock(mutex_);
  if (phase_ != Phase::kOpen) return established_ ? 0 : EINVAL;
  if (!established_) return EINVAL;
  if (disconnecting_ || failing_) return 0;
  disconnecting_ = true;
  close_deadline_ns_ = now_ns() + kCloseWaitNs;
  update_deadline_locked();
  QueuePair& qp = endpoint_->qp();
  // rdma_disconnect() has moved the queue pair to SQD before: what was posted goes out all the same.
  if (qp.state() == QpState::kSqd) qp.to_rts();
  endpoint_->stream().watch_transmit();
  pump_due_ = true;
  finish_later(lock);
  return 0;
}

void Connection::endpoint_gone() {
  Lock lock(mutex_);
  if (phase_ == Phase::kOpen) {
    tell_end_locked();
    leave_endpoint_locked();
    close_locked(Farewell::kGentle);
  } else if (endpoint_ != nullptr) {
    tell_locked(OwnerCall::kFailed, -ECONNABORTED);
    leave_endpoint_locked();
    close_locked(Farewell::kReset);
  }
  finish_later(lock);
}

void Connection::abort() {
  const Lock lock(mutex_);
  owner_.reset();
  calls_.clear();
  calls_due_.store(false);
  if (phase_ == Phase::kOpen) {
    const std::shared_ptr<Endpoint> endpoint = endpoint_;
    leave_endpoint_locked();
    if (!rendezvous_) endpoint->qp().to_error();
  } else {
    leave_endpoint_locked();
  }
  if (phase_ != Phase::kDraining) close_locked(Farewell::kReset);
}

void Connection::drop_owner() {
  const Lock lock(mutex_);
  owner_.reset();
  calls_.clear();
  calls_due_.store(false);
}

// --- The end --------------------------------------------------------------------------------------

// Frees the queue pair. On return no thread moves bytes for it any more on our behalf.
void Connection::leave_endpoint_locked() {
  if (endpoint_ == nullptr) return;
  if (phase_ == Phase::kOpen) endpoint_->close_stream();
  endpoint_->release(*this);
  std::shared_ptr<Endpoint> left;
  const std::lock_guard guard(endpoint_lock_);
  open_ = false;
  left.swap(endpoint_);
}

// Our FIN goes out; whatever the peer still sends is read away until its own FIN, for some time.
void Connection::drain_locked() {
  hold_deadline_ns_ = 0;
  phase_ = Phase::kDraining;
  socket_.set_reset_on_close(false);
  socket_.shutdown_write();
  close_deadline_ns_ = now_ns() + kCloseWaitNs;
  update_deadline_locked();
  engine_.keep(shared());
  read_away_locked();
}

void Connection::read_away_locked() {
  const ssize_t count = socket_.discard(kReadAwayBytes);
  if (count == -EAGAIN) return;
  if (count > 0) return request_turn();
  close_locked(Farewell::kGentle);
}

void Connection::unregister_locked() {
  engine_.progress().remove(std::exchange(ticket_, 0));
  engine_.progress().remove(std::exchange(loop_ticket_, 0));
}

void Connection::close_locked(Farewell farewell) {
  if (phase_ == Phase::kDraining) engine_.let_go(*this);
  phase_ = Phase::kClosed;
  startup_deadline_ns_ = hold_deadline_ns_ = close_deadline_ns_ = 0;
  update_deadline_locked();
  unregister_locked();
  if (farewell == Farewell::kReset)
    socket_.reset();
  else
    socket_.close_gently();
  loop_.close();
}

// --- Deadlines, calls and turns -------------------------------------------------------------------

void Connection::update_deadline_locked() {
  uint64_t earliest = 0;
  for (const uint64_t deadline : {startup_deadline_ns_, hold_deadline_ns_, close_deadline_ns_})
    if (deadline != 0 && (earliest == 0 || deadline < earliest)) earliest = deadline;
  engine_.progress().set_deadline(*this, earliest);
}

void Connection::deadline_passed() {
  std::shared_ptr<Endpoint> expired;
  Lock lock(mutex_);
  const uint64_t now = now_ns();
  const auto passed = [now](uint64_t& deadline) {
    return deadline != 0 && deadline <= now && (deadline = 0, true);
  };
  if (passed(hold_deadline_ns_) && phase_ == Phase::kOpen) expired = endpoint_;
  if (passed(startup_deadline_ns_)) {
    log_event("connection: start-up timed out");
    if (phase_ == Phase::kOpen)
      stream_ended_locked(StreamEnd::kTimeout);  // the RTR has not come
    else
      connect_failed_locked(ETIMEDOUT);
  }
  if (passed(close_deadline_ns_) && phase_ == Phase::kOpen) {
    // The peer takes nothing any more.
    if (!failing_) (void)endpoint_->qp().end_stream(StreamEnd::kLocalClose);
    tell_end_locked();
    leave_endpoint_locked();
    close_locked(Farewell::kReset);
  } else if (phase_ == Phase::kDraining && close_deadline_ns_ == 0) {
    close_locked(Farewell::kReset);
  }
  update_deadline_locked();
  finish(lock);
  if (expired != nullptr) expired->stream().expire();
}

void Connection::request_turn() { engine_.progress().revisit(*this); }

std::shared_ptr<Endpoint> Connection::open_endpoint() const {
  const std::lock_guard guard(endpoint_lock_);
  return open_ ? endpoint_ : nullptr;
}

bool Connection::ready(uint32_t events) {
  if (const auto endpoint = open_endpoint()) {
    endpoint->stream().on_edge(events);
    if (!calls_due_.load()) return false;
  }
  Lock lock(mutex_);
  if (phase_ == Phase::kDraining) {
    read_away_locked();
  } else if (phase_ != Phase::kOpen && phase_ != Phase::kClosed) {
    start_up_locked(events);
  } else if (phase_ == Phase::kOpen && events != 0) {
    pump_due_ = true;  // it became open while this edge waited for the lock
  }
  finish(lock);
  return false;
}

void Connection::tell_locked(OwnerCall::Kind kind, int status, ConnectParameters peer) {
  if (owner_.expired()) return;
  calls_.push_back({kind, status, std::move(peer)});
  calls_due_.store(true);
}

void Connection::tell_end_locked() {
  if (std::exchange(end_told_, true)) return;
  if (established_)
    tell_locked(OwnerCall::kEnded);
  else
    tell_locked(OwnerCall::kFailed, -ECONNRESET);
}

void Connection::finish_later(Lock& lock) {
  const bool later = pump_due_ || !calls_.empty();
  lock.unlock();
  if (!later) return;
  if (engine_.progress().helper_running()) return request_turn();
  lock.lock();
  finish(lock);
}

void Connection::finish(Lock& lock) {
  std::shared_ptr<Listener> listener;
  if (phase_ != Phase::kReadingRequest && !listener_.expired()) {
    listener = listener_.lock();
    listener_.reset();
  }
  const bool complete = phase_ == Phase::kRequested;
  std::shared_ptr<Endpoint> pumped;
  if (std::exchange(pump_due_, false) && phase_ == Phase::kOpen) pumped = endpoint_;
  while (!calling_ && !calls_.empty()) {
    const std::shared_ptr<ConnectionOwner> owner = owner_.lock();
    const OwnerCall call = std::move(calls_.front());
    calls_.pop_front();
    calls_due_.store(!calls_.empty());
    if (owner == nullptr) continue;
    calling_ = true;
    lock.unlock();
    switch (call.kind) {
      case OwnerCall::kEstablished:
        owner->connection_established(*this, call.peer);
        break;
      case OwnerCall::kRejected:
        owner->connection_rejected(*this, call.status, call.peer.private_data);
        break;
      case OwnerCall::kFailed:
        owner->connection_failed(*this, call.status);
        break;
      case OwnerCall::kEnded:
        owner->connection_ended(*this);
        break;
    }
    lock.lock();
    calling_ = false;
  }
  lock.unlock();
  if (listener != nullptr) listener->half_open_done(shared(), complete);
  if (pumped != nullptr) pumped->stream().on_edge(0);
}

}  // namespace uwarp
