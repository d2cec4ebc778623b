// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// MPA start-up, both roles, without IO: bytes in, bytes and a verdict out. Timers, sockets and
// what the private data means belong to others. RFC 5044 7.1, RFC 6581 6 to 10.
//
// Either object is told about bytes in pieces of any size and never reads beyond its frame.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "protocol/wire/mpa_start_frame.h"
#include "protocol/wire/terminate_code.h"

namespace uwarp {

const char* describe(MpaFailure failure);

/// Ready-to-receive message: the initiator's first FPDU in the peer-to-peer model.
enum class RtrKind : uint8_t { kNone, kWrite, kRead };

/// What both sides have agreed on. Depths cover Reads and atomics; kDepthNotNegotiated means that
/// neither frame limits this one.
struct MpaNegotiated {
  bool crc = false;
  uint8_t revision = 2;
  bool enhanced = false;         // depths and RTR were on the wire
  bool peer_to_peer = false;     // both sides have agreed to it
  RtrKind rtr = RtrKind::kNone;  // initiator: to be sent as first FPDU; responder: what will come
  uint16_t ird = 0;              // what this side has to hold inbound
  uint16_t ord = 0;              // what this side may have outstanding
};

/// Writes an FPDU with a bare Terminate (28 bytes, no header copies): what an initiator sends
/// before it closes, if MpaInitiator::Verdict names a code. Returns the bytes written.
inline constexpr size_t kBareTerminateFpduSize = 28;
size_t write_bare_terminate_fpdu(std::byte* at, TerminateCode code, bool crc);

/// The TCP-active side.
class MpaInitiator {
 public:
  struct Config {
    uint8_t revision = 2;      // 1 or 2
    bool peer_to_peer = true;  // revision 2 only
    bool crc = false;          // our wish; the peer's counts as well
    bool rtr_write = true;     // RTR kinds on offer; a Send is never offered
    bool rtr_read = true;
    uint16_t ird = 0;  // values above 0x3FFE are sent as 0x3FFE, but for kDepthNotNegotiated
    uint16_t ord = 0;
    uint16_t ird_limit = 0;  // what `ird` may grow to if the peer's ORD asks; 0: not at all
    // At most 512 bytes in revision 1, 508 in revision 2 (asserted).
    std::span<const std::byte> private_data;
  };

  enum class State : uint8_t { kNeedMore, kAccepted, kRejected, kFailed };

  struct Verdict {
    State state = State::kNeedMore;
    size_t consumed = 0;  // bytes of the input that belong to the Reply; FPDUs follow
    MpaFailure failure = MpaFailure::kNone;
    std::optional<TerminateCode> terminate;  // kFailed: send this first, then close
    bool retry_revision1 = false;            // kFailed: a new connection in revision 1 may work
  };

  explicit MpaInitiator(const Config& config);

  /// The Request, to be sent before anything else. Valid as long as this object. RFC 5044-7.1.2-a.
  std::span<const std::byte> request() const { return std::span(request_).first(request_size_); }

  /// Takes received bytes. After any state but kNeedMore nothing is consumed any more.
  Verdict on_bytes(std::span<const std::byte> bytes);
  /// The peer has closed or reset the connection.
  Verdict on_end_of_stream();
  /// Bytes that are certainly missing to the Reply: a read of that size gets no FPDU.
  size_t bytes_wanted() const { return wanted_; }

  State state() const { return verdict_.state; }
  /// kAccepted.
  const MpaNegotiated& negotiated() const { return negotiated_; }
  /// kAccepted and kRejected: the peer application's private data. RFC 5044-7.1.2-d.
  std::span<const std::byte> private_data() const { return reply_.private_data.bytes(); }
  /// kAccepted and kRejected.
  const MpaStartFrame& reply() const { return reply_; }

 private:
  void judge_reply();
  void fail(MpaFailure failure);
  bool negotiate_depths();
  bool negotiate_rtr();

  MpaStartFrame sent_;  // the Request as sent, without private data
  uint16_t ird_limit_;
  std::array<std::byte, MpaStartFrame::kSizeMax> request_;
  size_t request_size_ = 0;

  std::array<std::byte, MpaStartFrame::kSizeMax> received_;
  size_t received_size_ = 0;
  size_t wanted_ = MpaStartFrame::kFixedSize;

  MpaStartFrame reply_;
  MpaNegotiated negotiated_;
  Verdict verdict_;
};

/// The TCP-passive side.
class MpaResponder {
 public:
  struct Config {
    bool crc = false;          // our wish; the peer's counts as well
    uint8_t revision_max = 2;  // 1: revision 2 is unknown, as on an old peer
  };

  enum class State : uint8_t {
    kNeedMore,
    kRequest,  // a whole, valid Request waits for accept() or reject()
    kReplied,  // accept() or reject() was called
    kRefused,  // send refusal() if it is not empty, then close
  };

  struct Verdict {
    State state = State::kNeedMore;
    size_t consumed = 0;
    MpaFailure failure = MpaFailure::kNone;  // kRefused
  };

  explicit MpaResponder(const Config& config) : config_(config) {}

  /// Takes received bytes. Bytes behind the Request, in the same piece or later, refuse the
  /// connection as long as no Reply exists. RFC 5044-7.1.2-g.
  Verdict on_bytes(std::span<const std::byte> bytes);
  Verdict on_end_of_stream();
  /// Bytes that are certainly missing to the Request; 1 while it waits for its Reply.
  size_t bytes_wanted() const { return wanted_; }

  State state() const { return verdict_.state; }
  /// kRequest and later: the peer's wishes. Its `ird` and `ord` are from the peer's side.
  const MpaStartFrame& request() const { return request_; }
  std::span<const std::byte> private_data() const { return request_.private_data.bytes(); }

  struct Reply {
    std::span<const std::byte> bytes;  // valid as long as the responder
    MpaNegotiated negotiated;          // accept() only
  };
  /// Largest private data accept() and reject() take for this Request: 508 or 512 bytes.
  size_t private_data_max() const;
  /// Makes the accepting Reply. `ird` and `ord` are this side's; a smaller Request IRD lowers
  /// `ord`, kDepthNotNegotiated goes out as it is. Only in kRequest (asserted).
  Reply accept(uint16_t ird, uint16_t ord, std::span<const std::byte> private_data);
  /// Makes the rejecting Reply, to be followed by a close. Only in kRequest (asserted).
  Reply reject(std::span<const std::byte> private_data);

  /// kRefused: a rejecting Reply to send before the close, or nothing.
  std::span<const std::byte> refusal() const { return std::span(reply_).first(reply_size_); }

 private:
  void judge_request();
  void refuse(MpaFailure failure);
  MpaStartFrame make_reply(std::span<const std::byte> private_data) const;
  RtrKind choose_rtr() const;

  Config config_;
  std::array<std::byte, MpaStartFrame::kSizeMax> received_;
  size_t received_size_ = 0;
  size_t wanted_ = MpaStartFrame::kFixedSize;

  MpaStartFrame request_;
  std::array<std::byte, MpaStartFrame::kSizeMax> reply_;
  size_t reply_size_ = 0;
  Verdict verdict_;
};

}  // namespace uwarp
