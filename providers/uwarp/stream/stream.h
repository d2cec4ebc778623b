// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The pump between the socket of a connection and a queue pair while FPDUs flow: the hot path of
// everything. Part of an Endpoint, so that posting and polling reach it without a reference count.
// Rare events (first message, hold, failure, end) are collected in StreamEvents and passed to the
// Connection once the caller holds no lock.
//
// Guarded by the queue pair's two sides: a thread that holds one uses the pointers below while
// attached() is true, which changes only while a thread holds both.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/tuning.h"
#include "carrier/ring_carrier.h"
#include "carrier/tcp_socket.h"
#include "carrier/tls_stream.h"
#include "os/call_cost.h"
#include "os/clock.h"
#include "qp/qp_config.h"
#include "qp/queue_pair.h"
#include "stream/stream_wire.h"
#include "stream/waiting_streams.h"

namespace uwarp {

// The owner of a stream, as the stream knows it: the connection, which handles rare events.
struct StreamEvents;

class StreamOwner {
 public:
  virtual ~StreamOwner() = default;
  /// Keeps the owner alive. Under locks of the queue pair.
  virtual std::shared_ptr<StreamOwner> shared_owner() = 0;
  /// Without locks of the queue pair, after the turn that found them.
  virtual void on_events(const StreamEvents& events) = 0;
  /// The same, where on_events() found no memory.
  virtual void out_of_memory() = 0;
  /// Another turn is wanted soon. Under locks of the queue pair.
  virtual void schedule() = 0;
  /// See Progress::mute(). Under the receive side of the queue pair.
  virtual bool request_mute() = 0;
  /// Something waits to be sent, and perhaps no thread will poll: it goes out within kPostWaitNs,
  /// or Polling::late_ns if a thread polled until then. Without locks.
  virtual void transmit_before_long() = 0;
};

/// What a turn has found for the owner to deal with, outside the stream's locks.
struct StreamEvents {
  std::shared_ptr<StreamOwner> owner;  // null: nothing
  uint32_t outcome = 0;                // ReceiveOutcome bits that the owner must handle
  bool ended = false;                  // the receive direction is over, by `end`
  StreamEnd end = StreamEnd::kFin;
  bool busy = false;           // Stream::notify_when_busy()
  bool began_to_send = false;  // the peer owes acknowledgements, and is not watched yet
};

// Whether what has been posted goes out at once or waits for more. A system call costs as much as
// posting twenty small messages. A thread that posts one right after the other pays it once for
// several, and so does a thread that polls for outstanding answers. A thread that posts now and
// then is never made to wait. Time in, decision out.

/// What one call has posted.
struct Posted {
  uint32_t messages = 0;
  uint64_t bytes = 0;      // of payload, with which it goes out, in all
  uint64_t second_ns = 0;  // when the second of several was posted; 0: not known

  /// One more; the caller adds its bytes. `clock()` is the time in ns.
  template <typename Clock>
  void add(Clock clock) {
    if (++messages == 2) second_ns = clock();
  }
};

/// One per queue pair. Any thread; threads that post at once may blur the figures, not the outcome.
class PostCoalescer {
 public:
  /// A system call takes `call_ns`.
  explicit PostCoalescer(uint64_t call_ns = 0)
      : dense_gap_ns_(tuning::kDenseGapNs + tuning::kDenseCalls * call_ns) {}

