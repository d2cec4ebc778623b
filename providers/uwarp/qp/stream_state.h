// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the two directions of one stream share: the Reads and atomics under way, what was
// negotiated, and the one failure that ends it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "base/atomics.h"
#include "base/lent_memory.h"
#include "base/remote_memory.h"
#include "base/spinlock.h"
#include "counters/page_layout.h"
#include "protocol/mpa/fpdu.h"
#include "protocol/rdmap/read_queues.h"
#include "protocol/wire/control_writes.h"
#include "protocol/wire/rdmap_headers.h"
#include "protocol/wire/terminate_code.h"
#include "qp/handoff_lock.h"
#include "qp/qp_config.h"
#include "qp/work_request.h"

namespace uwarp {

// SQD: new requests wait, and the application may want to know when those that run are done. Both
// are one word, so that no thread sees the one without the other.
class SendDrain {
 public:
  /// New requests wait from now on. The caller has the transmit side, so that the last request
  /// retires before this or after it, and calls due() before it lets go.
  void begin(bool notify) {
    word_.store(notify ? kPaused | kNotify : kPaused, std::memory_order_release);
  }
  /// Requests start again, and no thread is told. Any thread.
  void end() { word_.store(0, std::memory_order_release); }
  /// As it is but for the notification.
  void forget() { word_.fetch_and(kPaused, std::memory_order_relaxed); }
  bool paused() const { return word_.load(std::memory_order_acquire) != 0; }
  bool notifies() const { return (word_.load(std::memory_order_relaxed) & kNotify) != 0; }
  /// For the thread with the transmit side, whenever requests may have retired. True once, if a
  /// notification is wanted and `drained()`: the caller raises it.
  template <class Drained>
  bool due(Drained&& drained) {
    return notifies() && drained() &&
           (word_.fetch_and(kPaused, std::memory_order_acq_rel) & kNotify) != 0;
  }

 private:
  enum : uint32_t { kPaused = 1, kNotify = 2 };  // the latter only with the former
  Atomic<uint32_t> word_{0};
};

// Which counter an RDMAP opcode belongs to.

namespace message_kind_detail {
using K = MessageKind;
// In the order of RdmapOpcode; reserved opcodes are never counted.
inline constexpr std::array<MessageKind, 16> kKinds = {
    K::kWrite,     K::kReadRequest, K::kReadResponse,  K::kSend,
    K::kSend,      K::kSend,        K::kSend,          K::kTerminate,
    K::kImmediate, K::kImmediate,   K::kAtomicRequest, K::kAtomicResponse,
    K::kSend,      K::kSend,        K::kSend,          K::kSend};
}  // namespace message_kind_detail

/// `opcode` is one of four bits.
constexpr MessageKind message_kind(RdmapOpcode opcode) {
  return message_kind_detail::kKinds[static_cast<size_t>(opcode)];
}
static_assert(message_kind(RdmapOpcode::kAtomicResponse) == MessageKind::kAtomicResponse);
static_assert(message_kind(RdmapOpcode::kImmediateSolicited) == MessageKind::kImmediate);
static_assert(message_kind(RdmapOpcode::kSendImmediate) == MessageKind::kSend);

// What a Terminate means to the work request that it names.

/// Completion status of the send request that a received Terminate blames.
inline WcStatus terminate_status(TerminateCode received) {
  switch (received) {
    case TerminateCode::kRdmapInvalidSTag:
    case TerminateCode::kRdmapBounds:
    case TerminateCode::kRdmapAccess:
    case TerminateCode::kRdmapSTagNotOfStream:
    case TerminateCode::kRdmapToWrap:
    case TerminateCode::kRdmapProtectionUnspecified:
    case TerminateCode::kRdmapCannotInvalidate:
    case TerminateCode::kRdmapOperationCannotInvalidate:
    case TerminateCode::kDdpTaggedInvalidSTag:
    case TerminateCode::kDdpTaggedBounds:
    case TerminateCode::kDdpTaggedSTagNotOfStream:
    case TerminateCode::kDdpTaggedToWrap:
      return WcStatus::kRemAccessErr;
    case TerminateCode::kRdmapUnexpectedOpcode:
    case TerminateCode::kRdmapStreamCatastrophic:
    case TerminateCode::kDdpUntaggedInvalidQn:
    case TerminateCode::kDdpUntaggedTooLong:
      return WcStatus::kRemInvReqErr;
    default:
      return WcStatus::kRemOpErr;
  }
}

/// Remote protection errors name memory that the peer may not touch.
inline bool is_protection_error(TerminateCode code) { return layer(code) == 0 && etype(code) == 1; }

/// Whether a request of this kind can have caused the Terminate, by the class of its error. For a
/// Terminate that gives no header.
inline bool may_have_caused(TerminateCode received, SendOpcode opcode) {
  if (is_local(opcode)) return false;
  constexpr uint8_t kDdp = 1, kLocal = 0, kTagged = 1, kUntagged = 2;
  if (received == TerminateCode::kRdmapCannotInvalidate ||
      received == TerminateCode::kRdmapOperationCannotInvalidate)
    return opcode == SendOpcode::kSendWithInvalidate;
  if (is_protection_error(received)) return is_write(opcode) || awaits_answer(opcode);
  if (layer(received) == kDdp && etype(received) == kTagged) return is_write(opcode);
  if (layer(received) == kDdp && etype(received) == kUntagged) return takes_receive(opcode);
  // Something at the peer itself, as a rule the memory of its receive: InfiniBand blames the Send.
  if (layer(received) <= kDdp && etype(received) == kLocal) return takes_receive(opcode);
  return true;
}

/// Why a stream ends. The first failure stands; later ones are ignored. RFC 5040-7.1-e.
struct StreamFailure {
  static constexpr uint64_t kNoRequest = ~uint64_t{0};

