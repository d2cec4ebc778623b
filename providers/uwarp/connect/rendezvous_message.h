// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What two uwarps say to each other in the MPA private data of a connection made without rdma_cm.
// Layout: docs/wire.md, "Rendezvous". Decode and encode only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "qp/qp_config.h"

namespace uwarp {

/// Version of the format. A receiver refuses others with kUnknownVersion.
inline constexpr uint8_t kRendezvousVersion = 1;

/// The dialer's call, in the Request.
struct RendezvousCall {
  static constexpr size_t kWireSize = 24;

  Qpn source;
  Qpn target;
  Transport transport = Transport::kRc;
  uint32_t psn = 0;           // the dialer's sq_psn: the answerer must have it as rq_psn
  uint32_t capabilities = 0;  // unknown bits are ignored
  /// The caller wants no queue pair but a trunk to the process of `target`; `psn` is the version of
  /// what goes over it. More follows behind the call: datagram/trunk_call.h.
  static constexpr uint32_t kTrunk = 1;
  /// With kTrunk: the answerer has called before, and is called back at the port that it named.
  static constexpr uint32_t kCallBack = 2;

  std::vector<std::byte> encode() const;
  /// Nothing if it is no call at all, or one of a version that is not known.
  static std::optional<RendezvousCall> decode(std::span<const std::byte> bytes);
};

/// Why a call was answered, or not.
enum class RendezvousVerdict : uint8_t {
  kAccepted = 0,
  kUnknownVersion = 1,
  kNoSuchQp = 2,     // also: a queue pair that rdma_cm uses, or one in ERR
  kNotExpected = 3,  // address, number, transport or PSN is not what the target was told to expect
  kBusy = 4,         // connected already
  kCollision = 5,    // the target's own call is the one to be kept
  kTooMany = 6,      // more calls are held than there is room for
  kCallsBack = 7,    // the target calls the port that the caller has named, which proves it
  kHeld = 8,         // the trunk that the caller asks about is there, and still this process's
};
inline constexpr size_t kRendezvousVerdicts = 9;

/// The answerer's word, in the Reply.
struct RendezvousAnswer {
  static constexpr size_t kWireSize = 12;

  RendezvousVerdict verdict = RendezvousVerdict::kAccepted;
  uint32_t capabilities = 0;

  std::vector<std::byte> encode() const;
  static std::optional<RendezvousAnswer> decode(std::span<const std::byte> bytes);
};

const char* describe(RendezvousVerdict verdict);

}  // namespace uwarp
