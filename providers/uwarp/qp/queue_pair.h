// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Queue pair: work queues, the send side and the receive side of one RDMAP stream. Sans-IO: bytes
// in by receive_window()/received(), bytes out by transmit_window()/transmitted(); completions go
// to the completion queues, everything else comes back as a return value. RFC 5040, 5041, 5044.
//
// Locks, in order: receive side -> transmit side -> posting (send) / receive queue -> completion
// queue. The transmit side never takes the receive side.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "qp/qp_config.h"
#include "qp/receive_queue.h"
#include "qp/receiver.h"
#include "qp/send_queue.h"
#include "qp/staging_buffer.h"
#include "qp/stream_state.h"
#include "qp/transmitter.h"
#include "qp/turn_gate.h"
#include "qp/work_request.h"

namespace uwarp {

class QueuePair {
 public:
  explicit QueuePair(const QpConfig& config);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  const QpConfig& config() const { return config_; }
  FaultScript* script() const { return config_.script.get(); }
  /// What it counts, and shows to others.
  QueuePairSlot& slot() { return slot_; }
  QpState state() const { return state_.load(std::memory_order_acquire); }

  // ---- Posting. Any thread. 0 or an errno: EINVAL (state, SGE count, length, inline misuse),
  // ENOMEM (queue full), EOPNOTSUPP (opcode not in iWARP, or switched off; Send with Immediate to a
  // peer that is no uwarp). In ERR a request is taken and flushed.
  int post_send(const SendRequest& request);
  /// The same for whoever holds post_lock(), perhaps over a list; flush_late_posts() follows once
  /// it is free again.
  int post_send_locked(const SendRequest& request);
  SpinLock& post_lock() { return sends_.post_lock(); }
  void flush_late_posts();
  /// The same for several: either all are posted, with nothing between them, or none.
  int post_sends(std::span<const SendRequest> requests);
  int post_recv(uint64_t wr_id, std::span<const Sge> sges);

  /// True when a posted or owed message could perhaps be sent now: the caller pumps once (not in a
  /// loop: ORD or a fence may still stand in the way).
  bool wants_transmit() const { return transmitter_.wanted(); }
  /// The peer owes answers to Reads or atomics. Any thread; it may change at once.
  bool awaits_answers() const { return !stream_.outbound.empty(); }
  /// True once, when a receive was posted that a held stream waits for: the caller takes
  /// receive_gate() and calls resume_receive(). With a shared queue it is QpConfig::receive_waiter
  /// that tells.
  bool receive_resumable() { return config_.srq == nullptr && own_receives_.claim_wakeup(); }

  // ---- Verbs state. Only the transitions; attributes live above. Any thread, no lock held.
  void to_init() { move_to(QpState::kInit); }
  void to_rtr() { move_to(QpState::kRtr); }
  void to_rts();
  /// SQD: new requests wait, running ones drain; kSqDrained is raised when `notify`.
  void to_sqd(bool notify);
  /// Drops all work without completions, and those completions that nobody has polled. The stream
  /// must have been detached.
  void to_reset() { drop_work(CompletionQueue::Drop::kAll); }
  /// As to_reset(), but who polls is still told of what was done: what the peer sent as its last
  /// message must not be lost to one who sees the end of the connection first and destroys.
  void retire() { drop_work(CompletionQueue::Drop::kFailed); }
  /// ERR from any state and flush of all work with WR_FLUSH_ERR; raises no event.
  void to_error();
  /// ERR; the oldest open send request fails with `oldest`, the rest is flushed. For a connection
  /// that never came to be or was lost (RETRY_EXC_ERR).
  void to_error(WcStatus oldest);
  /// Rights (Access) that peers have here at most, whatever the region grants.
  void set_remote_access(uint32_t access) { stream_.remote_access.store(access); }

