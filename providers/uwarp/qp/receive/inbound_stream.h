// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the parts of the receive side share: the segment under way, what the present call has found,
// and how the stream fails. One thread at a time, except for closed().
#pragma once

#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "memory/region_table.h"
#include "protocol/ddp/segment.h"
#include "protocol/rdmap/segment_rules.h"
#include "protocol/wire/ddp_headers.h"
#include "qp/handoff_lock.h"
#include "qp/receive_queue.h"
#include "qp/send_queue.h"
#include "qp/stream_state.h"
#include "qp/transmit/send_completer.h"

namespace uwarp {

// Segments that the peer, another uwarp, has announced behind the one under way: of the same
// message and size (docs/wire.md). So one receive call may put several into place, before their
// headers have been looked at. Counts bytes only; Receiver knows the places.
//
// The window of such a call, in the order of the stream ("direct": to its place; "staged": to the
// staging buffer, where the pieces lie one behind the other):
//
//   rest of the segment under way, direct | its last bytes, trailer, next header: staged |
//   segment 1, direct | its last bytes, trailer, next header: staged | segment 2 ...
class SegmentRun {
 public:
  /// A segment has come, by this DDP header: ULPDU of `ulpdu_length` bytes, `following` of the
  /// same kind behind it.
  void begin(const std::byte* header, uint16_t ulpdu_length, uint8_t following);
  /// The segment under way has no others behind it, as far as is known.
  void end() { following_ = 0; }
  void reset() { *this = SegmentRun{}; }

  /// How many of them the next window shall hold: twice as many after a window that was filled,
  /// fewer after one that was not. They do not help a receiver that is faster than its peer.
  uint32_t wanted() const { return following_ < width_ ? following_ : width_; }
  /// The window has places for none of them, ...
  void close() { segments_ = 0; }
  /// ... or for this many: `direct` and `staged` bytes of each.
  void open(uint32_t segments, size_t direct, size_t staged) {
    segments_ = segments;
    direct_ = direct;
    staged_ = staged;
  }
  /// Of the window that is open: bytes in all, and those that are staged.
  size_t bytes() const { return segments_ * (direct_ + staged_); }
  size_t staged_bytes() const { return segments_ * staged_; }
  /// `bytes` have come into the window behind the direct ones of the segment under way; `filled`:
  /// it had no room for more. Returns how many of them are staged.
  size_t take(size_t bytes, bool filled);

  /// Bytes already in place, of segments whose headers have not been checked.
  size_t ahead() const { return ahead_; }
  /// Whether the next FPDU, from its length field on, is the one that was announced. Only while
  /// ahead() is not 0: as many bytes of it are there as that one's header has.
  bool continues(const std::byte* fpdu) const;
  /// Its header has been looked at: so many bytes of it are in place.
  size_t claim();
  /// They all are of the next segment. If it is not the one that was announced they can be taken
  /// out of its place again.
  bool ahead_is_one() const { return ahead_ <= direct_; }
  void give_up() { ahead_ = 0; }

 private:
  uint32_t following_ = 0;
  uint32_t width_ = 0;     // segments that the next window may take
  uint32_t segments_ = 0;  // ... that the last one took
  size_t direct_ = 0;
  size_t staged_ = 0;
  size_t ahead_ = 0;
  uint16_t ulpdu_length_ = 0;
  std::byte next_[kDdpHeaderMax]{};  // header of the next one, but for its control byte
};

// The completion of a Send comes before the receive completion of the peer's answer to it. The
// thread that sent may not have stored the former yet when another thread has received the latter.

/// Receive side. `Sender` has in_flight(), retire_request(), and retire(), which completes what has
/// gone.
template <class Sender>
class BasicCompletionOrder {
 public:
  BasicCompletionOrder(HandoffLock& transmit_side, Sender& sender)
      : side_(transmit_side), sender_(sender) {}

