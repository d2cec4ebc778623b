// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "core/private_data.h"

#include <algorithm>

#include "core/xdr.h"
#include "rpcrdma/rpcrdma.h"

namespace rpcrdma::core {

namespace {

constexpr uint32_t kUnit = 1024;
constexpr uint8_t kInvalidationFlag = 1;  // bit 15 of bytes 4, 5; others ignored: RFC 8797-4-h

// Order on the wire: identifier, version, flags, Send Size, Receive Size. As two XDR words the four
// single bytes are one.
constexpr uint32_t word(uint8_t version, uint8_t flags, uint8_t send, uint8_t receive) {
  return uint32_t{version} << 24 | uint32_t{flags} << 16 | uint32_t{send} << 8 | receive;
}

uint8_t size_code(uint32_t size) { return static_cast<uint8_t>(announceable(size) / kUnit - 1); }
uint32_t size_of_code(uint32_t code) { return ((code & 0xff) + 1) * kUnit; }  // RFC 8797-4.2-c

std::optional<PrivateData> decode(std::span<const std::byte> bytes) {
  XdrReader reader(bytes);
  uint32_t identifier = 0, rest = 0;
  if (!reader.u32(identifier) || !reader.u32(rest)) return std::nullopt;
  if (identifier != PrivateData::kIdentifier || rest >> 24 != PrivateData::kVersion)
    return std::nullopt;
  return PrivateData{(rest >> 16 & kInvalidationFlag) != 0, size_of_code(rest >> 8),
                     size_of_code(rest)};
}

}  // namespace

uint32_t announceable(uint32_t size) {
  return std::clamp(size, RPCRDMA_INLINE_MIN, RPCRDMA_INLINE_MAX) / kUnit * kUnit;
}

size_t PrivateData::encode(std::span<std::byte> room) const {
  if (room.size() < kWireSize) return 0;
  if (send_size < RPCRDMA_INLINE_MIN || receive_size < RPCRDMA_INLINE_MIN) return 0;
  XdrWriter writer(room);
  writer.u32(kIdentifier);
  writer.u32(word(kVersion, remote_invalidation ? kInvalidationFlag : 0, size_code(send_size),
                  size_code(receive_size)));
  return writer.size();
}

std::optional<PrivateData> PrivateData::find(std::span<const std::byte> bytes) {
  for (; bytes.size() >= kWireSize; bytes = bytes.subspan(1))
    if (const auto found = decode(bytes)) return found;
  return std::nullopt;
}

PrivateData defaults() { return {false, RPCRDMA_INLINE_MIN, RPCRDMA_INLINE_MIN}; }

Agreement agree(Role own_role, const PrivateData& own, const std::optional<PrivateData>& peer) {
  const PrivateData other = peer.value_or(defaults());
  const bool client = own_role == Role::kClient;
  const PrivateData& from_client = client ? own : other;
  const PrivateData& from_server = client ? other : own;
  return {std::min(from_client.send_size, from_server.receive_size),
          std::min(from_server.send_size, from_client.receive_size),
          own.remote_invalidation && other.remote_invalidation};
}

}  // namespace rpcrdma::core
