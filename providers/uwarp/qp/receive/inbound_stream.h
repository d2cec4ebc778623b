// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the parts of the receive side share: the segment under way, what the present call has found,
// and how the stream fails. One thread at a time, except for closed().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "protocol/rdmap/segment_rules.h"
#include "qp/message_kind.h"
#include "qp/stream_state.h"

namespace uwarp {

/// What a receive call found besides completions; bits.
enum ReceiveOutcome : uint32_t {
  kRxNothing = 0,
  kRxTransmitWanted = 1u << 0,  // the transmit side has something to do: call the pump
  kRxHeld = 1u << 1,            // no receive posted: stop reading until receive_resumable()
  kRxFailed = 1u << 2,          // the stream failed: flush(), pump the Terminate out, then FIN
  kRxTerminated = 1u << 3,      // the peer's Terminate came: flush(), then FIN
  kRxFirstFpdu = 1u << 4,       // the first FPDU of this stream has come
  kRxMagic = 1u << 5,           // the peer has shown that it is a uwarp
  kRxOffer = 1u << 6,           // it offers shared memory: StreamState::peer_mailbox
  kRxSwitch = 1u << 7,          // what follows comes through shared memory
  kRxNewQueue = 1u << 8,  // receives complete to a queue whose pollers should drive the stream
  kRxKept = 1u << 9,      // once what is owed has been sent: Receiver::complete_kept()
};

/// A DDP segment as its header says, and how much of its payload has come.
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
    payload_left -= static_cast<uint32_t>(size);
    payload_offset += size;
  }
};

struct InboundStream {
  InboundStream(const QpConfig& config, StreamState& stream, ReceiveCounters& counters)
      : config(config),
        stream(stream),
        counters(counters),
        extensions_(config.extensions),
        shared_queues_(config.xrc != nullptr) {}

  const QpConfig& config;
  StreamState& stream;
  ReceiveCounters& counters;
  InboundSegment segment;
  uint32_t outcome = kRxNothing;     // of the call at hand
  uint32_t when_whole = kRxNothing;  // outcome once the FPDU under way, a Write, has come whole

  /// Further bytes are dropped: the stream failed or ended.
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
  /// Ends the stream.
  [[gnu::noinline, gnu::cold]] void fail(const StreamFailure& failure,
                                         std::optional<QpEvent> event);
  [[gnu::noinline, gnu::cold]] void fail(TerminateCode code, QpEvent event, bool with_header) {
    fail(failure(code, with_header), event);
  }

 private:
  [[gnu::noinline, gnu::cold]] void trace_fpdu(RdmapOpcode opcode);

  std::atomic<bool> closed_{true};
  const bool extensions_;
  const bool shared_queues_;
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

}  // namespace uwarp