  /// Bytes have been taken from the socket: the messages among them may answer all that had been
  /// sent before, and nothing that is sent later.
  void begin() { complete_ = false; }
  void restart() { complete_ = acknowledged_ = false; }
  /// Requests that waited for the peer may be complete, too.
  void note_acknowledged() {
    acknowledged_ = true;
    complete_ = false;
  }
  /// Before the completion of an answer is stored. On return the requests whose bytes the kernel
  /// had been given before begin() are complete. Waits for the thread that has the transmit side,
  /// at most for its send call. kCheckAgain: another thread wants that side; the caller transmits
  /// after its turn.
  AfterTurn complete_sent() {
    if (complete_) return AfterTurn::kNothing;
    // A thread notes what it sent before it leaves the transmit side.
    const bool waits = sender_.in_flight() && (acknowledged_ || side_.taken());
    const AfterTurn after = waits ? wait_for_sender() : AfterTurn::kNothing;
    complete_ = true;
    acknowledged_ = false;
    return after;
  }

 private:
  [[gnu::noinline]] AfterTurn wait_for_sender() {
    const uint32_t request = sender_.retire_request().ask();
    for (int round = 0; !sender_.retire_request().granted(request); ++round) {
      if (auto turn = side_.try_begin()) {
        sender_.retire();
        return turn.end();
      }
      wait_a_little(round);
    }
    return AfterTurn::kNothing;
  }
  // A send call takes some 2 to 50 us. A holder that has lost its core gets it by the yields.
  static void wait_a_little(int round) {
    if (round < 2 * Atomics::kSpins)
      Atomics::cpu_relax();
    else if (round < 2 * (Atomics::kSpins + Atomics::kYields))
      Atomics::yield();
    else
      Atomics::nap();
  }

  HandoffLock& side_;
  Sender& sender_;
  bool complete_ = false;
  bool acknowledged_ = false;
};

using CompletionOrder = BasicCompletionOrder<SendCompleter>;

/// What a receive call found besides completions; bits.
enum ReceiveOutcome : uint32_t {
  kRxNothing = 0,
  kRxTransmitWanted = 1u << 0,  // the transmit side has something to do: call the pump
  kRxRnrBlocked = 1u << 1,      // no receive posted: stop reading until receive_resumable()
  kRxFailed = 1u << 2,          // the stream failed: flush(), pump the Terminate out, then FIN
  kRxTerminated = 1u << 3,      // the peer's Terminate came: flush(), then FIN
  kRxFirstFpdu = 1u << 4,       // the first FPDU of this stream has come
  kRxMagic = 1u << 5,           // the peer has shown that it is a uwarp
  kRxOffer = 1u << 6,           // it offers shared memory: StreamState::peer_mailbox
  kRxSwitch = 1u << 7,          // what follows comes through shared memory
  kRxNewQueue = 1u << 8,  // receives complete to a queue whose pollers should drive the stream
  kRxDeferred = 1u << 9,  // once what is owed has been sent: Receiver::complete_deferred()
  kRxPersona = 1u << 10,  // the peer has told its persona: StreamState::peer_persona
};

/// A DDP segment, its header as it came, what is left of its payload. RFC 5041-3-7, 5041-4.2-b/c/g.
struct InboundSegment {
  std::byte header[kDdpHeaderMax];  // for a Terminate
  uint16_t ulpdu_length = 0;
  bool last = false;
  RdmapOpcode opcode = RdmapOpcode::kWrite;
  uint32_t payload_left = 0;
  uint64_t payload_offset = 0;  // message offset of the next byte

  DdpControl control() const { return DdpControl{static_cast<uint8_t>(header[0])}; }
  size_t header_size() const { return ddp_header_size(control()); }
  void payload_done(size_t size) {
    assert(size <= payload_left);
    payload_left -= static_cast<uint32_t>(size);
    payload_offset += size;
  }
};

/// What the parts of a Receiver share, which has it as a member. Made closed; open from reopen() to
/// the failure or the end of the stream.
class InboundStream {
 public:
  const QpConfig& config;
  StreamState& stream;
  ReceiveCounters& counters;
  InboundSegment segment;
  uint32_t outcome = kRxNothing;     // of the call at hand
  uint32_t when_whole = kRxNothing;  // outcome once the FPDU under way, a Write, has come whole

