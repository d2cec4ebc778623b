// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a queue pair is made with, and what the MPA start-up settles for its stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/ids.h"
#include "base/limits.h"
#include "counters/page_layout.h"
#include "counters/trace_sink.h"
#include "inject/fault_script.h"
#include "memory/region_table.h"
#include "protocol/wire/control_writes.h"
#include "protocol/wire/datagram_header.h"
#include "qp/completion_queue.h"
#include "qp/receive_queue.h"
#include "qp/xrc_domain.h"

namespace uwarp {

// Where the messages of a stream go that belong to no posted receive: those of a trunk, which has
// many datagrams in each. Sends only; anything else fails the stream.

/// Called with the receive side of the queue pair held: must not block.
class MessageSink {
 public:
  virtual ~MessageSink() = default;
  /// Memory for the message that begins, valid until arrived() or the next call. Empty: not now;
  /// the stream is held until Receiver::resume(). A message that does not fit fails the stream.
  virtual std::span<std::byte> space() = 0;
  /// The message is whole, in the memory that space() gave.
  virtual void arrived(size_t bytes) = 0;
};

/// Values of ibv_qp_state.
enum class QpState : uint8_t {
  kReset = 0,
  kInit = 1,
  kRtr = 2,
  kRts = 3,
  kSqd = 4,
  kSqe = 5,
  kErr = 6,
};

/// What queue pairs are, as ibv_qp_type has it. All but kRc exist in the roce persona only.
enum class Transport : uint8_t { kRc, kUc, kUd, kXrcSend, kXrcReceive };
/// What the other end of a connection is.
constexpr Transport peer_of(Transport transport) {
  return transport == Transport::kXrcSend      ? Transport::kXrcReceive
         : transport == Transport::kXrcReceive ? Transport::kXrcSend
                                               : transport;
}
constexpr bool is_xrc(Transport transport) {
  return transport == Transport::kXrcSend || transport == Transport::kXrcReceive;
}

/// No acknowledgements, Reads or repetitions: a message that finds no peer or no receive is lost.
constexpr bool is_unreliable(Transport transport) {
  return transport == Transport::kUc || transport == Transport::kUd;
}

/// Values of the ibv_event_type that a queue pair raises.
enum class QpEvent : uint8_t {
  kFatal = 1,
  kRequestError = 2,
  kAccessError = 3,
  kCommEstablished = 4,
  kSqDrained = 5,
  kLastWqeReached = 16,
};

/// Gets a queue pair's asynchronous events. May be called with its locks held: must not block nor
/// call back into the queue pair.
class QpEventListener {
 public:
  virtual ~QpEventListener() = default;
  virtual void qp_event(QpEvent event) = 0;
};

/// What a queue pair is made with. Everything pointed to outlives it.
struct QpConfig {
  /// Its receives come from queues that are not its own.
  bool shares_receives() const { return srq != nullptr || xrc != nullptr; }
  /// Of the memory of its receives. One that was posted to a shared queue belongs to that.
  ProtectionDomain* receive_domain() const { return srq_domain != nullptr ? srq_domain : domain; }
  /// It or its peer may reach regions of `other`.
  bool may_use(const ProtectionDomain* other) const {
    return other == domain || other == receive_domain() || xrc != nullptr;
  }

  Qpn number{0};
  Transport transport = Transport::kRc;
  ProtectionDomain* domain = nullptr;
  CompletionQueue* send_cq = nullptr;
  CompletionQueue* recv_cq = nullptr;
  SharedReceiveQueue* srq = nullptr;       // null: own receive queue
  ProtectionDomain* srq_domain = nullptr;  // null: the same
  XrcDomain* xrc = nullptr;                // kXrcReceive: each message names a shared queue of it
  /// Told when a buffer of `srq` has come for the held stream. May be null: then the thread that
  /// posts to the shared queue resumes all streams that are held.
  ReceiveWaiter* receive_waiter = nullptr;
  /// Takes what comes instead of receives; null but for trunks.
  MessageSink* sink = nullptr;
  RegionTable* regions = nullptr;
  QpEventListener* listener = nullptr;
  uint32_t max_send_wr = 1;
  uint32_t max_recv_wr = 1;
  uint32_t max_send_sge = 1;
  uint32_t max_recv_sge = 1;
  uint32_t max_inline_bytes = 0;
  uint32_t max_read_sge = kMaxSgeRead;
  uint32_t max_message_bytes = kMaxMessageBytes;
  uint32_t max_datagram_bytes = kMaxDatagramBytes;
  bool atomics = true;  // may be posted
  bool signal_all = false;
  /// Sends and Writes complete once the peer has placed them: a zero-length Read without a
  /// completion follows each batch, and its answer says so. For applications that rely on
  /// InfiniBand's acknowledgements.
  bool acknowledged = false;
  bool extensions = true;  // RFC 7306: atomics and Immediate Data
  /// Verbs' 32 bits travel in the last half of the 8 bytes of Immediate Data instead of the first
  /// (A24). No RFC says which; there are peers of both kinds.
  bool immediate_in_last_half = false;
  std::shared_ptr<FaultScript> script;  // null unless faults are to be injected
  QueuePairSlot* slot = nullptr;        // where it counts; null: in memory of its own
  TraceSink* trace = nullptr;           // null unless steps are written down
};

/// What the MPA start-up settled, plus what the connection wants of the stream.
struct StreamConfig {
  bool crc = false;
  uint16_t mulpdu = 65535;  // largest ULPDU to send, bytes
  uint16_t ord = 0;         // Reads and atomics that we may have outstanding
  uint16_t read_depth = 0;  // ... with those that acknowledge; no more than `ord` if that is larger
  uint16_t ird = 0;         // the same for the peer
  /// Send this zero-length message first (peer-to-peer initiator).
  enum class Rtr : uint8_t { kNone, kWrite, kRead } rtr = Rtr::kNone;
  STag rtr_stag{1};             // STag and TO of an RTR Write: not checked by receivers, so a
  TaggedOffset rtr_offset = 0;  // place for the magic by which uwarps know each other
  /// Send nothing until the first FPDU has come (responder).
  bool wait_for_first_fpdu = false;
  /// STag and TO that show the peer's first zero-length Write as a uwarp's.
  STag magic_stag{0};
  TaggedOffset magic_offset = 0;
  /// Answer a peer's magic by a zero-length Write of the same form as our first FPDU.
  bool answer_magic = false;
  /// Follow our first FPDU by a zero-length Write if nothing else is queued: siw as responder may
  /// miss a lone first FPDU. Or both: see QueuePair::nudge().
  bool nudge_first_fpdu = false;
  /// FIN at an FPDU boundary is not a disconnect (connections made without rdma_cm).
  bool silent_fin = false;
  /// The start-up has shown already that the peer is a uwarp (rendezvous): no magic is needed.
  bool peer_is_uwarp = false;
  /// The persona of this side, which it tells a peer that is a uwarp (PersonaWrite). kNothing: it
  /// tells none.
  PersonaWrite::Said persona = PersonaWrite::Said::kNothing;
  /// We have a wire to this peer, which is told so if it is a uwarp (WireWrite).
  bool over_wire = false;
  /// Two on one host may agree to leave TCP (CarrierWrite).
  bool may_leave_tcp = false;
  /// First MSN of queues 0, 1 and 3, both ways: 1, but tests of the wrap begin late.
  Msn first_msn{1};
};

/// How a stream came to its end, told by the connection.
enum class StreamEnd : uint8_t { kFin, kReset, kTimeout, kLocalClose };

}  // namespace uwarp