  bool send_terminate = false;  // `terminate` goes out as the last FPDU
  bool by_peer = false;         // `terminate` came from the peer
  TerminateHeader terminate;
  uint64_t request = kNoRequest;  // send request with a status of its own
  WcStatus status = WcStatus::kWrFlushErr;
  bool oldest_request = false;  // ... or the one that is the oldest open one at the flush

  /// vendor_err of the failing request: layer<<16 | etype<<8 | code, bit 31 if received.
  uint32_t vendor_err() const {
    if (!send_terminate && !by_peer) return 0;
    const uint32_t value = static_cast<uint32_t>(layer(terminate.code)) << 16 |
                           static_cast<uint32_t>(etype(terminate.code)) << 8 | code(terminate.code);
    return by_peer ? value | 1u << 31 : value;
  }

  static StreamFailure terminated_by_us(TerminateCode code) {
    StreamFailure failure;
    failure.send_terminate = true;
    failure.terminate.code = code;
    return failure;
  }
};

class StreamState {
 public:
  explicit StreamState(QpEventListener* listener) : listener_(listener) {}

  /// Makes everything ready for a new stream, with all the memory that it needs for Reads and
  /// atomics. Both directions quiet. Throws std::bad_alloc, and the stream has not begun then.
  void restart(const StreamConfig& new_config);

  /// Records the failure that ends the stream and raises `event`, if this is the first one.
  [[gnu::noinline, gnu::cold]] void fail(const StreamFailure& failure,
                                         std::optional<QpEvent> event);
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  /// The peer reads and writes the memory of `domain` by itself through `gate`, until the stream
  /// fails. Any thread. `gate` is in use until close_gate().
  void open_gate(RemoteGate& gate, const void* domain);
  void close_gate();
  /// The rights have changed that the queue pair grants.
  void set_remote_access(uint32_t access);

  /// Stable once failed() is true.
  const StreamFailure& failure() const { return failure_; }
  /// Forgets a failure (RESET).
  void clear_failure();

  [[gnu::noinline, gnu::cold]] void raise(QpEvent event) {
    if (listener_ != nullptr) listener_->qp_event(event);
  }

  StreamConfig config;
  [[no_unique_address]] SidesOfThread mine;
  /// A large segment says how many of the same size follow it, so that the receiver reads them
  /// together. Only a uwarp knows that (docs/wire.md), and it helps only where payloads go straight
  /// to their place.
  bool announces_runs(size_t ulpdu_bytes) const {
    return ulpdu_bytes >= kLargeUlpdu && !config.crc &&
           peer_is_uwarp.load(std::memory_order_relaxed);
  }
  /// The accessor for keys of ours that the peer uses.
  RemoteAccessor peer(const ProtectionDomain* domain) const {
    return {domain, identity, remote_access.load(std::memory_order_relaxed)};
  }

