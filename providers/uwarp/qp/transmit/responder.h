// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What this side owes the peer: answers to its Reads and atomics, in the order of the requests, and
// news of its Sends that were delivered. Transmit side. RFC 5040 5.2, RFC 7306 5.2.
#pragma once

#include <cstdint>
#include <optional>

#include "qp/stream_state.h"
#include "qp/transmit/fpdu_writer.h"

namespace uwarp {

class Responder {
 public:
  Responder(const QpConfig& config, StreamState& stream, FpduWriter& writer,
            TransmitCounters& counters)
      : config_(config), stream_(stream), writer_(writer), counters_(counters) {}

  void restart();
  void reset() { open_ = false; }
  /// Forgets the Read Response under way.
  void drop_message() { open_ = false; }

  /// A Read Response has been begun and not ended.
  bool open() const { return open_; }
  uint64_t left() const { return message_bytes_ - offset_; }
  /// Answers the oldest request. An atomic is answered at once; a Read opens a Read Response.
  [[gnu::noinline]] void begin();
  /// The next segment of the open Read Response. False: it has no room in the batch.
  [[gnu::noinline]] bool append_segment();
  /// Payload of answers that are built goes from where it lies and has not all gone.
  bool gathers() const { return gathered_end_ > writer_.sent_position(); }

  /// The peer is to be told what has been delivered here before it sees a message that takes a
  /// receive.
  bool delivery_due() const {
    return stream_.marks_deliveries(config_) &&
           stream_.delivered.load(std::memory_order_acquire) != told_delivered_.value;
  }
  [[gnu::noinline]] void emit_delivered_mark(bool next_waits = false);

 private:
  void answer_atomic(const InboundRequest& request);
  std::optional<uint64_t> execute(const AtomicRequestHeader& request, const RemotePlace& cell);
  FpduWriter::Built append_from(const RemotePlace& source, STag stag, const TaggedHeader& header,
                                uint32_t size);
  void answered(const InboundRequest& request);
  [[gnu::noinline]] void fail(TerminateCode code);

  const QpConfig& config_;
  StreamState& stream_;
  FpduWriter& writer_;
  TransmitCounters& counters_;
  bool open_ = false;
  Msn atomic_msn_;      // of the next Atomic Response
  Msn told_delivered_;  // what the peer knows to have been delivered here
  uint64_t offset_ = 0;
  uint64_t message_bytes_ = 0;
  uint64_t gathered_end_ = 0;  // behind the last answer that goes from where it lies
};

}  // namespace uwarp