  // ---- Stream life. Called by the connection, no lock held.
  /// Enters FPDU mode, and RTS from below. False (and nothing done) in RESET or ERR. Throws
  /// std::bad_alloc, and has done nothing then.
  bool start_stream(const StreamConfig& config);
  /// The byte stream has ended, but nobody has said so: requests wait until end_stream(), as they
  /// do on an adapter that repeats them to a peer that has gone. False (and nothing done) where the
  /// end is a failure by itself: inside a message, or behind another failure.
  bool fall_silent();
  /// The byte stream has ended. ERR, flush and the event that verbs asks for (RFC 5044 7.2: FIN
  /// inside an FPDU is an error); nothing of it for a silent FIN at a boundary. Returns true if
  /// work was open.
  bool end_stream(StreamEnd end);
  /// The pump is gone for good: no byte moves until the next start_stream().
  void detach_stream();
  const StreamConfig& stream() const { return stream_.config; }
  /// Why the stream failed: meaningful once it has (flush_due(), or ERR after a failure).
  const StreamFailure& failure() const { return stream_.failure(); }
  /// SQD, with requests that were begun before still running.
  bool draining() const { return state() == QpState::kSqd && sends_.retired() != sends_.started(); }
  /// Whoever answers will be a uwarp: nobody else takes part in the rendezvous.
  void expect_uwarp() { stream_.peer_is_uwarp.store(true, std::memory_order_release); }
  bool peer_is_uwarp() const { return stream_.peer_is_uwarp.load(std::memory_order_acquire); }
  /// The peer's first FPDU has come.
  bool peer_has_spoken() const { return stream_.first_fpdu.load(std::memory_order_acquire); }
  /// The peer has sent nothing yet: an empty Write follows what we have sent, in case that it was
  /// overlooked. The caller pumps. False (and nothing done) when the peer has been heard of.
  bool chase() {
    if (peer_has_spoken() || stream_.failed()) return false;
    stream_.chase_due.store(true, std::memory_order_relaxed);
    return true;
  }
  /// ORD may become known only after the start (rendezvous: taken at RTS).
  void set_ord(uint16_t ord) {
    const uint32_t most = stream_.outbound.capacity() - 1;  // what restart() has made room for
    stream_.ord.store(static_cast<uint16_t>(std::min<uint32_t>(ord, most)),
                      std::memory_order_release);
  }

  // ---- Transmit side. One thread at a time between begin and end.
  /// Takes the transmit side if it is free; otherwise leaves a mark that makes the holder's
  /// transmit_end() return true, and returns false.
  bool transmit_try_begin() { return transmit_gate_.try_begin(); }
  /// The next bytes for the stream: valid until transmitted() or transmit_end(). Empty: nothing to
  /// send now. Completes what needs no bytes on the way.
  std::span<const iovec> transmit_window() {
    if (!stream_.running.load(std::memory_order_acquire)) return {};
    return transmitter_.window();
  }
  /// It was empty for want of memory: try again.
  bool transmit_starved() const {
    return stream_.running.load(std::memory_order_relaxed) && transmitter_.starved();
  }
  /// The first `bytes` of the window are with the kernel: completes the requests they finish.
  void transmitted(size_t bytes) { transmitter_.sent(bytes); }
  /// The window holds mostly parts of large messages.
  bool transmits_large() const { return transmitter_.sends_large(); }
  /// The kernel could not read application memory (EFAULT): fails the request at hand.
  void transmit_fault() { transmitter_.fault(); }
  /// Releases the side. True: somebody asked in between, begin again.
  bool transmit_end() { return transmit_gate_.end(); }
  /// Waits until nobody has the side: what a send was told has been noted then. The caller may hold
  /// receive_gate().
  void transmit_wait() { const std::lock_guard lock(transmit_gate_); }
  /// True when the stream failed and its Terminate (if one was due) has been handed over: it may be
  /// shut down for writing.
  bool transmit_finished() const { return transmitter_.finished(); }
  /// True when all that was posted or owed has been handed over, so that a FIN loses nothing.
  bool transmit_idle() const { return transmitter_.idle() && !sends_.waiting(); }
  /// The peer has finished its direction. True if it did so between messages and something may
  /// still be sent to it: then no more is to be waited for than transmit_dry().
  bool finish_input();
  /// True when nothing more could be sent, whatever else has been posted.
  bool transmit_dry() const { return transmitter_.dry(); }