 private:
  const bool extensions_;
  const bool shared_queues_;
  std::atomic<bool> closed_{true};  // read by any thread

 public:
  InboundStream(const QpConfig& config, StreamState& stream, ReceiveCounters& counters)
      : config(config),
        stream(stream),
        counters(counters),
        extensions_(config.extensions),
        shared_queues_(config.xrc != nullptr) {}

  /// Further bytes are dropped: the stream failed or ended. Any thread.
  bool closed() const { return closed_.load(std::memory_order_acquire); }
  void close() { closed_.store(true, std::memory_order_release); }
  void reopen() { closed_.store(false, std::memory_order_release); }

  RdmapFeatures features() const {
    return {extensions_, extensions_, stream.peer_is_uwarp.load(std::memory_order_relaxed),
            shared_queues_};
  }
  void count_fpdu(RdmapOpcode opcode, bool last) {
    counters.fpdus.add(1);
    counters.count(message_kind(opcode), last ? 1 : 0);
    if (config.trace != nullptr) [[unlikely]]
      trace_fpdu(opcode);
  }

  /// A failure with a Terminate of ours. `with_header`: it shows the segment under way.
  [[gnu::noinline, gnu::cold]] StreamFailure failure(TerminateCode code, bool with_header) const;
  /// Ends the stream. False, which most callers return then.
  [[gnu::noinline, gnu::cold]] bool fail(const StreamFailure& failure,
                                         std::optional<QpEvent> event);
  [[gnu::noinline, gnu::cold]] bool fail(TerminateCode code, QpEvent event, bool with_header) {
    return fail(failure(code, with_header), event);
  }

 private:
  [[gnu::noinline, gnu::cold]] void trace_fpdu(RdmapOpcode opcode);
};

inline bool is_version_error(TerminateCode code) {
  return code == TerminateCode::kDdpTaggedInvalidVersion ||
         code == TerminateCode::kDdpUntaggedInvalidVersion;
}

/// The event of a segment or message that is malformed: a request error above DDP; everything else
/// that is not an access is fatal.
inline QpEvent segment_event(TerminateCode code) {
  return layer(code) == 0 ? QpEvent::kRequestError : QpEvent::kFatal;
}

// The peer's answers to our Reads and atomics, and where they go. Receive side.
class InboundAnswers {
  InboundStream& in_;
  SendQueue& sends_;
  CompletionOrder& order_;
  UntaggedSequence atomic_sequence_;
  bool read_open_ = false;  // the sink is set up for the Read at the head
  uint64_t placed_ = 0;
  BufferList sink_;

 public:
  InboundAnswers(InboundStream& in, SendQueue& sends, CompletionOrder& order)
      : in_(in), sends_(sends), order_(order) {}

  void reset() { read_open_ = false; }
  void restart() { atomic_sequence_ = UntaggedSequence(in_.stream.config.first_msn); }
  /// Between the first and the last segment of a Read Response.
  bool message_open() const { return read_open_; }
  /// Queue 3. Only its number moves.
  const UntaggedSequence& atomic_sequence() const { return atomic_sequence_; }

  /// A segment of a Read Response has come; false if it failed the stream.
  [[gnu::noinline]] void open(const TaggedHeader& header);
  /// The payload of the segment under way is in place.
  void finish_segment();
  void take(const AtomicResponseHeader& header);
  /// A whole FPDU that is the answer to a Read that only acknowledges.
  bool is_acknowledgement(const std::byte* fpdu) const;
  /// The oldest request has its answer.
  [[gnu::noinline]] void finish();

  /// The memory of the answer under way.
  BufferList& sink() { return sink_; }
  /// The answer at hand is wrong, or does not fit what was asked. False.
  [[gnu::noinline, gnu::cold]] bool fail(TerminateCode code, WcStatus status);
  /// The place where it belongs is not, or no longer, what it must be.
  [[gnu::noinline, gnu::cold]] void fail_place();

