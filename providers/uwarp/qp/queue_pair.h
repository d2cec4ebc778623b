// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Queue pair: work queues, the send side and the receive side of one RDMAP stream. Sans-IO: bytes
// in by Receiver, bytes out by Transmitter; completions go
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
#include <optional>
#include <span>

#include "qp/handoff_lock.h"
#include "qp/qp_config.h"
#include "qp/receive/receiver.h"
#include "qp/receive_queue.h"
#include "qp/send_queue.h"
#include "qp/stream_state.h"
#include "qp/transmit/transmitter.h"
#include "qp/work_request.h"

namespace uwarp {

/// A member of its Endpoint. Its states are those of verbs: to_init() and its like, flush() to ERR,
/// to_reset() from anywhere. It has a stream from start_stream() to detach_stream(), and is told by
/// the connection how that ends (end_stream(), fall_silent(), lose_peer()). In ERR what is posted
/// is flushed, in RESET nothing is posted. Ends without a stream, when no thread has a side; then
/// no window is bound to it any more.
class QueuePair {
  const QpConfig config_;
  const std::unique_ptr<QueuePairSlot> own_slot_;  // null if there is one in config_
  QueuePairSlot& slot_;
  std::atomic<QpState> state_{QpState::kReset};

  // With locks of their own.
  SendQueue sends_;
  ReceiveQueue own_receives_;
  ReceiveQueue* const receives_;

  // Between the sides, and what belongs to each.
  StreamState stream_;
  alignas(64) HandoffLock transmit_side_;
  Transmitter transmitter_;
  alignas(64) HandoffLock receive_side_;
  Receiver receiver_;

 public:
  explicit QueuePair(const QpConfig& config);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  const QpConfig& config() const { return config_; }
  FaultScript* script() const { return config_.script.get(); }
  /// Its slot in the page of counters.
  QueuePairSlot& slot() { return slot_; }
  QpState state() const { return state_.load(std::memory_order_acquire); }

  // ---- Posting. Any thread. 0 or an errno: EINVAL (state, SGE count, length, inline misuse),
  // ENOMEM (queue full), EOPNOTSUPP (opcode not in iWARP, or switched off; Send with Immediate to a
  // peer that is no uwarp). In ERR a request is taken and flushed.
  int post_send(const SendRequest& request);
  /// The same for a caller that holds post_lock(), perhaps over a list. It calls flush_late_posts()
  /// once it has given the lock up.
  int post_send_locked(const SendRequest& request) REQUIRES(post_lock());
  SpinLock& post_lock() RETURN_CAPABILITY(sends_.post_lock()) { return sends_.post_lock(); }
  void flush_late_posts() {
    if (state() == QpState::kErr) flush_late();
  }
  /// The same for several: either all are posted, with nothing between them, or none.
  int post_sends(std::span<const SendRequest> requests);
  int post_recv(uint64_t wr_id, std::span<const Sge> sges);

  /// The peer owes answers to Reads or atomics. Any thread; it may change at once.
  bool awaits_answers() const { return !stream_.outbound.empty(); }
  /// True once, when a receive was posted that a held stream waits for: the caller takes
  /// receive_side() and calls Receiver::resume(). With a shared queue QpConfig::receive_waiter is
  /// told instead.
  bool receive_resumable() { return config_.srq == nullptr && own_receives_.claim_wakeup(); }

  // ---- Verbs state. Only the transitions; attributes live above. Any thread, no lock held.
  void to_init() { move_to(QpState::kInit); }
  void to_rtr() { move_to(QpState::kRtr); }
  void to_rts();
  /// SQD: new requests wait, running ones drain; kSqDrained is raised when `notify`.
  void to_sqd(bool notify);
  /// Drops all work without completions, and those completions that were not polled. The stream
  /// must have been detached.
  void to_reset() { drop_work(CompletionQueue::Drop::kAll); }
  /// As to_reset(), but completions of success stay: an application that sees the end of the
  /// connection first, and destroys the queue pair, must not lose the peer's last message.
  void retire() { drop_work(CompletionQueue::Drop::kFailed); }
  /// ERR from any state and flush of all work with WR_FLUSH_ERR; raises no event.
  void to_error();
  /// ERR; the oldest open send request fails with `oldest`, the rest is flushed. For a connection
  /// that was never established, or was lost (RETRY_EXC_ERR).
  void to_error(WcStatus oldest);
  /// Rights (Access) that peers have here at most, even if the region grants more.
  void set_remote_access(uint32_t access) { stream_.set_remote_access(access); }

