// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Every way in which a connection ends, and the turns in between: deadlines and owner calls.
#include <sys/epoll.h>

#include <cerrno>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/settings.h"
#include "base/tuning.h"
#include "connect/connect_context.h"
#include "connect/connection.h"
#include "connect/endpoint.h"
#include "connect/listener.h"
#include "os/clock.h"
#include "os/collapsed_log.h"

namespace uwarp {
namespace {

/// Octets read away per turn.
constexpr size_t kReadAwayBytes = size_t{1} << 20;

}  // namespace

int Connection::disconnect() {
  Lock lock(mutex_);
  if (phase_ != Phase::kOpen) return established_ ? 0 : EINVAL;
  if (!established_) return EINVAL;
  if (disconnecting_ || failing_) return 0;
  disconnecting_ = true;
  deadlines_[Deadline::kClose] = now_ns() + kCloseWaitNs;
  update_deadline_locked();
  QueuePair& qp = endpoint_->qp();
  // rdma_disconnect() has moved the queue pair to SQD before: what was posted goes out all the
  // same.
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
    // Where ERR is how applications disconnect, the rest of what they sent must still arrive: a
    // close with unread octets would reset the connection.
    if (settings().persona == Persona::kRoce && !rendezvous_)
      drain_locked();
    else
      close_locked(CloseMode::kGentle);
  } else if (endpoint_ != nullptr) {
    tell_locked(OwnerCall::kFailed, -ECONNABORTED);
    leave_endpoint_locked();
    close_locked(CloseMode::kReset);
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
  if (phase_ != Phase::kDraining) close_locked(CloseMode::kReset);
}

void Connection::drop_owner() {
  const Lock lock(mutex_);
  owner_.reset();
  calls_.clear();
  calls_due_.store(false);
}

// --- The end
// --------------------------------------------------------------------------------------

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
  deadlines_[Deadline::kHold] = 0;
  phase_ = Phase::kDraining;
  if (!settings().acknowledged()) socket_.set_reset_on_close(false);
  socket_.shutdown_write();
  if (captured_ != nullptr) captured_->end(false);
  const uint64_t now = now_ns();
  deadlines_[Deadline::kClose] = now + kCloseWaitNs;
  if (settings().acknowledged()) deadlines_[Deadline::kRoom] = now + kNoRoomWaitNs;
  update_deadline_locked();
  read_away_locked();
  if (phase_ == Phase::kDraining) displaced_ = context_.draining.keep(shared());
}

void Connection::stop_draining() {
  const Lock lock(mutex_);
  if (phase_ != Phase::kDraining) return;
  static CollapsedLog log;
  log.event(
      "connection: the peer %s has not closed its end, and too many others have not either: reset "
      "(a quarter of the files that may be open, ulimit -n)",
      ip_of(remote_).to_string().c_str());
  close_locked(CloseMode::kReset);
}

// A peer that holds messages back for which it has no receive may do so without end (rnr_retry 7)
// and sees no FIN behind them. Between InfiniBand adapters it would hear of the end all the same.
void Connection::look_for_room_locked() {
  // Nothing that was acknowledged is lost with a reset.
  if (socket_.peer_has_no_room()) return close_locked(CloseMode::kReset);
  deadlines_[Deadline::kRoom] = now_ns() + kNoRoomWaitNs;
}

void Connection::read_away_locked() {
  const ssize_t count = socket_.discard(kReadAwayBytes);
  if (count == -EAGAIN) return;
  if (count > 0) return request_turn();
  const bool done = count == 0 && !settings().acknowledged();
  close_locked(done ? CloseMode::kDone : CloseMode::kGentle);
}

void Connection::unregister_locked() {
  context_.progress.remove(std::exchange(ticket_, 0));
  context_.progress.remove(std::exchange(loop_ticket_, 0));
}

void Connection::close_locked(CloseMode farewell) {
  if (phase_ == Phase::kDraining) context_.draining.let_go(shared());
  phase_ = Phase::kClosed;
  deadlines_.clear();
  update_deadline_locked();
  unregister_locked();
  if (captured_ != nullptr) captured_->end(farewell == CloseMode::kReset);
  switch (farewell) {
    case CloseMode::kDone:
      socket_.close();
      break;
    case CloseMode::kGentle:
      socket_.close_gently();
      break;
    case CloseMode::kReset:
      socket_.reset();
      break;
  }
  loop_.close();
}

// --- Deadlines, calls and turns
// -------------------------------------------------------------------

void Connection::update_deadline_locked() {
  context_.progress.set_deadline(*this, deadlines_.earliest_ns());
}