  /// `posted` has just been posted; `clock()` is the time in ns; `answers_due`: the peer owes
  /// answers, for which the application must poll. True if it may wait; otherwise the caller
  /// transmits and calls sent().
  template <typename Clock>
  bool may_wait(Clock clock, const Posted& posted, bool answers_due) {
    const uint32_t run = run_.load(std::memory_order_relaxed);
    const bool poll_near = answers_due && expects_poll();
    const uint64_t now_ns = clock();
    // The gap is before the call. To post a long list takes longer than a gap.
    const uint64_t begun_ns = posted.second_ns != 0 ? posted.second_ns : now_ns;
    const uint64_t gap_ns = begun_ns - last_ns_.load(std::memory_order_relaxed);
    last_ns_.store(now_ns, std::memory_order_relaxed);
    // A thread that sent in bulk a moment ago will do so again, but this post may be the last now.
    const bool dense = gap_ns <= dense_gap_ns_ && run >= tuning::kDenseRun;
    if (gap_ns > dense_gap_ns_)
      run_.store(run / 2, std::memory_order_relaxed);
    else if (run < tuning::kDenseRun)
      run_.store(run + 1, std::memory_order_relaxed);
    if (!(dense || poll_near) || posted.bytes > tuning::kLargePostBytes) return false;
    const uint32_t waiting = messages_.load(std::memory_order_relaxed) + posted.messages;
    const uint64_t waiting_bytes = bytes_.load(std::memory_order_relaxed) + posted.bytes;
    if (waiting >= tuning::kWaitingMessages || waiting_bytes >= tuning::kPassBytes) return false;
    messages_.store(waiting, std::memory_order_relaxed);
    bytes_.store(waiting_bytes, std::memory_order_relaxed);
    if (!dense) for_poll_.store(true, std::memory_order_relaxed);
    return true;
  }

  /// Bytes of payload that go out with the next post that may not wait.
  uint64_t waiting_bytes() const { return bytes_.load(std::memory_order_relaxed); }
  /// What waited is about to go: a thread polls, or its time is over.
  template <typename Clock>
  void waited(Clock clock) {
    if (!for_poll_.load(std::memory_order_relaxed)) return;
    for_poll_.store(false, std::memory_order_relaxed);
    if (clock() - last_ns_.load(std::memory_order_relaxed) <= tuning::kPromptNs) {
      next_at_once_.store(tuning::kFewestAtOnce, std::memory_order_relaxed);
      return;
    }
    const uint32_t count = next_at_once_.load(std::memory_order_relaxed);
    at_once_.store(count, std::memory_order_relaxed);
    next_at_once_.store(std::min(2 * count, tuning::kMostAtOnce), std::memory_order_relaxed);
  }
  /// All that had been posted has been handed over.
  void sent(uint64_t now_ns) {
    last_ns_.store(now_ns, std::memory_order_relaxed);
    messages_.store(0, std::memory_order_relaxed);
    bytes_.store(0, std::memory_order_relaxed);
  }

 private:
  bool expects_poll() {
    const uint32_t left = at_once_.load(std::memory_order_relaxed);
    if (left == 0) [[likely]]
      return true;
    at_once_.store(left - 1, std::memory_order_relaxed);
    return false;
  }

  const uint64_t dense_gap_ns_;
  std::atomic<uint64_t> last_ns_{0};  // end of the last post
  std::atomic<uint32_t> run_{0};      // posts in a row, each right after the one before
  std::atomic<uint32_t> messages_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<bool> for_poll_{false};  // something waits only because a poll is expected
  std::atomic<uint32_t> at_once_{tuning::kFewestAtOnce};  // posts that no poll is expected for
  std::atomic<uint32_t> next_at_once_{2 * tuning::kFewestAtOnce};
};

class CapturedConnection;
class PollGroup;

class Stream {
 public:
  explicit Stream(QueuePair& qp) : qp_(qp) {}

  /// What it pumps between: `in` and `out` are the same socket, except for a queue pair connected
  /// to itself; `capture` is null unless the connection is captured, `tls` unless it is protected.
  /// All stay valid until detach() returns. `link` is null unless UWARP_FAULT orders a wire to this
  /// peer.
  struct Ends {
    StreamOwner& owner;
    TcpSocket& in;
    TcpSocket& out;
    CapturedConnection* capture;
    TlsStream* tls = nullptr;
    std::shared_ptr<WireLink> link = nullptr;
  };
  /// Starts pumping between `ends` and the queue pair; joins the groups (`second` may be null).
  /// Throws std::bad_alloc, and has done nothing then; nothing throws it later.
  void attach(const Ends& ends, PollGroup& first, PollGroup* second);
  /// Stops. On return no thread is in a turn or will begin one, and none uses the stream from a
  /// list of its groups. Call without locks of the queue pair and outside a turn.
  void detach();
  /// From now on the pollers of `group` drive it, too. It must have been attached with one group.
  /// Does nothing if it has joined another one. Throws std::bad_alloc. Like leave(), not inside a
  /// turn, and one call at a time.
  void join(PollGroup& group);
  /// Takes that back. On return no poller of `group` uses the stream.
  void leave(PollGroup& group);
  bool attached() const { return attached_.load(std::memory_order_acquire); }