  // ---- Receive side. One thread at a time under receive_gate(), from window to received().
  TurnGate& receive_gate() { return receive_gate_; }
  /// Where the next bytes belong. `staging` must be non-null.
  std::span<const iovec> receive_window(StagingPointer& staging) {
    return receiver_.window(staging);
  }
  /// The stream gave `bytes` into the last window. May keep `staging` (null on return, or another).
  /// Returns ReceiveOutcome bits.
  uint32_t received(StagingPointer& staging, size_t bytes) {
    return receiver_.received(staging, bytes);
  }
  /// Goes on after kRxHeld: consumes what is kept. Returns ReceiveOutcome bits.
  uint32_t resume_receive(StagingPointer& staging) { return receiver_.resume(staging); }
  /// The grace time of a held stream is over: Terminate 1/2/02. Outcome bits.
  uint32_t receive_expired() { return receiver_.expire(); }
  /// The kernel could not write into the last window (EFAULT). Outcome bits.
  uint32_t receive_fault() { return receiver_.fault(); }
  /// A large message is under way, or likely to follow the last.
  bool receives_large() const { return receiver_.expects_large(); }
  bool receive_held() const { return receiver_.held(); }
  /// Held, but bytes are still wanted: something behind the message that waits may be taken.
  bool receive_ahead() const { return receiver_.looks_ahead(); }
  /// After a failure all further bytes are dropped: the connection reads only to see the FIN.
  bool receive_closed() const { return receiver_.closed(); }

  // ---- Failure. No lock held.
  /// A failure was noted (by either side) whose flush is still due.
  bool flush_due() const { return stream_.failed() && state() != QpState::kErr; }
  /// ERR and flush after a failure: own statuses first, then WR_FLUSH_ERR in posting order. The
  /// caller pumps afterwards: a Terminate may be due.
  void flush();

  /// Returns when no access to `region` is under way and no queued bytes refer to it. Its keys must
  /// be invalid already.
  void quiesce(const MemoryRegion& region);
  /// While this lives no byte moves in either direction and no key is looked up. A thread that
  /// holds several queue pairs is the only one that does.
  struct [[nodiscard]] Held {
    std::unique_lock<TurnGate> receive;
    std::unique_lock<TurnGate> transmit;
  };
  Held hold() { return {std::unique_lock(receive_gate_), std::unique_lock(transmit_gate_)}; }
  /// A region that was [old_base, old_base + old_length) has become another under the same keys.
  /// `revoke`: work that has found it by its local key fails. Caller holds the queue pair.
  void region_changed(const MemoryRegion& region, const std::byte* old_base, uint64_t old_length,
                      bool revoke);

 private:
  void drop_work(CompletionQueue::Drop completions);
  int check_send(const SendRequest& request) const;
  void move_to(QpState next);
  void set_state(QpState state) {
    state_.store(state, std::memory_order_release);
    show_state();
  }
  void show_state() {
    slot_.state.store(static_cast<uint32_t>(state()), std::memory_order_relaxed);
  }
  void count_end(StreamEnd end);
  std::optional<QpEvent> end_event(StreamEnd end, bool mid_message, bool open) const;

  const QpConfig config_;
  const std::unique_ptr<QueuePairSlot> own_slot_;  // null if there is one in config_
  QueuePairSlot& slot_;
  std::atomic<QpState> state_{QpState::kReset};
  SendQueue sends_;
  ReceiveQueue own_receives_;
  ReceiveQueue* const receives_;
  StreamState stream_;
  alignas(64) TurnGate transmit_gate_;
  Transmitter transmitter_;
  alignas(64) TurnGate receive_gate_;
  Receiver receiver_;
};

}  // namespace uwarp
