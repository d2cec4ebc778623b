// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The receive side of a stream: says where the next bytes belong, and takes FPDUs off the stream
// one after the other. One thread at a time (QueuePair's receive lock).
//
// Between two calls all that is kept is a partial header, the position inside a payload, and, only
// while a stream is held or a CRC is waiting for its FPDU, a staging buffer.
#pragma once

#include <sys/uio.h>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/limits.h"
#include "protocol/wire/ddp_headers.h"
#include "qp/receive/inbound_stream.h"

namespace uwarp {

// Where bytes of the stream land that have no place of their own yet: headers, small messages,
// whole FPDUs when the CRC is on. Belongs to the thread that progresses, not to the queue pair; a
// queue pair keeps one only while it holds more unconsumed bytes than fit its carry.

/// Two FPDUs of the largest size (2 + 65535 + 3 + 4 bytes) and some headers.
inline constexpr size_t kStagingBytes = 2 * 65544 + 4096;

struct StagingBuffer {
  alignas(64) std::byte bytes[kStagingBytes];
  /// The window of the call at hand: the segment under way and its end; for each of a run its
  /// staged bytes and its place.
  static constexpr size_t kIovecs = kMaxSge + 2 + 2 * DdpControl::kMostFollowing;
  iovec iovecs[kIovecs];
};
using StagingPointer = std::unique_ptr<StagingBuffer>;

// The bytes of the stream that have come and have not been consumed. In a staging buffer during a
// call; between two calls in a small carry, or where they are more in a buffer that is kept.
class StagedBytes {
 public:
  /// A call begins, with the buffer of its thread.
  void begin(StagingPointer& staging);
  /// It ends. `staging` is null afterwards if it is kept. `closed`: what is left means nothing.
  void end(StagingPointer& staging, bool closed);
  void reset();
  /// Makes room for an FPDU of any size behind the bytes that are here.
  void make_space();

  const std::byte* data() const { return bytes_ + begin_; }
  size_t size() const { return end_ - begin_; }
  void consume(size_t size) {
    assert(size <= this->size());
    begin_ += size;
  }
  std::byte* space() { return bytes_ + end_; }
  size_t space_size() const { return kStagingBytes - end_; }
  void add(size_t size) {
    assert(size <= space_size());
    end_ += size;
  }
  /// Takes `size` bytes out that begin `offset` behind data().
  void take_out(size_t offset, size_t size);
  /// Between two calls: something is left.
  bool pending() const { return carry_size_ > 0 || kept_ != nullptr; }

 private:
  // Largest control FPDU, and what a header or a held-back tail may leave behind.
  static constexpr size_t kCarryBytes = 128;

  std::byte* bytes_ = nullptr;
  size_t begin_ = 0;
  size_t end_ = 0;
  StagingPointer kept_;
  uint32_t carry_size_ = 0;
  std::byte carry_[kCarryBytes];
};

/// A member of its QueuePair. Closed, so that what comes is dropped, until restart() begins a
/// stream. From then on each received() follows a next_iovecs(), and takes as many FPDUs as have
/// come whole. Held while a message has no receive: resume() goes on, expire() gives up. Closed
/// again once the stream has failed or the peer's Terminate has come, and by flush(), close() and
/// reset(). After flush() no receive is taken, and after reset() no byte is kept either.
class Receiver {
  // Under the receive side, but for closed() and rnr_blocked(): the stream, ...
  InboundStream in_;
  CompletionOrder order_;
  InboundWrites writes_;
  InboundMessages messages_;
  InboundAnswers answers_;
  UntaggedSequence request_sequence_;  // queue 1, only its number
  StagedBytes staged_;

  // ... and the segment under way.
  bool open_ = false;           // its header has been taken
  uint8_t expect_large_ = 0;    // segments
  BufferList* sink_ = nullptr;  // of what is no Write: where its payload goes
  uint32_t trailer_left_ = 0;
  uint64_t done_bytes_ = 0;   // see done_bytes()
  uint64_t ahead_bytes_ = 0;  // of FPDUs behind those: read_ahead()
  size_t direct_bytes_ = 0;   // of the last window, that go straight to their place
  size_t next_bytes_ = 0;     // ... and all of it
  SegmentRun run_;            // segments behind the one under way

 public:
  Receiver(const QpConfig& config, SendQueue& sends, ReceiveQueue& receives, StreamState& stream,
           CompletionOrder order, ReceiveCounters& counters);