  /// Sends what is queued, at most kPassBytes: the rest is left to progress. Any thread. If another
  /// thread is sending for this queue pair, returns at once, and that thread sends this too.
  void transmit();
  /// The same after a post, unless the socket is full: then the next edge sends this too.
  void transmit_posted() {
    if (!full()) transmit();
  }
  /// From now on reports once (StreamEvents::busy) that the stream is busy enough for shared
  /// memory.
  void notify_when_busy() { until_busy_.store(kBusyTurns, std::memory_order_relaxed); }
  /// From now on `ring` may carry both directions: receiving once the peer says so, sending once
  /// the peer was told (QueuePair::say_to_peer()). It stays valid until detach() returns. False:
  /// the stream has ended, or has a ring already.
  bool join_ring(RingCarrier& ring);
  /// The peer reads and writes no memory of the queue pair's domain by itself any more; returns
  /// once it does not. For threads of the application.
  void shut_out_peer();
  /// Rights have been taken from the peer: returns once it uses none of them.
  void await_peer();
  /// See RingCarrier::trim(). Also true if the stream has no ring. StreamEvents::busy then reports
  /// the next turn.
  bool trim_ring();
  /// What comes has left TCP.
  bool on_ring() const { return receives_by_ring_.load(std::memory_order_relaxed); }

  /// When posts wait for more.
  PostCoalescer& pace() { return pace_; }
  /// What has been posted may wait for more: it goes out when the queue pair's completion queues
  /// are polled or armed, and by itself before long.
  void transmit_soon();
  /// For the groups: sends what waits. `notice` as for receive().
  void transmit_waiting(const PollGroup& group, StreamEvents& notice);
  /// For the group's WaitingStreams.
  bool& member_of(const PollGroup& group) { return member_of_[&group == groups_[1] ? 1 : 0]; }
  /// For the connection: the time is over for what still waits.
  void transmit_overdue();
  /// Reads what has come, at most kPassBytes; returns the number of its bytes. For pollers;
  /// `notice` must be handed to its connection after the caller's own locks are released.
  size_t receive(StreamEvents& notice, bool from_epoll = false);
  /// Readiness from epoll (EPOLL* bits), which is reported only once.
  void on_edge(uint32_t events);
  /// Receives what has come without an edge; true if anything had.
  bool poll();
  /// Receives what has come, after waiting for another thread that receives. Called before the
  /// queue pair goes to ERR: what has arrived completes, as an adapter would have placed it on
  /// arrival.
  void take_arrived();
  /// If requests are sent but not complete: the same, and completes those that the peer has
  /// acknowledged. `notice` as for receive().
  void take_acknowledgements(StreamEvents& notice);
  /// See Source. A stream that pollers find busy becomes quiet by itself.
  bool quiet() const { return quiet_.load(std::memory_order_relaxed); }
  void unmute();
  /// The core on which the peer, or the kernel for it, last wrote; negative: not known.
  int waker_core();
  bool polled_since();
  /// A held stream may go on. Does nothing otherwise.
  void resume();
  /// The grace time of a held stream is over. Does nothing otherwise.
  void expire();
  /// From now on each transmit turn ends with events: the owner waits for the send side to be idle
  /// or finished.
  void watch_transmit() { watched_.fetch_or(kWatched, std::memory_order_acq_rel); }
  /// Reports the next bytes that are sent (StreamEvents::began_to_send), so that the owner watches
  /// whether the peer takes them.
  void unwatch_peer() { peer_watched_.store(false); }
  /// The other end is gone as far as epoll said (EPOLLHUP, EPOLLERR, EPOLLRDHUP); bits as given.
  /// Over a wire that is seen behind what has come before.
  uint32_t hang_up() const {
    if (wire_ != nullptr && wire_->awaits_input()) return 0;
    return hang_up_.load(std::memory_order_acquire);
  }