 private:
  bool gather(uint64_t position);
};

// RDMA Writes of the peer: where their segments belong, and the empty ones that mean something
// between uwarps. Receive side.
class InboundWrites {
  InboundStream& in_;
  CompletionOrder& order_;
  RemoteRange place_;
  bool message_open_ = false;
  STag stag_;
  uint64_t bytes_ = 0;                // of the last Write since the last message of queue 0
  std::optional<TaggedOffset> next_;  // of the Write's next byte, once one has been placed

 public:
  InboundWrites(InboundStream& in, CompletionOrder& order) : in_(in), order_(order) {}

  void reset();
  /// A segment has come. Looks its place up, or fails the stream.
  void open(const TaggedHeader& header);
  /// Between the first and the last segment of a Write.
  bool message_open() const { return message_open_; }
  /// Bytes of the last Write, if it has ended and nothing on queue 0 has followed it; else 0.
  uint32_t last_length() const { return message_open_ ? 0 : static_cast<uint32_t>(bytes_); }
  void forget_length() { bytes_ = 0; }

  /// Of the segment under way.
  std::byte* target() const { return place_.address + in_.segment.payload_offset; }
  /// The kernel may write the payload. Not through a window: unbinding must not have to wait for a
  /// receive call. Not into memory that may not be there: the failed call would not say which of
  /// the segment's bytes have come.
  bool direct() const {
    return place_ && place_.memory == MemoryKind::kPlain && !place_.through_window() &&
           place_.region->key.load(std::memory_order_acquire) == stag_.value;
  }
  /// The next bytes of the segment. False if the memory may not be touched any more, or is not
  /// there.
  bool store(const std::byte* from, uint32_t size);
  /// The place of [offset, offset + size) behind the begin of the segment under way, if the peer
  /// may write there and the kernel may do it for us.
  bool find_behind(uint64_t offset, uint64_t size, RemoteRange& place) const;
  /// The region has become another under the same key: the rest of the segment goes where the
  /// region is now, or fails.
  void resolve_again(const MemoryRegion& region);

 private:
  RegionFault resolve(STag stag, TaggedOffset offset, uint64_t size, RemoteRange& place) const {
    return in_.config.regions->remote(stag, offset, size, kAccessRemoteWrite,
                                      in_.stream.peer(in_.config.domain), place);
  }
  [[gnu::noinline, gnu::cold]] void take_carrier_write(const TaggedHeader& header);
  [[gnu::noinline, gnu::cold]] void tell_persona();
  [[gnu::noinline, gnu::cold]] void take_persona_write(const TaggedHeader& header);
  [[gnu::noinline]] void take_empty(const TaggedHeader& header, bool alone);
};

// Messages that take a receive: Sends of all kinds, and Immediate Data. From their first segment to
// the receive completion. Receive side.
class InboundMessages {
  InboundStream& in_;
  ReceiveQueue& receives_;
  ReceivePlace queue_place_;
  InboundWrites& writes_;
  CompletionOrder& order_;
  UntaggedSequence sequence_;
  const bool unusual_;  // faults may be injected, messages name their queue, or take no receive
  bool report_queue_ = false;
  CompletionQueue* completions_;         // of the receive that is in use
  const ProtectionDomain* domain_;       // ... of its memory
  const XrcQueue* named_ = nullptr;      // XRC: that the last message has named
  QueueNumber qn_ = QueueNumber::kSend;  // the same in all segments of the message
  bool taken_ = false;                   // a receive is in use
  /// What the last receive was when a message had waited long enough for the next one.
  std::optional<uint32_t> grace_ended_at_;
  RecvWqe receive_;
  BufferList sink_;
  /// Of a message that is read and dropped, in place of its own opcode. No segment has it, so that
  /// only rare paths meet it.
  static constexpr RdmapOpcode kDropped{0xE};
  static_assert(!traits(kDropped).defined);
  RdmapOpcode opcode_ = RdmapOpcode::kSend;  // the same in all segments of the message
  RdmapOpcode dropped_opcode_ = kDropped;
  uint32_t invalidate_ = 0;  // its Invalidate STag, or immediate of our own Send
  std::byte immediate_[kImmediateSize];
  /// The application answers over another queue pair, and nothing orders two streams: the peer is
  /// to have the acknowledgement of its message before the application has the message.
  struct Deferred {
    CompletionQueue* queue;
    WorkCompletion completion;
    bool solicited;
  };
  const bool defers_;
  std::optional<Deferred> deferred_;

