// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "datagram/trunk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "connect/connect_context.h"
#include "datagram/trunks.h"
#include "os/clock.h"

namespace uwarp {
namespace {

/// Pause before a peer that could not be reached is dialled again, twice as long each time.
constexpr uint64_t kFirstTrunkPauseNs = 100 * kNsPerMs;
constexpr uint64_t kLongestTrunkPauseNs = 5 * kNsPerSecond;
/// Requests wait no longer for a connection, or for one to move on.
constexpr uint64_t kTrunkStallNs = 250 * kNsPerMs;
/// Lines in a row that may end as soon as they are open before there is a pause.
constexpr uint32_t kBriefConnections = 3;
/// A connection that makes no progress for this time is given up: others lack the memory of its
/// frames.
constexpr uint64_t kTrunkGiveUpNs = 10 * kNsPerSecond;

}  // namespace

Trunk::~Trunk() {
  if (trunks_.context().alive()) drop_all_locked();
}

bool Trunk::idle() {
  const Lock lock(lock_);
  return waiters_ == nullptr && filling_ == nullptr && ready_.empty();
}

bool Trunk::open() {
  const Lock lock(lock_);
  return connection_ != nullptr;
}

bool Trunk::holds(TrunkNonce nonce) {
  const Lock lock(lock_);
  return connection_ != nullptr && connection_->nonce() == nonce;
}

// --- Filling

DatagramPath::Taken Trunk::append(const DatagramHeader& header, BufferList& payload) {
  const Lock lock(lock_);
  if (state_ == State::kUnreachable) {
    if (now_ns() < retry_ns_) return Taken::kDropped;
    state_ = State::kIdle;
  }
  if (filling_ == nullptr || !filling_->has_space(header)) {
    close_frame_locked();
    if (connection_ != nullptr && connection_->wire_is_full()) return Taken::kDropped;
    // Without memory for a frame there is nothing to wait for.
    if (!take_frame_locked())
      return stalled_ || has_space_locked() ? Taken::kDropped : Taken::kFull;
  }
  if (!filling_->append(header, payload)) return Taken::kFault;
  return Taken::kYes;
}

void Trunk::close_frame_locked() {
  if (filling_ == nullptr) return;
  if (filling_->datagrams == 0)
    trunks_.frames().give_back(*filling_);
  else
    ready_.push(*filling_);
  filling_ = nullptr;
}

// False: there is no room, and the time that this may last begins; or no memory.
bool Trunk::take_frame_locked() {
  if (!has_space_locked()) take_done_locked();
  if (has_space_locked()) {
    full_since_ns_ = 0;
    stalled_ = false;
    filling_ = trunks_.frames().take(ready_.size() + in_flight_.size());
    return filling_ != nullptr;
  }
  if (full_since_ns_ == 0) {
    full_since_ns_ = now_ns();
    trunks_.context().progress.set_deadline(*this, full_since_ns_ + kTrunkStallNs);
  }
  return false;
}

size_t Trunk::take_done_locked() {
  const size_t done = connection_ != nullptr ? connection_->take_done() : 0;
  for (size_t left = done; left > 0 && !in_flight_.empty(); --left)
    trunks_.frames().give_back(in_flight_.pop());
  return done;
}

void Trunk::drop_all_locked() {
  close_frame_locked();
  trunks_.frames().give_back(std::exchange(ready_, {}));
  trunks_.frames().give_back(std::exchange(in_flight_, {}));
}

// --- Sending

void Trunk::post_locked(uint32_t& frames, uint64_t& bytes) {
  while (!ready_.empty()) {
    Frame& frame = ready_.front();
    if (!connection_->post(frame)) break;
    in_flight_.push(ready_.pop());
    ++frames;
    bytes += frame.size;
  }
}

// Asks for an event of done frames, if a queue pair waits for room or frames wait to be posted.
// True: some are done already.
bool Trunk::ask_for_done_locked() {
  return (waiters_ != nullptr || !ready_.empty()) && !in_flight_.empty() &&
         !connection_->ask_for_done();
}

void Trunk::flush() {
  for (;;) {
    std::shared_ptr<TrunkConnection> connection;
    uint32_t frames = 0;
    uint64_t bytes = 0;
    {
      const Lock lock(lock_);
      if (state_ == State::kIdle && (filling_ != nullptr || !ready_.empty())) {
        state_ = State::kCalling;
        calling_ = 0;  // an earlier call that ends now must not fail this one
      } else {
        if (state_ != State::kOpen) return;
        close_frame_locked();
        post_locked(frames, bytes);
        connection = connection_;
      }
    }
    if (connection == nullptr) return begin_call();
    if (frames != 0) connection->pump(frames, bytes);
    std::shared_ptr<DatagramWaiter> waiters;
    bool again;
    {
      const Lock lock(lock_);
      if (connection_ != connection) return;
      const size_t done = take_done_locked();
      if (has_space_locked()) waiters = take_waiters_locked();
      // A connection that takes nothing any more is about to end.
      again = (frames != 0 || done != 0) && !ready_.empty();
      if (!again) again = ask_for_done_locked();
    }
    wake(std::move(waiters));
    if (!again) return;
  }
}

void Trunk::flush_soon() { trunks_.context().progress.revisit(*this); }

bool Trunk::wait_for_space(std::shared_ptr<DatagramWaiter> waiter) {
  {
    const Lock lock(lock_);
    take_done_locked();
    if (has_space_locked() || stalled_ || state_ == State::kUnreachable) return false;
    waiter->next_waiting = std::move(waiters_);
    waiters_ = std::move(waiter);
    if (state_ != State::kOpen) return true;  // connection_open() or connection_over() comes
    if (!ask_for_done_locked()) return true;
  }
  flush_soon();
  return true;
}

// There is room.
std::shared_ptr<DatagramWaiter> Trunk::take_waiters_locked() {
  full_since_ns_ = 0;
  stalled_ = false;
  return std::move(waiters_);
}

void Trunk::wake(std::shared_ptr<DatagramWaiter> waiters) {
  while (waiters != nullptr) {
    const auto waiter = std::exchange(waiters, std::move(waiters->next_waiting));
    waiter->space_came();
  }
}

bool Trunk::ready(uint32_t) {
  flush();
  return false;
}

// It has been full for long, or was and is not any more.
void Trunk::deadline_passed() {
  std::shared_ptr<DatagramWaiter> waiters;
  std::shared_ptr<TrunkConnection> dead;
  {
    const Lock lock(lock_);
    take_done_locked();
    if (full_since_ns_ == 0) return;
    if (has_space_locked()) {
      waiters = take_waiters_locked();
    } else {
      Progress& progress = trunks_.context().progress;
      const uint64_t full_ns = now_ns() - full_since_ns_;
      if (full_ns < kTrunkStallNs)
        return progress.set_deadline(*this, full_since_ns_ + kTrunkStallNs);
      stalled_ = true;
      waiters = std::move(waiters_);
      if (full_ns < kTrunkGiveUpNs)
        progress.set_deadline(*this, full_since_ns_ + kTrunkGiveUpNs);
      else
        dead = connection_;
    }
  }
  wake(std::move(waiters));
  if (dead != nullptr) dead->give_up(-ETIMEDOUT);
}

// --- Lines

void Trunk::begin_call() {
  const TrunkNonce nonce = draw_nonce();
  {
    const Lock lock(lock_);
    if (state_ != State::kCalling) return;  // the peer was first
    calling_ = nonce;
  }
  call(nonce, false);
}

void Trunk::call(TrunkNonce nonce, bool replaces) {
  int error;
  try {
    auto self = std::static_pointer_cast<Trunk>(shared_from_this());
    const auto made = TrunkConnection::call(trunks_, std::move(self), nonce, replaces);
    if (made) return;
    error = made.error();
  } catch (const std::bad_alloc&) {
    error = ENOMEM;
  }
  call_over(nonce, -error);
}

void Trunk::prove_again(TrunkConnection& connection) {
  const TrunkNonce nonce = connection.nonce();
  {
    const Lock lock(lock_);
    if (connection_.get() != &connection || calling_ != 0 || nonce == 0) return;
    calling_ = nonce;
  }
  call(nonce, true);
}

void Trunk::connection_open(std::shared_ptr<TrunkConnection> connection) {
  // If either end could become the connection, the end that opens later might do so after the other
  // one has been closed, and its datagrams would be lost.
  if (connection->only_receives()) return;
  std::shared_ptr<TrunkConnection> retired;
  {
    const Lock lock(lock_);
    connection->set_known();
    if (connection_ != nullptr) {
      if (!connection->replaces()) return;  // two called each other: the first connection stays
      take_done_locked();
      retired = std::move(connection_);
      retired->keep_frames(std::exchange(in_flight_, {}));
    }
    connection_ = std::move(connection);
    state_ = State::kOpen;
    open_since_ns_ = now_ns();
  }
  if (retired != nullptr) retired->retire();
  flush();
}

// It is left alone for a while. True: the log is to be told.
bool Trunk::pause_locked() {
  state_ = State::kUnreachable;
  pause_ns_ = std::clamp(2 * pause_ns_, kFirstTrunkPauseNs, kLongestTrunkPauseNs);
  retry_ns_ = now_ns() + pause_ns_;
  return !std::exchange(logged_, true);
}

void Trunk::log_pause(int status) {
  const char* why = std::strerror(-status);
  if (status == 0) why = "each call is ended at once";
  if (status == -ESRCH) why = "its process has no queue pair for datagrams";
  if (status == -EPROTONOSUPPORT) why = "its uwarp has another version of trunks";
  if (status == -ETIMEDOUT) why = "it does not answer, or cannot call this host back";
  log_event("datagrams to %s, port %u, are dropped for now: %s", key.peer.to_string().c_str(),
            key.port, why);
}

void Trunk::connection_over(const TrunkConnection& connection, int status) {
  std::shared_ptr<DatagramWaiter> waiters;
  std::shared_ptr<TrunkConnection> gone;
  bool log_it = false;
  const bool wanted = trunks_.in_use();  // else all connections end
  {
    const Lock lock(lock_);
    if (connection_.get() != &connection) return;
    gone = std::move(connection_);
    drop_all_locked();
    state_ = State::kIdle;
    if (now_ns() - open_since_ns_ >= kFirstTrunkPauseNs) {
      brief_ = 0;
      pause_ns_ = 0;
      logged_ = false;
    } else if (wanted) {
      ++brief_;
    }
    // A peer that takes each call and ends it at once is not called for each datagram.
    if (status != 0 || brief_ > kBriefConnections) log_it = pause_locked();
    waiters = take_waiters_locked();
  }
  if (log_it) log_pause(status);
  wake(std::move(waiters));
}

bool Trunk::connection_closing(TrunkConnection& connection) {
  std::shared_ptr<DatagramWaiter> waiters;
  std::shared_ptr<TrunkConnection> closing;
  uint32_t frames = 0;
  uint64_t bytes = 0;
  {
    const Lock lock(lock_);
    if (!connection.known()) return false;
    if (connection_.get() != &connection) return true;
    take_done_locked();
    close_frame_locked();
    post_locked(frames, bytes);
    closing = std::move(connection_);
    closing->keep_frames(std::exchange(in_flight_, {}));
    state_ = State::kIdle;
    waiters = take_waiters_locked();
  }
  if (frames != 0) closing->pump(frames, bytes);
  wake(std::move(waiters));
  return true;
}

void Trunk::call_over(TrunkNonce nonce, int status) {
  std::shared_ptr<DatagramWaiter> waiters;
  std::shared_ptr<TrunkConnection> left;
  bool log_it = false;
  bool again = false;
  const bool wanted = trunks_.in_use();
  {
    const Lock lock(lock_);
    if (calling_ != nonce) return;
    calling_ = 0;
    // The call was for queue pairs that are gone. Those of now are there, and need not wait.
    const bool outdated = status == -ESRCH && key.to_itself();
    again = state_ == State::kCalling && outdated && wanted;
    if (again) {
      state_ = State::kIdle;
    } else if (state_ == State::kCalling) {
      drop_all_locked();
      waiters = take_waiters_locked();
      state_ = State::kIdle;
      if (!outdated) log_it = pause_locked();
    } else if (connection_ != nullptr && connection_->nonce() == nonce &&
               (status == -ECONNREFUSED || status == -ESRCH || status == -EADDRNOTAVAIL)) {
      left = connection_;  // one of its two ports is no longer there
    }
  }
  if (log_it) log_pause(status);
  if (again) flush_soon();
  wake(std::move(waiters));
  if (left != nullptr) left->close();
}

}  // namespace uwarp