  // ---- For the connection, between attach() and detach().
  /// Something that was sent has still to be handed to the socket or ring.
  bool carries_output() const {
    return (wire_ != nullptr && wire_->carries()) || (tls_ != nullptr && tls_->carries());
  }
  /// How many bytes the peer has not read, at most, of whose socket `unacknowledged` are not
  /// acknowledged: a record that is not there as a whole cannot be read.
  uint64_t unread_at_most(uint32_t unacknowledged) const {
    if (tls_ == nullptr || (unacknowledged == 0 && !tls_->carries())) return unacknowledged;
    return uint64_t{unacknowledged} + TlsStream::kMostKept;
  }

  // ---- Over a wire (UWARP_FAULT), for the connection, between attach() and detach().
  /// When on_wire_deadline() is to be called; 0: need not be.
  uint64_t wire_deadline_ns() const { return wire_ != nullptr ? wire_->deadline_ns() : 0; }
  void on_wire_deadline();
  /// The queue in front of the wire is full: a datagram would be lost there.
  bool wire_is_full() const;
  /// The process ends: what is on the wire arrives at once.
  void hurry();

  /// Large messages flow by TCP, and it is the peer's turn: to bring more of them, or to make room.
  /// As seen by the last turns. On a ring a thread that sleeps costs the peer a system call.
  bool awaits_bulk() const {
    if (receives_by_ring_.load(std::memory_order_relaxed)) return false;
    return receives_large_.load() || (full_.load() && sends_large_.load());
  }

  /// The peer was on the caller's core when it sent last, and it is the peer's application that
  /// has to go on. For a group that the stream has joined, under the group's lock.
  bool shares_core() const;
  /// The peer was on another core than the caller's when it sent last. Likewise.
  bool peer_elsewhere() const;
  int incoming_cpu() const;

  /// The end of the receive direction has been reported.
  bool ended() const { return ended_.load(std::memory_order_acquire); }

  /// Hands events to its connection. No locks.
  static void deliver(StreamEvents& notice) {
    if (notice.owner != nullptr) notify_owner(notice);
  }

 private:
  enum class Found : uint8_t { kDrained, kMore, kStopped };
  /// What a direction moves its bytes by; a wire is in front of one of the others.
  enum class Path : uint8_t { kSocket, kTls, kRing, kWire };
  /// Why a transmit turn ends with events: the owner waits for it, or records wait for the socket.
  enum Watched : uint8_t { kWatched = 1, kRecordsWait = 2 };

  static constexpr int32_t kBusyTurns = 16;