  // ---- Stream life. Called by the connection, no lock held.
  /// Enters FPDU mode, and RTS from below. False (and nothing done) in RESET or ERR. Throws
  /// std::bad_alloc, and has done nothing then.
  bool start_stream(const StreamConfig& config);
  /// The byte stream has ended without a disconnect: requests wait until end_stream(), as they do
  /// on an adapter that repeats them to a peer that has gone; what the peer has read completes.
  /// False (and nothing done) where the end is a failure by itself: inside a message, or behind
  /// another failure.
  bool fall_silent(StreamEnd end);
  /// The byte stream of an unreliable queue pair has ended, which the application is not told. The
  /// queue pair stays in its state, what is posted is lost, and what may still come is read and
  /// dropped. False: that was so already.
  bool lose_peer(StreamEnd end);
  /// No peer has been found for an unreliable queue pair: what has been posted is lost.
  void lose_sends();
  /// The peer has ended the byte stream in order, with `unread_bytes` of ours that it had not
  /// received. Where requests are acknowledged (QpConfig), those that it has not read fail with
  /// RETRY_EXC_ERR in end_stream().
  void note_peer_end(uint64_t unread_bytes);
  /// The byte stream has ended. ERR, flush and the event that verbs asks for (FIN
  /// inside an FPDU is an error); nothing of it for a silent FIN at a boundary. Returns true if
  /// work was open.
  bool end_stream(StreamEnd end);
  /// The stream is detached: no byte moves until the next start_stream().
  void detach_stream();
  const StreamConfig& stream() const { return stream_.config; }
  /// Why the stream failed: meaningful once it has (flush_due(), or ERR after a failure).
  const StreamFailure& failure() const { return stream_.failure(); }
  /// SQD, with requests that were begun before still running.
  bool draining() const { return state() == QpState::kSqd && sends_.retired() != sends_.started(); }
  /// The peer is a uwarp: no other implementation takes part in the rendezvous.
  void expect_uwarp() { stream_.peer_is_uwarp.store(true, std::memory_order_release); }
  bool peer_is_uwarp() const { return stream_.peer_is_uwarp.load(std::memory_order_acquire); }
  PersonaWrite::Said peer_persona() const {
    return stream_.peer_persona.load(std::memory_order_acquire);
  }
  /// Says something to a peer on this host; the caller pumps.
  void say_to_peer(StreamState::ControlWriteDue what) {
    stream_.control_writes_due.fetch_or(what, std::memory_order_release);
  }
  /// Says where the peer may send a letter about shared memory, and what that begins with.
  void offer_mailbox(uint64_t name, uint64_t letter_number) {
    stream_.mailbox = name;
    stream_.letter_number = letter_number;
    stream_.control_writes_due.fetch_or(StreamState::kMailboxDue | StreamState::kNumberDue,
                                        std::memory_order_release);
  }
  uint64_t peer_mailbox() const { return stream_.peer_mailbox; }
  uint64_t peer_letter_number() const { return stream_.peer_letter_number; }
  /// The peer has told that it delays what it sends.
  bool peer_delays() const { return stream_.peer_delays.load(std::memory_order_relaxed); }
  /// Of a carrier that reads what is sent out of the application's memory later. Both sides held.
  void lend(LentMemory* lent) { stream_.lent = lent; }
  /// A carrier that tells how much has been placed spares the Reads that acknowledge. Of an XRC
  /// request nothing but the answer to such a Read says that it may complete.
  bool wants_placed() const { return config_.acknowledged && !is_xrc(config_.transport); }
  /// The peer has been told by the carrier what has been placed here. Receive side.
  void note_told_placed() {
    stream_.told_delivered.store(stream_.delivered.load(std::memory_order_relaxed),
                                 std::memory_order_release);
  }
  /// Of a carrier by which Reads and Writes need no thread of the peer; null: of none. Both sides
  /// held.
  void reach(RemoteMemory* remote) { stream_.remote = remote; }
  /// The queue pair neither checks, changes nor writes down what goes over the carrier: Reads and
  /// Writes need not go over it.
  bool may_go_directly() const {
    return config_.script == nullptr && config_.trace == nullptr && config_.sink == nullptr &&
           config_.xrc == nullptr && !stream_.config.crc;
  }
  /// The peer may do so in our memory, until close_gate().
  void open_gate(RemoteGate& gate) { stream_.open_gate(gate, config_.domain); }
  void close_gate() { stream_.close_gate(); }
  /// The peer's first FPDU has come.
  bool peer_has_spoken() const { return stream_.first_fpdu.load(std::memory_order_acquire); }
  /// If the peer has sent nothing yet: an empty Write follows what we have sent, in case that the
  /// peer has overlooked it. The caller pumps. False (and nothing done) if the peer has sent
  /// something.
  bool nudge() {
    if (peer_has_spoken() || stream_.failed()) return false;
    stream_.nudge_due.store(true, std::memory_order_relaxed);
    return true;
  }
  /// ORD may become known only after the start (rendezvous: taken at RTS).
  void set_ord(uint16_t ord) {
    const uint32_t most = stream_.outbound.capacity() - 1;  // what restart() has made room for
    stream_.ord.store(static_cast<uint16_t>(std::min<uint32_t>(ord, most)),
                      std::memory_order_release);
  }

  // ---- The two sides. Each is used by one thread at a time, which has a turn of it; what their
  // classes say of any thread excepted.
  HandoffLock& transmit_side() { return transmit_side_; }
  Transmitter& transmitter() { return transmitter_; }
  const Transmitter& transmitter() const { return transmitter_; }
  HandoffLock& receive_side() { return receive_side_; }
  Receiver& receiver() { return receiver_; }
  const Receiver& receiver() const { return receiver_; }
  /// The peer has finished its direction. True if it did so between messages and something may
  /// still be sent to it: then no more is to be waited for than Transmitter::dry().
  bool finish_input();

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
  struct [[nodiscard]] Exclusive {
    HandoffLock::Exclusive receive;
    HandoffLock::Exclusive transmit;
  };
  Exclusive lock_exclusive() {
    return {receive_side_.lock_exclusive(), transmit_side_.lock_exclusive()};
  }
  /// A region that was `old` has become another under the same keys. `revoke`: work that has found
  /// it by its local key fails. The caller holds the queue pair.
  void region_changed(const MemoryRegion& region, const RegionShape& old, bool revoke);

 private:
  [[gnu::noinline, gnu::cold]] void flush_late();
  void drop_work(CompletionQueue::Drop completions);
  [[gnu::noinline]] bool takes_send_with_immediate() const;
  void move_to(QpState next);
  void set_state(QpState state) {
    state_.store(state, std::memory_order_release);
    show_state();
  }
  void show_state() {
    slot_.state.store(static_cast<uint32_t>(state()), std::memory_order_relaxed);
  }
  void count_end(StreamEnd end);
};

}  // namespace uwarp