  /// Begins a stream (StreamState::restart was called).
  void restart();
  /// Where the next bytes belong. `staging` must be non-null.
  std::span<const iovec> next_iovecs(StagingPointer& staging);
  /// Bytes that it has room for.
  size_t next_bytes() const { return next_bytes_; }
  /// The stream gave `bytes` into the last window. May keep `staging` (null on return, or another).
  /// Returns ReceiveOutcome bits, as the following calls do.
  uint32_t received(StagingPointer& staging, size_t bytes);
  /// For the next received(): what it finds may answer requests that the peer has read only now out
  /// of our memory.
  void note_acknowledged() { order_.note_acknowledged(); }
  /// Goes on after kRxRnrBlocked: consumes what is kept.
  uint32_t resume(StagingPointer& staging);
  /// What is owed to the peer has been sent: the completion that waited for that (XRC) is stored.
  uint32_t complete_deferred();
  /// The grace time of a held stream is over: Terminate 1/2/02. Of an unreliable one: resume()
  /// follows, and drops the message.
  uint32_t expire();
  /// The kernel could not write to the place of the last window (memory unmapped): Terminate.
  uint32_t fault();

  /// Bytes of the stream up to an FPDU behind which nothing has been placed or completed.
  uint64_t done_bytes() const { return done_bytes_; }
  /// Further bytes are dropped: the stream failed or ended. Reads only to see the FIN.
  bool closed() const { return in_.closed(); }
  void close() { in_.close(); }
  bool rnr_blocked() const { return messages_.rnr_blocked(); }
  /// Held, but reading goes on: an acknowledgement is due that may be behind the message that
  /// waits, and there is room to keep what comes before it.
  bool reads_ahead() const {
    return rnr_blocked() && in_.config.acknowledged && !closed() && !in_.stream.outbound.empty() &&
           staged_.size() < kStagingBytes;
  }
  /// A large message is under way, or another one is likely to follow the last.
  bool expects_large() const { return expect_large_ != 0; }
  /// Inside an FPDU or a message: a FIN here is an error.
  bool mid_message() const;
  /// No more bytes will come; the taken receive buffer and the queue are flushed.
  void flush();
  void reset();
  /// Nothing that was found by this region's local key is written after this.
  void quiesce(const MemoryRegion& region);
  /// The region has become another under the same keys.
  void resolve_again(const MemoryRegion& region);
  InboundMessages& messages() { return messages_; }

 private:
  /// The last bytes of a segment are always copied: those of a Write are stored after all others,
  /// because applications poll them.
  static constexpr uint32_t kTailBytes = 8;

  uint32_t consume(StagingPointer& staging);
  [[gnu::noinline, gnu::cold]] void read_ahead();

  // One FPDU. Each step returns false if it needs more bytes, or may not go on.
  bool read_header();
  [[gnu::noinline]] bool check_frame();
  bool open_message();
  bool take_payload();
  [[gnu::noinline, gnu::cold]] bool fail_payload();
  [[gnu::noinline, gnu::cold]] bool bring_back();
  void note_first_fpdu() {
    if (!in_.stream.first_fpdu.load(std::memory_order_relaxed)) take_first_fpdu();
  }
  [[gnu::noinline, gnu::cold]] void take_first_fpdu();

  // Where its payload belongs.
  bool is_write() const { return in_.segment.opcode == RdmapOpcode::kWrite; }
  /// Describes the place of all that is missing but for the tail, if the kernel may write it.
  /// Returns how many iovecs that takes; 0: it may not.
  size_t describe_payload(iovec* iovecs);
  /// Describes the announced segments behind the rest of the one under way. Each goes to its place
  /// except for its tail, which is staged with trailer and next header. Opens the run, and returns
  /// how many iovecs are in use. The headers are checked when all of it has come, and must name
  /// these places.
  [[gnu::noinline]] size_t describe_run(iovec* iovecs, size_t count);

  // A message that is all header.
  [[gnu::noinline]] bool take_control();
  bool check_control(size_t size);
  /// A Read or atomic that the peer asks for: checked on arrival, then queued for the transmit
  /// side, which executes them in order.
  template <typename Header>
  void take_request(const Header& header);
  void take_terminate(std::span<const std::byte> rdmap);
};

}  // namespace uwarp