  static bool uses_socket(const std::atomic<Path>& path) {
    return path.load(std::memory_order_relaxed) == Path::kSocket;
  }
  ssize_t read(std::span<const iovec> buffer, StreamEvents& notice);
  ssize_t write(std::span<const iovec> bytes);
  ssize_t read_past_socket(std::span<const iovec> buffer, StreamEvents& notice);
  ssize_t write_past_socket(std::span<const iovec> bytes);
  [[gnu::noinline, gnu::cold]] ssize_t read_wire(std::span<const iovec> buffer,
                                                 StreamEvents& notice);
  [[gnu::noinline, gnu::cold]] ssize_t write_wire(std::span<const iovec> bytes);
  ssize_t read_carrier(std::span<const iovec> buffer);
  ssize_t write_carrier(std::span<const iovec> bytes);
  [[gnu::noinline]] ssize_t write_tls(std::span<const iovec> bytes);
  void note_kept();
  [[gnu::noinline, gnu::cold]] void send_held(StreamEvents& notice);
  Path tcp_path() const { return tls_ != nullptr ? Path::kTls : Path::kSocket; }
  [[gnu::noinline, gnu::cold]] void tell_placed_later(uint64_t bytes);
  [[gnu::noinline, gnu::cold]] void hand_over(StreamEvents& notice);
  [[gnu::noinline, gnu::cold]] void end_wire_turn();
  void empty_wire();
  void change_carrier();
  void note_send_error(ssize_t error, StreamEvents& notice);
  [[gnu::noinline]] ssize_t write_ring(std::span<const iovec> bytes);
  [[gnu::noinline]] ssize_t read_ring(std::span<const iovec> buffer);
  bool space_came() const {
    if (sends_by_ring_.load(std::memory_order_acquire) && ring_->space_came()) return true;
    return wire_ != nullptr && wire_->output_due(now_ns());
  }
  void receive_by_ring();
  [[gnu::noinline]] void note_drained();
  [[gnu::noinline]] void tell_placed();
  void take_placed(size_t& received, bool& answer);
  void note_silence(bool found);
  void count_turn(StreamEvents& notice) {
    if (until_busy_.load(std::memory_order_relaxed) != 0) note_turn(notice);
  }
  [[gnu::noinline, gnu::cold]] void note_turn(StreamEvents& notice);
  void take_ends(const Ends& ends, std::unique_ptr<StreamWire> wire);
  bool take_arrived(StreamEvents& notice);
  Found receive_locked(size_t& received, bool& answer, StreamEvents& notice);
  bool take_outcome(uint32_t outcome, bool& answer, StreamEvents& notice);
  void take_end(ssize_t result, StreamEvents& notice);
  void note_end_while_rnr_blocked(ssize_t result, StreamEvents& notice);
  void transmit_turns(StreamEvents& notice);
  void transmit_turn(StreamEvents& notice);
  void name_owner(StreamEvents& notice);
  bool full() { return full_.load(std::memory_order_relaxed) && still_full(); }
  [[gnu::noinline]] bool still_full();
  [[gnu::noinline, gnu::cold]] static void notify_owner(StreamEvents& notice);
  void note_busy();
  void note_poll(bool found);
  void set_muted(bool on);

  QueuePair& qp_;
  TcpSocket* in_ = nullptr;
  TcpSocket* out_ = nullptr;
  CapturedConnection* capture_ = nullptr;  // or null
  TlsStream* tls_ = nullptr;               // or null
  StreamOwner* owner_ = nullptr;
  std::unique_ptr<StreamWire> wire_;           // or null; set under both sides
  RingCarrier* ring_ = nullptr;                // or null; the same
  std::shared_ptr<AccessGate> gate_;           // or null; the same. Stays while the peer uses it
  bool gate_due_ = false;                      // it is to be opened; under the receive side
  uint64_t before_ring_ = 0;                   // Receiver::done_bytes() by TCP; receive side
  std::atomic<bool> receives_by_ring_{false};  // set under the receive side
  std::atomic<bool> sends_by_ring_{false};     // under the transmit side
  std::atomic<Path> reads_by_{Path::kSocket};  // the same two, or over a wire to there
  std::atomic<Path> writes_by_{Path::kSocket};
  std::atomic<int32_t> until_busy_{0};  // turns; 0: not asked for
  PollGroup* groups_[2] = {};
  bool member_of_[2] = {};
  PostCoalescer pace_{calls_are_dear() ? call_cost_ns() : 0};
  WaitingFlags waiting_;
  std::atomic<bool> full_{false};  // the last send call found no room, or a wire carries something
  std::atomic<bool> wire_takes_{false};      // ... and takes more
  std::atomic<bool> sends_large_{false};     // ... for mostly large messages
  std::atomic<bool> receives_large_{false};  // such a message came last
  std::atomic<bool> attached_{false};
  std::atomic<uint8_t> watched_{0};  // of Watched
  std::atomic<bool> peer_watched_{false};
  uint32_t idle_polls_ = 0;  // of pollers, since something came or the peer was nudged
  uint32_t nudge_after_ = tuning::kPollsPerNudge;
  uint32_t finds_ = 0;              // of pollers, while not quiet
  std::atomic<bool> quiet_{false};  // data makes no event in epoll
  std::atomic<bool> polled_since_{false};
  std::atomic<uint32_t> hang_up_{0};
  std::atomic<int> send_error_{0};       // errno that ended the send direction
  std::atomic<bool> resume_due_{false};  // resume() found no memory
  std::atomic<bool> ended_{false};       // the end of the receive direction has been reported
};

}  // namespace uwarp