void Connection::deadline_passed() {
  std::shared_ptr<Endpoint> overdue, expired, released;
  Lock lock(mutex_);
  const uint64_t now = now_ns();
  const auto passed = [&](Deadline kind) { return deadlines_.take_passed(kind, now); };
  if (passed(Deadline::kRedial)) redial_locked();
  if (passed(Deadline::kNudge) && phase_ == Phase::kOpen) nudge_locked();
  if (passed(Deadline::kPost) && phase_ == Phase::kOpen) overdue = endpoint_;
  if (passed(Deadline::kHold) && phase_ == Phase::kOpen) expired = endpoint_;
  if (passed(Deadline::kFault) && phase_ == Phase::kOpen) released = endpoint_;
  if (passed(Deadline::kSilence) && phase_ == Phase::kOpen) {
    stream_ended_locked(*silent_end_);
    pump_due_ = true;  // requests that waited fail
  }
  if (passed(Deadline::kPeer) && phase_ == Phase::kOpen) look_after_peer_locked();
  if (passed(Deadline::kRoom) && phase_ == Phase::kDraining) look_for_room_locked();
  if (passed(Deadline::kStartup)) {
    log_event("connection: start-up timed out");
    if (phase_ == Phase::kOpen)
      stream_ended_locked(StreamEnd::kTimeout);  // the RTR has not come
    else
      connect_failed_locked(ETIMEDOUT);
  }
  if (passed(Deadline::kClose) && phase_ == Phase::kOpen) {
    // The peer takes nothing any more.
    if (!failing_) (void)endpoint_->qp().end_stream(StreamEnd::kLocalClose);
    tell_end_locked();
    leave_endpoint_locked();
    close_locked(CloseMode::kReset);
  } else if (phase_ == Phase::kDraining && deadlines_[Deadline::kClose] == 0) {
    close_locked(CloseMode::kReset);
  }
  update_deadline_locked();
  finish(lock);
  if (overdue != nullptr) overdue->stream().transmit_overdue();
  if (released != nullptr) released->script_deadline_passed();
  if (expired != nullptr) expired->stream().expire();
}

void Connection::transmit_before_long() {
  const Lock lock(mutex_);
  if (phase_ != Phase::kOpen) return;
  deadlines_[Deadline::kPost] = now_ns() + tuning::kPostWaitNs;
  update_deadline_locked();
}

void Connection::request_turn() { context_.progress.revisit(*this); }

std::shared_ptr<Endpoint> Connection::open_endpoint() const {
  const std::lock_guard guard(endpoint_lock_);
  return open_ ? endpoint_ : nullptr;
}

bool Connection::look() {
  const auto endpoint = open_endpoint();
  return endpoint != nullptr && endpoint->stream().look();
}

// Not before end_quiet() finds the stream.
bool Connection::request_quiet() {
  return open_endpoint() != nullptr && context_.progress.quieten(*this);
}

void Connection::end_quiet() {
  if (const auto endpoint = open_endpoint()) endpoint->stream().end_quiet();
}

bool Connection::looked_at() {
  const auto endpoint = open_endpoint();
  return endpoint != nullptr && endpoint->stream().looked_at();
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
  const auto displaced = std::exchange(displaced_, nullptr);
  lock.unlock();
  if (displaced != nullptr) displaced->stop_draining();
  if (!later) return;
  if (context_.progress.helper_running()) return request_turn();
  lock.lock();
  finish(lock);
}

void Connection::tell(ConnectionOwner& owner, const OwnerCall& call) {
  switch (call.kind) {
    case OwnerCall::kEstablished:
      return owner.connection_established(*this, call.peer);
    case OwnerCall::kRejected:
      return owner.connection_rejected(*this, call.status, call.peer.private_data);
    case OwnerCall::kFailed:
      return owner.connection_failed(*this, call.status);
    case OwnerCall::kEnded:
      return owner.connection_ended(*this);
  }
}

void Connection::out_of_memory() {
  Lock lock(mutex_);
  if (phase_ == Phase::kOpen) {
    stream_ended_locked(StreamEnd::kReset);
  } else if (phase_ == Phase::kDraining) {
    close_locked(CloseMode::kReset);
  } else if (phase_ != Phase::kClosed) {
    connect_failed_locked(ENOMEM);
  }
  finish(lock);
}

void Connection::finish(Lock& lock) {
  std::shared_ptr<Listener> listener;
  if (phase_ != Phase::kReadingRequest && !listener_.expired()) {
    listener = listener_.lock();
    listener_.reset();
  }
  const bool complete = phase_ == Phase::kRequested;
  const auto displaced = std::exchange(displaced_, nullptr);
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
    try {
      tell(*owner, call);
    } catch (const std::bad_alloc&) {
      log_event("connection: its owner has no memory to hear of it");
    }
    lock.lock();
    calling_ = false;
  }
  lock.unlock();
  if (displaced != nullptr) displaced->stop_draining();
  if (listener != nullptr) listener->half_open_done(shared(), complete);
  if (pumped != nullptr) pumped->stream().on_edge(0);
}

}  // namespace uwarp
