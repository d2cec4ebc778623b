// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "connect/rendezvous_message.h"

#include "base/bytes.h"

namespace uwarp {
namespace {

/// ASCII "uWRV": tells a rendezvous from anything else that dials the port.
constexpr uint32_t kMark = 0x75575256;

}  // namespace

std::vector<std::byte> RendezvousCall::encode() const {
  std::vector<std::byte> bytes(kWireSize);
  store_be32(&bytes[0], kMark);
  bytes[4] = std::byte{kRendezvousVersion};
  bytes[5] = static_cast<std::byte>(transport);
  store_be32(&bytes[8], source.value);
  store_be32(&bytes[12], target.value);
  store_be32(&bytes[16], psn);
  store_be32(&bytes[20], capabilities);
  return bytes;
}

std::optional<RendezvousCall> RendezvousCall::decode(std::span<const std::byte> bytes) {
  // Later versions may be longer; they say by their number whether this one understands them.
  if (bytes.size() < kWireSize || load_be32(&bytes[0]) != kMark ||
      bytes[4] != std::byte{kRendezvousVersion})
    return std::nullopt;
  RendezvousCall call;
  call.transport = static_cast<Transport>(bytes[5]);
  call.source.value = load_be32(&bytes[8]);
  call.target.value = load_be32(&bytes[12]);
  call.psn = load_be32(&bytes[16]);
  call.capabilities = load_be32(&bytes[20]);
  return call;
}

std::vector<std::byte> RendezvousAnswer::encode() const {
  std::vector<std::byte> bytes(kWireSize);
  store_be32(&bytes[0], kMark);
  bytes[4] = std::byte{kRendezvousVersion};
  bytes[5] = static_cast<std::byte>(verdict);
  store_be32(&bytes[8], capabilities);
  return bytes;
}

std::optional<RendezvousAnswer> RendezvousAnswer::decode(std::span<const std::byte> bytes) {
  if (bytes.size() < kWireSize || load_be32(&bytes[0]) != kMark) return std::nullopt;
  RendezvousAnswer answer;
  answer.verdict = static_cast<RendezvousVerdict>(bytes[5]);
  answer.capabilities = load_be32(&bytes[8]);
  return answer;
}

const char* describe(RendezvousVerdict verdict) {
  switch (verdict) {
    case RendezvousVerdict::kAccepted:
      return "accepted";
    case RendezvousVerdict::kUnknownVersion:
      return "unknown version of the rendezvous";
    case RendezvousVerdict::kNoSuchQp:
      return "no such queue pair";
    case RendezvousVerdict::kNotExpected:
      return "not the expected peer";
    case RendezvousVerdict::kBusy:
      return "connected already";
    case RendezvousVerdict::kCollision:
      return "the other call is kept";
    case RendezvousVerdict::kTooMany:
      return "too many calls wait";
    case RendezvousVerdict::kCallsBack:
      return "the caller is called back";
    case RendezvousVerdict::kHeld:
      return "the trunk is there";
  }
  return "unknown verdict";
}

}  // namespace uwarp
