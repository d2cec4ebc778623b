// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Turns of the pump.
#include "stream/stream.h"

#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <numeric>

#include "base/thread_own.h"
#include "base/tuning.h"
#include "observe/capture.h"
#include "stream/poller.h"

namespace uwarp {

namespace {

constexpr uint32_t kHangUpEvents = EPOLLRDHUP | EPOLLHUP | EPOLLERR;
/// Outcomes that end a receive turn.
constexpr uint32_t kStopping = kRxRnrBlocked | kRxFailed | kRxTerminated;

/// The staging buffer of this thread; a queue pair may keep it, then the next is another. It is
/// null without memory for one.
StagingPointer& own_staging() {
  auto& staging = thread_own<StagingPointer>();
  if (staging == nullptr) [[unlikely]]
    staging.reset(new (std::nothrow) StagingBuffer);
  return staging;
}

}  // namespace

void Stream::attach(const Ends& ends, PollGroup& first, PollGroup* second) {
  // What may fail comes first. A group finds nothing in a stream that is not attached.
  std::unique_ptr<StreamWire> wire;
  if (ends.link != nullptr) wire = std::make_unique<StreamWire>(*ends.link, &ends.in == &ends.out);
  groups_[0] = &first;
  groups_[1] = second;
  first.add(*this);
  try {
    if (second != nullptr) second->add(*this);
  } catch (...) {
    first.remove(*this);
    throw;
  }
  // A member by now, so that what is posted from here on is listed.
  const QueuePair::Exclusive exclusive = qp_.lock_exclusive();
  take_ends(ends, std::move(wire));
  attached_.store(true, std::memory_order_release);
}

void Stream::take_ends(const Ends& ends, std::unique_ptr<StreamWire> wire) {
  tls_ = ends.tls;
  const Path path = wire != nullptr ? Path::kWire : tcp_path();
  reads_by_.store(path, std::memory_order_relaxed);
  writes_by_.store(path, std::memory_order_relaxed);
  wire_takes_.store(false, std::memory_order_relaxed);
  wire_ = std::move(wire);
  in_ = &ends.in;
  out_ = &ends.out;
  capture_ = ends.capture;
  owner_ = &ends.owner;
  const bool watched = qp_.script() != nullptr || wire_ != nullptr;
  watched_.store(watched ? kWatched : 0, std::memory_order_relaxed);
  hang_up_.store(0, std::memory_order_relaxed);
  send_error_.store(0, std::memory_order_relaxed);
  peer_watched_.store(false, std::memory_order_relaxed);
  ended_.store(false, std::memory_order_relaxed);
  resume_due_.store(false, std::memory_order_relaxed);
  full_.store(false, std::memory_order_relaxed);
  receives_large_.store(false, std::memory_order_relaxed);
  finds_ = 0;
  ring_ = nullptr;
  gate_ = nullptr;
  gate_due_ = false;
  receives_by_ring_.store(false, std::memory_order_relaxed);
  sends_by_ring_.store(false, std::memory_order_relaxed);
  until_busy_.store(0, std::memory_order_relaxed);
  waiting_.reset(groups_[1] != nullptr);
  if (tls_ != nullptr) note_kept();
}

void Stream::detach() {
  {
    const QueuePair::Exclusive exclusive = qp_.lock_exclusive();
    if (quiet()) set_muted(false);
    const bool was_attached = attached_.exchange(false, std::memory_order_acq_rel);
    // What was sent would have arrived after the end of the connection, too.
    if (was_attached && wire_ != nullptr) empty_wire();
    if (was_attached && tls_ != nullptr) (void)tls_->flush();
    tls_ = nullptr;
    // The ring stays for a poller that has the stream from a list, as the socket does.
    if (was_attached && ring_ != nullptr) {
      ring_->withdraw();
      ring_->set_socket(-1);
      qp_.lend(nullptr);
      qp_.reach(nullptr);
      qp_.close_gate();
      gate_due_ = false;
      if (gate_ != nullptr && !gate_->uses(TargetGate::kAnything)) gate_ = nullptr;
      sends_by_ring_.store(false, std::memory_order_relaxed);
    }
  }
  // No turn begins any more, and none lists the stream. A poller may still have it from a list.
  for (PollGroup* group : groups_)
    if (group != nullptr) group->remove(*this);
}

// A group finds a stream by groups_, so it joins behind that.
void Stream::join(PollGroup& group) {
  {
    const QueuePair::Exclusive exclusive = qp_.lock_exclusive();
    if (!attached() || groups_[1] != nullptr || groups_[0] == &group) return;
    groups_[1] = &group;
  }
  try {
    group.add(*this);
  } catch (...) {
    const QueuePair::Exclusive exclusive = qp_.lock_exclusive();
    groups_[1] = nullptr;
    throw;
  }
}

void Stream::leave(PollGroup& group) {
  if (groups_[1] != &group) return;
  group.remove(*this);
  const QueuePair::Exclusive exclusive = qp_.lock_exclusive();
  groups_[1] = nullptr;
}

// Events that are lost would leave the stream without an end.
void Stream::notify_owner(StreamEvents& notice) {
  const std::shared_ptr<StreamOwner> owner = std::move(notice.owner);
  try {
    owner->on_events(notice);
  } catch (const std::bad_alloc&) {
    owner->out_of_memory();
  }
}

void Stream::name_owner(StreamEvents& notice) {
  if (notice.owner == nullptr) notice.owner = owner_->shared_owner();
}

// Under the group's lock, so the socket stays: detach() leaves the groups last. Reads and atomics
// are mostly answered by the peer's helper thread, which takes its turns by itself.
bool Stream::shares_core() const {
  if (!attached() || qp_.awaits_answers()) return false;
  return incoming_cpu() == sched_getcpu();
}

bool Stream::peer_elsewhere() const {
  if (!attached()) return false;
  const int own = sched_getcpu(), peer = incoming_cpu();
  return own >= 0 && peer >= 0 && peer != own;
}

// A poller may ask that never had the receive side.
int Stream::incoming_cpu() const {
  const bool ring = receives_by_ring_.load(std::memory_order_acquire);
  return ring ? ring_->incoming_cpu() : in_->incoming_cpu();
}

int Stream::waker_core() {
  const auto receive = qp_.receive_side().lock_exclusive();
  return attached() ? incoming_cpu() : -1;
}

// --- The carrier

bool Stream::join_ring(RingCarrier& ring) {
  const QueuePair::Exclusive exclusive = qp_.lock_exclusive();
  if (!attached() || ring_ != nullptr || ended() || qp_.receiver().closed()) return false;
  ring_ = &ring;
  // What is sent over a wire is copied, and Reads tell as late as they should what has been placed.
  if (wire_ != nullptr) return true;
  qp_.lend(&ring);
  if (qp_.wants_placed()) ring.want_placed();
  if (in_ != out_ || capture_ != nullptr || !qp_.may_go_directly()) return true;
  qp_.reach(&ring);
  gate_ = ring.gate();
  gate_due_ = true;
  ring.set_socket(in_->fd());
  return true;
}

// All has been read. The peer begins with its own copies once it has been told so, and all that
// came before by TCP is done.
void Stream::note_drained() {
  tell_placed();
  if (qp_.receiver().rnr_blocked() || qp_.receiver().mid_message() || wire_ != nullptr) return;
  ring_->note_placed();
  if (!gate_due_ || !ring_->may_open_gate()) return;
  gate_due_ = false;
  qp_.open_gate(*gate_);
}

void Stream::tell_placed() {
  const Receiver& receiver = qp_.receiver();
  if (receiver.closed()) return;
  const uint64_t bytes = receiver.done_bytes() - before_ring_;
  if (wire_ != nullptr) return tell_placed_later(bytes);
  if (ring_->tell_placed(bytes)) qp_.note_told_placed();
}

// The peer may tell it before this side is told to read the ring.
inline void Stream::take_placed(size_t& received, bool& answer) {
  if (ring_ == nullptr || !ring_->peer_placed()) return;
  qp_.receiver().note_acknowledged();
  received += sizeof(uint64_t);  // news, like an answer to a Read
  answer = true;
}

void Stream::shut_out_peer() {
  std::shared_ptr<AccessGate> gate;
  {
    const QueuePair::Exclusive exclusive = qp_.lock_exclusive();
    gate = std::move(gate_);
    gate_due_ = false;
    qp_.close_gate();
  }
  if (gate != nullptr) gate->wait(TargetGate::kAnything);
}

void Stream::await_peer() {
  std::shared_ptr<AccessGate> gate;
  {
    const auto receive = qp_.receive_side().lock_exclusive();
    gate = gate_;
  }
  if (gate != nullptr) gate->wait(TargetGate::kAnything);
}

bool Stream::trim_ring() {
  const auto transmit = qp_.transmit_side().lock_exclusive();
  if (!attached() || ring_ == nullptr) return true;
  if (!ring_->trim()) return false;
  until_busy_.store(1, std::memory_order_relaxed);
  return true;
}

inline ssize_t Stream::read(std::span<const iovec> buffer, StreamEvents& notice) {
  return uses_socket(reads_by_) ? in_->receive(buffer) : read_past_socket(buffer, notice);
}

inline ssize_t Stream::read_past_socket(std::span<const iovec> buffer, StreamEvents& notice) {
  const Path path = reads_by_.load(std::memory_order_relaxed);
  if (path == Path::kTls) return tls_->receive(buffer);
  return path == Path::kRing ? read_ring(buffer) : read_wire(buffer, notice);
}

inline ssize_t Stream::read_carrier(std::span<const iovec> buffer) {
  if (on_ring()) return read_ring(buffer);
  return tls_ != nullptr ? tls_->receive(buffer) : in_->receive(buffer);
}

ssize_t Stream::read_ring(std::span<const iovec> buffer) {
  const bool ends = hang_up_.load(std::memory_order_acquire) != 0;
  const ssize_t count = ends ? ring_->receive_to_end(buffer, *in_) : ring_->receive(buffer);
  return count == -EPROTO ? -ECONNRESET : count;
}

inline ssize_t Stream::write(std::span<const iovec> bytes) {
  return uses_socket(writes_by_) ? out_->send(bytes) : write_past_socket(bytes);
}

inline ssize_t Stream::write_past_socket(std::span<const iovec> bytes) {
  const Path path = writes_by_.load(std::memory_order_relaxed);
  if (path == Path::kTls) return write_tls(bytes);
  return path == Path::kRing ? write_ring(bytes) : write_wire(bytes);
}

inline ssize_t Stream::write_carrier(std::span<const iovec> bytes) {
  if (sends_by_ring_.load(std::memory_order_relaxed)) return write_ring(bytes);
  return tls_ != nullptr ? write_tls(bytes) : out_->send(bytes);
}

// A peer that has ended reads nothing any more. TCP would take what is sent to it all the same.
ssize_t Stream::write_ring(std::span<const iovec> bytes) {
  if (ended()) {
    ring_->withdraw();
    return std::accumulate(
        bytes.begin(), bytes.end(), ssize_t{0},
        [](ssize_t sum, const iovec& part) { return sum + static_cast<ssize_t>(part.iov_len); });
  }
  const ssize_t count = ring_->send(bytes);
  return count == -EPROTO ? -ECONNRESET : count;
}

// --- By TLS. Records for which the socket has no room are kept, and go first once it has. Until
// then the stream is full.

ssize_t Stream::write_tls(std::span<const iovec> bytes) {
  const ssize_t sent = tls_->send(bytes);
  note_kept();
  return sent;
}

void Stream::note_kept() {
  const bool noted = (watched_.load(std::memory_order_relaxed) & kRecordsWait) != 0;
  const ssize_t kept = tls_->kept();
  if (kept != 0) full_.store(true, std::memory_order_release);
  if (noted != (kept != 0)) watched_.fetch_xor(kRecordsWait, std::memory_order_acq_rel);
  // No edge will say that the kernel has memory again.
  if (kept == -ENOBUFS || kept == -ENOMEM) owner_->schedule();
}

// --- Over a wire

ssize_t Stream::read_wire(std::span<const iovec> buffer, StreamEvents& notice) {
  if (qp_.peer_delays()) wire_->pass_input();
  const uint64_t placed = wire_->take_placed(now_ns());
  if (placed != 0 && ring_->tell_placed(placed)) qp_.note_told_placed();
  const ssize_t count = wire_->receive(
      buffer, now_ns, [this](std::span<const iovec> place) { return read_carrier(place); });
  if (wire_->input_wake_changed()) name_owner(notice);
  return count;
}

// The turn that follows has a time set for it.
void Stream::tell_placed_later(uint64_t bytes) {
  if (ring_->peer_wants_placed() && wire_->note_placed(bytes, now_ns())) owner_->schedule();
}

ssize_t Stream::write_wire(std::span<const iovec> bytes) { return wire_->enter(bytes, now_ns()); }

// To the socket or ring, what the wire has carried.
void Stream::hand_over(StreamEvents& notice) {
  for (;;) {
    if (wire_->take_switch()) change_carrier();
    const std::span<const iovec> pieces = wire_->carried(now_ns());
    if (pieces.empty()) {
      if (!wire_->switch_due()) return;
      continue;
    }
    const ssize_t sent = write_carrier(pieces);
    if (sent > 0) {
      wire_->handed_over(static_cast<size_t>(sent));
    } else if (sent == -EAGAIN || sent == 0) {
      return wire_->note_full();
    } else if (sent == -ENOBUFS || sent == -ENOMEM) {
      return owner_->schedule();
    } else {
      wire_->fail(sent);
      return note_send_error(sent, notice);
    }
  }
}

// What is on the wire makes the stream look full to pollers, so that they ask space_came().
void Stream::end_wire_turn() {
  const bool busy = wire_->end_turn(now_ns());
  wire_takes_.store(!wire_->queue_full(), std::memory_order_release);
  if (busy) full_.store(true, std::memory_order_release);
}

void Stream::empty_wire() {
  wire_->hurry();
  StreamEvents ignored;
  hand_over(ignored);
}

void Stream::change_carrier() {
  sends_by_ring_.store(ring_ != nullptr, std::memory_order_release);
  if (wire_ == nullptr) writes_by_.store(ring_ != nullptr ? Path::kRing : tcp_path());
  if (tls_ != nullptr && ring_ != nullptr) tls_->leave();
}

void Stream::on_wire_deadline() {
  wire_->begin_deadline();
  StreamEvents notice;
  (void)receive(notice, true);
  transmit_turns(notice);
  deliver(notice);
}

bool Stream::wire_is_full() const { return wire_ != nullptr && !wire_->has_space(now_ns()); }

void Stream::hurry() {
  auto turn = qp_.transmit_side().begin();
  if (!turn) return;
  if (attached() && wire_ != nullptr) empty_wire();
  (void)turn.end();
}

// Two sides may count at once, and lose a turn or two.
void Stream::note_turn(StreamEvents& notice) {
  const int32_t left = until_busy_.load(std::memory_order_relaxed);
  if (left == 0) return;
  until_busy_.store(left - 1, std::memory_order_relaxed);
  if (left != 1) return;
  notice.busy = true;
  name_owner(notice);
}

// --- Transmit
// -------------------------------------------------------------------------------------

void Stream::transmit() {
  StreamEvents notice;
  transmit_turns(notice);
  deliver(notice);
}

// As with the flags below: read by a read-modify-write after the post.
bool Stream::still_full() {
  if (wire_takes_.load(std::memory_order_acquire)) return false;
  bool expected = true;
  // No edge comes behind the end of an unreliable queue pair, which goes on.
  return full_.compare_exchange_strong(expected, true) && !qp_.flush_due() && !ended();
}

void Stream::transmit_soon() {
  std::shared_ptr<StreamOwner> timed;
  const AfterTurn after = waiting_.announce(qp_.transmit_side(), attached_, [&](uint8_t senders) {
    if ((senders & WaitingFlags::kGroup) != 0) groups_[0]->add_waiting(*this);
    if ((senders & WaitingFlags::kSecondGroup) != 0) groups_[1]->add_waiting(*this);
    if ((senders & WaitingFlags::kTimer) != 0) timed = owner_->shared_owner();
  });
  if (timed != nullptr) timed->transmit_before_long();
  if (after == AfterTurn::kCheckAgain) transmit();
}

void Stream::transmit_waiting(const PollGroup& group, StreamEvents& notice) {
  waiting_.take(&group == groups_[1] ? WaitingFlags::kSecondGroup : WaitingFlags::kGroup);
  if (full()) return;
  pace_.waited(span_ns);
  transmit_turns(notice);
  pace_.sent(span_ns());
}

// Nothing is received: that would wait for the thread that is sending, over whose call the kernel
// locks the socket.
void Stream::transmit_overdue() {
  if ((waiting_.take(WaitingFlags::kTimer) & WaitingFlags::kGroup) != 0) pace_.waited(span_ns);
  if (!full()) transmit();
}

// Delivers nothing: the caller may hold the lock of a poll group.
void Stream::transmit_turns(StreamEvents& notice) {
  while (auto turn = qp_.transmit_side().begin()) {
    if (attached()) transmit_turn(notice);
    if (turn.end() == AfterTurn::kNothing) return;
  }
}

// What waited for room.
void Stream::send_held(StreamEvents& notice) {
  if (tls_ != nullptr) {
    const ssize_t error = tls_->flush();
    note_kept();
    if (error != 0 && error != -EAGAIN && error != -ENOBUFS && error != -ENOMEM)
      note_send_error(error, notice);
  }
  if (wire_ != nullptr) hand_over(notice);
}

void Stream::transmit_turn(StreamEvents& notice) {
  size_t budget_bytes = tuning::kPassBytes;
  if (full_.load(std::memory_order_relaxed)) {
    full_.exchange(false);
    if (wire_ != nullptr || tls_ != nullptr) [[unlikely]]
      send_held(notice);
  }
  for (;;) {
    const std::span<const iovec> iovecs = qp_.transmitter().next_iovecs();
    if (iovecs.empty()) {
      if (qp_.transmitter().unfinished()) [[unlikely]]
        owner_->schedule();
      else if (qp_.transmitter().awaits_placing()) [[unlikely]]
        full_.store(true, std::memory_order_release);  // until the ring is read, as it tells
      break;
    }
    const ssize_t sent = write(iovecs);
    if (sent > 0) {
      count_turn(notice);
      if (capture_ != nullptr) [[unlikely]]
        capture_->sent(iovecs, static_cast<size_t>(sent));
      bool more = qp_.transmitter().sent(static_cast<size_t>(sent));
      if (qp_.transmitter().carrier_change_due()) [[unlikely]] {
        wire_ != nullptr ? wire_->switch_here() : change_carrier();
        qp_.transmitter().carrier_changed();
        more = true;
      }
      if (!peer_watched_.load(std::memory_order_relaxed)) [[unlikely]] {
        peer_watched_.store(true);
        notice.began_to_send = true;
        name_owner(notice);
      }
      if (!more) break;
      if (static_cast<size_t>(sent) >= budget_bytes) {
        owner_->schedule();
        break;
      }
      budget_bytes -= static_cast<size_t>(sent);
    } else if (sent == -EAGAIN) {
      qp_.slot().transmit.waits.add(1);
      sends_large_.store(qp_.transmitter().sends_large(), std::memory_order_relaxed);
      full_.store(true, std::memory_order_release);
      break;  // the next edge says that there is room again
    } else if (sent == -ENOBUFS || sent == -ENOMEM) {
      owner_->schedule();  // no edge will say that the kernel has memory again
      break;
    } else if (sent == -EFAULT) {
      qp_.transmitter().fault();
    } else {
      note_send_error(sent, notice);
      break;
    }
  }
  if (watched_.load(std::memory_order_acquire) != 0 || qp_.flush_due()) [[unlikely]] {
    if (wire_ != nullptr) end_wire_turn();
    name_owner(notice);
  }
}

// The receive direction may still hold what the peer sent before: it reports the end.
void Stream::note_send_error(ssize_t error, StreamEvents& notice) {
  send_error_.store(static_cast<int>(-error), std::memory_order_release);
  hang_up_.fetch_or(EPOLLHUP, std::memory_order_acq_rel);
  name_owner(notice);
}

// --- Receive
// --------------------------------------------------------------------------------------

size_t Stream::receive(StreamEvents& notice, bool from_epoll) {
  HandoffLock& side = qp_.receive_side();
  size_t received = 0;
  bool answer = false;
  // An edge is told only once, so it leaves its mark; a poller comes again.
  auto turn = from_epoll ? side.begin() : side.try_begin();
  if (!turn) return 0;
  for (;;) {
    const Found found = receive_locked(received, answer, notice);
    if (received != 0)
      receives_large_.store(qp_.receiver().expects_large(), std::memory_order_relaxed);
    if (from_epoll) {
      if (received != 0) note_busy();
    } else {
      const bool space = full_.load(std::memory_order_relaxed) && space_came();
      note_poll(received != 0 || space);
      if (on_ring()) note_silence(received != 0);
      answer |= space;
    }
    std::shared_ptr<StreamOwner> unfinished;
    if (found == Found::kMore) unfinished = owner_->shared_owner();
    const AfterTurn after = turn.end();
    if (unfinished != nullptr) {
      // With the side free: who comes for the rest may come at once.
      unfinished->schedule();
      break;
    }
    if (after == AfterTurn::kNothing) break;
    turn = side.begin();
    if (!turn) break;
  }
  if (answer) transmit_turns(notice);
  return received;
}

bool Stream::poll() {
  StreamEvents notice;
  const size_t received = receive(notice);
  deliver(notice);
  return received != 0;
}

bool Stream::take_arrived(StreamEvents& notice) {
  size_t received = 0;
  bool answer = false;
  const auto receive = qp_.receive_side().lock_exclusive();
  (void)receive_locked(received, answer, notice);
  return answer;
}

void Stream::take_arrived() {
  StreamEvents notice;
  (void)take_arrived(notice);
  deliver(notice);
}

// Another thread may have received one, and not have completed what it acknowledges.
void Stream::take_acknowledgements(StreamEvents& notice) {
  SendCompleter& completer = qp_.transmitter().completer();
  if (!completer.in_flight()) return;
  const bool answer = take_arrived(notice);
  {
    const auto transmit = qp_.transmit_side().lock_exclusive();
    if (attached()) completer.retire();
  }
  if (answer) transmit_turns(notice);
}

// Under the receive side.
void Stream::note_busy() {
  for (PollGroup* group : groups_)
    if (group != nullptr) group->note_busy(*this);
}

// Under the receive side.
void Stream::note_poll(bool found) {
  if (quiet()) {
    if (!polled_since_.load(std::memory_order_relaxed))
      polled_since_.store(true, std::memory_order_relaxed);
    return;
  }
  if (!found || ++finds_ < tuning::kFindsBeforeMuted) return;
  finds_ = 0;
  // Connected to itself, it is no TCP connection.
  if (in_ == out_ && !ended() && owner_->request_mute()) set_muted(true);
}

// Under the receive side. The poller waits for an answer. If the peer has not even read the
// question, it is nudged.
inline void Stream::note_silence(bool found) {
  if (found) {
    idle_polls_ = 0;
    nudge_after_ = tuning::kPollsPerNudge;
  } else if (++idle_polls_ >= nudge_after_) [[unlikely]] {
    idle_polls_ = 0;
    nudge_after_ = std::min(2 * nudge_after_, tuning::kPollsPerNudge << 10);
    if (ring_->unread()) ring_->nudge();
  }
}

void Stream::set_muted(bool on) {
  on_ring() ? ring_->set_muted(on) : in_->set_muted(on);
  polled_since_.store(true, std::memory_order_relaxed);
  quiet_.store(on, std::memory_order_relaxed);
}

void Stream::unmute() {
  const auto receive = qp_.receive_side().lock_exclusive();
  if (attached() && quiet()) set_muted(false);
}

bool Stream::polled_since() {
  return quiet() && polled_since_.exchange(false, std::memory_order_relaxed);
}

void Stream::on_edge(uint32_t events) {
  // A ring's bell does not say what for.
  if ((events & EPOLLRDNORM) != 0)
    events = sends_by_ring_.load(std::memory_order_relaxed) ? EPOLLIN | EPOLLOUT : EPOLLIN;
  if (events == 0 && resume_due_.exchange(false)) resume();
  if ((events & kHangUpEvents) != 0)
    hang_up_.fetch_or(events & kHangUpEvents, std::memory_order_acq_rel);
  StreamEvents notice;
  // Told only of room to write, it finds nothing, and would wait while another thread is in a send
  // call, over which the kernel locks the socket.
  if (events != EPOLLOUT) (void)receive(notice, true);
  if ((events & kHangUpEvents) != 0 && (qp_.receiver().rnr_blocked() || ended())) {
    // Nothing is read now, but the end must be noticed, or a reset behind it.
    const auto receive = qp_.receive_side().lock_exclusive();
    if (attached()) name_owner(notice);
  }
  deliver(notice);
  // A revisit (no events) comes from a turn of either direction that ran out of its budget. What
  // the transmit side owes then may be no more than an acknowledgement, which only it knows.
  // Readiness to write is part of every edge, so it alone says little.
  if (events == 0 || ((events & EPOLLOUT) != 0 && (qp_.transmitter().wanted() ||
                                                   watched_.load(std::memory_order_acquire) != 0)))
    transmit();
}

void Stream::resume() {
  StreamEvents notice;
  bool answer = false;
  bool more;
  {
    const auto receive = qp_.receive_side().lock_exclusive();
    if (!attached() || !qp_.receiver().rnr_blocked()) return;
    StagingPointer& staging = own_staging();
    if (staging == nullptr) [[unlikely]] {
      resume_due_.store(true);
      return owner_->schedule();
    }
    more = !take_outcome(qp_.receiver().resume(staging), answer, notice) ||
           qp_.receiver().reads_ahead();
  }
  if (more) (void)receive(notice, true);
  if (answer) transmit_turns(notice);
  deliver(notice);
}

void Stream::expire() {
  StreamEvents notice;
  bool answer = false;
  {
    const auto receive = qp_.receive_side().lock_exclusive();
    if (!attached() || !qp_.receiver().rnr_blocked()) return;
    take_outcome(qp_.receiver().expire(), answer, notice);
  }
  deliver(notice);
  resume();  // where the message is dropped
}

Stream::Found Stream::receive_locked(size_t& received, bool& answer, StreamEvents& notice) {
  if (!attached() || ended()) return Found::kStopped;
  size_t budget_bytes = tuning::kPassBytes;
  for (;;) {
    const bool rnr_blocked = qp_.receiver().rnr_blocked();
    if (rnr_blocked && !qp_.receiver().reads_ahead()) [[unlikely]] {
      // The receive that is missing may be posted only once our own requests have completed.
      if (on_ring()) ring_->await_peer_placed();
      take_placed(received, answer);
      return Found::kStopped;
    }
    if (qp_.receiver().closed()) [[unlikely]] {
      if (wire_ != nullptr) wire_->drop_input();
      const ssize_t dropped = in_->discard(budget_bytes);
      if (dropped > 0) return Found::kMore;
      if (dropped != -EAGAIN) take_end(dropped, notice);
      return Found::kStopped;
    }
    StagingPointer& staging = own_staging();
    if (staging == nullptr) [[unlikely]]
      return Found::kMore;  // an edge is told only once
    const std::span<const iovec> iovecs = qp_.receiver().next_iovecs(staging);
    const ssize_t count = read(iovecs, notice);
    take_placed(received, answer);  // what has been read may be the answer to that
    if (count <= 0) {
      if (count == -EAGAIN) {
        if (on_ring() && (gate_due_ || ring_->unplaced())) note_drained();
        return Found::kDrained;
      }
      if (rnr_blocked) {
        note_end_while_rnr_blocked(count, notice);
        return Found::kStopped;
      }
      if (count == -EFAULT) {
        take_outcome(qp_.receiver().fault(), answer, notice);
      } else {
        take_end(count, notice);
      }
      return Found::kStopped;
    }
    count_turn(notice);
    const auto bytes = static_cast<size_t>(count);
    received += bytes;
    // The peer may have read what it answers out of our memory.
    if (sends_by_ring_.load(std::memory_order_acquire) && ring_->may_give_back()) [[unlikely]]
      qp_.receiver().note_acknowledged();
    if (capture_ != nullptr) [[unlikely]]
      capture_->received(iovecs, bytes);
    const uint32_t outcome = qp_.receiver().received(staging, bytes);
    if (outcome != kRxNothing && take_outcome(outcome, answer, notice)) {
      if (!qp_.receiver().reads_ahead()) return Found::kStopped;
      continue;
    }
    // Less than there was room for: the socket was empty then, and what comes later makes a new
    // edge. But an end that was announced already makes none, so it is read.
    // A ring says so itself.
    if (bytes < qp_.receiver().next_bytes() && hang_up_.load(std::memory_order_acquire) == 0 &&
        !on_ring())
      return Found::kDrained;
    // In the roce persona the peer's requests wait for that. Else it is told when all has been
    // read.
    if (on_ring() && qp_.wants_placed()) tell_placed();
    if (bytes >= budget_bytes) return Found::kMore;
    budget_bytes -= bytes;
  }
}

// Returns true if the turn is over.
bool Stream::take_outcome(uint32_t outcome, bool& answer, StreamEvents& notice) {
  if ((outcome & kRxTransmitWanted) != 0) answer = true;
  if ((outcome & kRxSwitch) != 0) [[unlikely]]
    receive_by_ring();
  outcome &= ~uint32_t{kRxTransmitWanted};
  if (outcome == 0) return false;
  notice.outcome |= outcome;
  name_owner(notice);
  return (outcome & kStopping) != 0;
}

// A peer that switches to what it has never been given is told nothing, and nothing more is taken
// from it.
void Stream::receive_by_ring() {
  if (ring_ == nullptr || on_ring()) return;
  if (quiet()) in_->set_muted(false);
  before_ring_ = qp_.receiver().done_bytes();
  receives_by_ring_.store(true, std::memory_order_release);
  if (wire_ == nullptr) reads_by_.store(Path::kRing, std::memory_order_relaxed);
  ring_->set_muted(quiet());
}

// What is held keeps its chance: a FIN is read again behind it. An error is told only once.
void Stream::note_end_while_rnr_blocked(ssize_t result, StreamEvents& notice) {
  if (result == 0) return;
  note_send_error(result, notice);
}

void Stream::take_end(ssize_t result, StreamEvents& notice) {
  // A reset that a send has reported already reads as an orderly end afterwards. The thread that
  // sent may not have noted it yet.
  if (result == 0) (void)qp_.transmit_side().lock_exclusive();
  const int error = result < 0 ? static_cast<int>(-result) : send_error_.load();
  if (capture_ != nullptr) capture_->peer_ended(error != 0);
  ended_.store(true, std::memory_order_release);
  // No room comes any more. The next turn drops what waits for it, see write_ring().
  if (sends_by_ring_.load(std::memory_order_relaxed)) owner_->schedule();
  notice.ended = true;
  if (error == 0) {
    notice.end = StreamEnd::kFin;
  } else if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH) {
    notice.end = StreamEnd::kTimeout;
  } else {
    notice.end = StreamEnd::kReset;
  }
  name_owner(notice);
}

}  // namespace uwarp