 public:
  InboundMessages(InboundStream& in, ReceiveQueue& receives, InboundWrites& writes,
                  CompletionOrder& order);

  void reset();
  void restart() { sequence_ = UntaggedSequence(in_.stream.config.first_msn); }
  /// Between the first and the last segment of a message.
  bool message_open() const { return sequence_.open(); }
  /// The last message that has been delivered.
  Msn delivered() const { return sequence_.expected().previous(); }

  /// A segment has come. False: it is held for want of a receive, or has failed the stream.
  bool open(const UntaggedHeader& header);
  /// The payload of the segment under way is in place.
  void finish_segment();

  /// No receive is posted for the message that has come.
  bool rnr_blocked() const { return queue_place_.rnr_blocked(); }
  void end_rnr_block() { queue_place_.go_on(); }
  /// The message that is held waits no longer: it is dropped when the stream goes on, and so are
  /// those behind it until there is a receive again.
  void end_grace() { grace_ended_at_ = receive_.position; }

  /// The memory of the message under way.
  BufferList& sink() { return sink_; }
  /// The receive cannot be used; nothing is wrong with the message. False.
  [[gnu::noinline, gnu::cold]] bool fail_receive(WcStatus status = WcStatus::kLocProtErr);
  /// The stream has failed. If that was a segment of a Write whose Immediate Data will not come
  /// now: the receive that this would have taken fails, as with InfiniBand.
  [[gnu::noinline, gnu::cold]] void fail_immediate();
  /// No more bytes will come: the receive that was taken is flushed, and those that wait.
  void flush();

  /// XRC: the answers that were owed have been sent: stores the completion that waited for that.
  [[gnu::noinline]] void complete_deferred();
  /// XRC: where receives complete, if a message has named a queue since the last reset.
  CompletionQueue* named_completions() const {
    return named_ != nullptr ? named_->completions : nullptr;
  }
  /// XRC: `queue` is going away. What has taken a receive of it, or waits for one, fails the
  /// stream.
  void forget(const XrcQueue& queue);
  /// The next message that takes a receive reports kRxNewQueue.
  void report_queue() { report_queue_ = true; }

 private:
  bool take_receive(const UntaggedHeader& header);
  [[gnu::noinline]] bool take_sink();
  [[gnu::noinline]] bool aim(const UntaggedHeader& header);
  [[gnu::noinline]] void aim_nowhere();
  [[gnu::noinline, gnu::cold]] std::optional<bool> apply_faults(const UntaggedHeader& header);
  [[gnu::noinline]] bool block_rnr();
  [[gnu::noinline]] bool do_without_receive();
  bool drop();
  void read_away();
  void finish();
  [[gnu::noinline]] bool describe(WorkCompletion& completion, bool& solicited);
  /// The message is wrong, or does not fit its receive. False.
  [[gnu::noinline, gnu::cold]] bool fail(TerminateCode code, QpEvent event, WcStatus status);
  [[gnu::noinline, gnu::cold]] bool lose_long_message(TerminateCode code);
  [[gnu::noinline, gnu::cold]] bool fail_range(TerminateCode code);
  WorkCompletion completion(WcStatus status, uint32_t vendor_err) const;
  void push(const WorkCompletion& completion, bool solicited);
  void end_receive(WcStatus status);
  void store(CompletionQueue& queue, const WorkCompletion& completion, bool solicited);
  [[gnu::noinline, gnu::cold]] void trace_receive(
      TraceStep::Kind kind, WcStatus status, TraceStep::Phase phase = TraceStep::Phase::kBegun);
};

}  // namespace uwarp