  /// The peer's first FPDU has not come and will say whether the peer is a uwarp: as initiator we
  /// have shown ourselves, as responder we wait for the peer to do so.
  bool peer_will_show() const {
    return running.load(std::memory_order_acquire) && !first_fpdu.load(std::memory_order_acquire) &&
           (config.rtr == StreamConfig::Rtr::kWrite || config.wait_for_first_fpdu);
  }
  /// Receive completions say which Sends of ours they follow: between uwarps whose Sends wait for
  /// acknowledgements.
  bool reports_deliveries(const QpConfig& qp) const {
    return qp.acknowledged && peer_is_uwarp.load(std::memory_order_relaxed);
  }

  /// A responder sends nothing before the initiator's first FPDU. RFC 5044-7.1.2-c, 6581-9.2-e.
  bool must_be_silent() const {
    return config.wait_for_first_fpdu && !first_fpdu.load(std::memory_order_acquire);
  }

  OutboundRequests outbound;
  InboundRequests inbound;
  const uint64_t identity = next_identity();  // RemoteAccessor::stream
  std::atomic<uint16_t> ord{0};
  /// Send requests before this position are known to have been placed (QpConfig::acknowledged).
  std::atomic<uint64_t> acknowledged{0};
  void acknowledge(uint64_t before) {
    uint64_t known = acknowledged.load(std::memory_order_acquire);
    while (known < before && !acknowledged.compare_exchange_weak(known, before)) {
    }
  }
  /// The last message on queue 0 whose receive completion has been stored here, or is the next to
  /// be (XRC).
  std::atomic<uint32_t> delivered{0};
  /// The same as far as the carrier has told the peer.
  std::atomic<uint32_t> told_delivered{0};
  /// What the peer has said of ours: the MSN of DeliveredWrite, and kNextWaits.
  std::atomic<uint64_t> peer_delivered{0};
  static constexpr uint64_t kNextWaits = uint64_t{1} << 32;
  std::atomic<bool> running{false};        // a stream is attached
  std::atomic<bool> first_fpdu{false};     // the peer's first FPDU has come
  std::atomic<bool> peer_is_uwarp{false};  // ... and carried the magic, or a later one did
  std::atomic<bool> peer_delays{false};    // it has a wire of its own (WireWrite)
  std::atomic<PersonaWrite::Said> peer_persona{PersonaWrite::Said::kNothing};
  std::atomic<bool> answer_due{false};  // owe the magic's answer
  std::atomic<bool> nudge_due{false};   // a zero-length Write is due if nothing else is sent
  // What is to be said to the peer: that a message waits for a receive (DeliveredWrite), which
  // persona this side has (PersonaWrite), and what concerns peers on the same host (CarrierWrite);
  // and what it has said. The values are set before their bit, and read by the side that it is for.
  enum ControlWriteDue : uint32_t {
    kMailboxDue = 1,
    kNumberDue = 2,
    kSwitchDue = 4,
    kWaitDue = 8,
    kPersonaDue = 16
  };
  std::atomic<uint32_t> control_writes_due{0};
  /// Whether it is due. It is not, from then on.
  bool take_control_write(ControlWriteDue bit) {
    if ((control_writes_due.load(std::memory_order_acquire) & bit) == 0) return false;
    control_writes_due.fetch_and(~uint32_t{bit}, std::memory_order_relaxed);
    return true;
  }
  uint64_t mailbox = 0, letter_number = 0;            // of ours, to be offered
  uint64_t peer_mailbox = 0, peer_letter_number = 0;  // that it has offered
  std::atomic<bool> establish_event{false};           // the first FPDU raises kCommEstablished
  /// No new request starts: the peer has gone without a disconnect, or a request has failed.
  std::atomic<bool> silent{false};
  std::atomic<bool> lost{false};             // the peer has been given up: requests fail
  LentMemory* lent = nullptr;                // or null; under the transmit side
  RemoteMemory* remote = nullptr;            // the same
  SendDrain drain;                           // SQD
  std::atomic<uint32_t> remote_access{~0u};  // rights that the queue pair grants to the peer

 private:
  static uint64_t next_identity();

  QpEventListener* const listener_;
  SpinLock failure_lock_;
  void let_peer_in() REQUIRES(failure_lock_);

  std::atomic<bool> failed_{false};
  StreamFailure failure_ GUARDED_BY(failure_lock_);
  RemoteGate* gate_ GUARDED_BY(failure_lock_) = nullptr;  // or null
  const void* gate_domain_ GUARDED_BY(failure_lock_) = nullptr;
};

}  // namespace uwarp
