// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "protocol/wire/sidr_message.h"

#include <algorithm>
#include <cassert>
#include <iterator>

#include "base/bytes.h"

namespace uwarp {
namespace {

/// ASCII "uSDR": tells these messages from anything else that comes to a UDP port.
constexpr uint32_t kSidrMagic = 0x75534452;

enum class SidrKind : uint8_t { kRequest = 1, kReply = 2 };

// What both messages begin with.
constexpr size_t kAtVersion = 4;
constexpr size_t kAtKind = 5;
constexpr size_t kAtDataLength = 6;
constexpr size_t kAtStatus = 7;  // reply
constexpr size_t kAtTransaction = 8;
// What follows.
constexpr size_t kAtPortSpace = 16;  // request
constexpr size_t kAtQpNumber = 16;   // reply
constexpr size_t kAtQkey = 20;       // reply
constexpr size_t kAtData = 32;

void put_head(std::byte* at, SidrKind kind, uint64_t transaction,
              std::span<const std::byte> private_data) {
  store_be32(at, kSidrMagic);
  at[kAtVersion] = std::byte{kSidrVersion};
  at[kAtKind] = static_cast<std::byte>(kind);
  at[kAtDataLength] = static_cast<std::byte>(private_data.size());
  store_be64(at + kAtTransaction, transaction);
  std::ranges::copy(private_data, at + kAtData);
}

bool is_message(std::span<const std::byte> bytes, SidrKind kind, size_t least) {
  return bytes.size() >= least && load_be32(bytes.data()) == kSidrMagic &&
         bytes[kAtKind] == static_cast<std::byte>(kind);
}

/// The private data, unless it is longer than `most` or than the message.
std::optional<std::vector<std::byte>> data_of(std::span<const std::byte> bytes, size_t most) {
  const size_t length = std::to_integer<size_t>(bytes[kAtDataLength]);
  if (length > most || length > bytes.size() - kAtData) return std::nullopt;
  const auto data = bytes.subspan(kAtData, length);
  return std::vector<std::byte>(data.begin(), data.end());
}

}  // namespace

std::array<std::byte, SidrRequest::kWireSize> SidrRequest::encode() const {
  assert(private_data.size() <= kSidrRequestDataMax);
  std::array<std::byte, kWireSize> bytes{};
  put_head(bytes.data(), SidrKind::kRequest, transaction, private_data);
  store_be16(&bytes[kAtPortSpace], port_space);
  return bytes;
}

std::optional<SidrRequest> SidrRequest::decode(std::span<const std::byte> bytes) {
  // Later versions may be longer; they say by their number whether this one understands them.
  if (!is_message(bytes, SidrKind::kRequest, kWireSize) ||
      bytes[kAtVersion] != std::byte{kSidrVersion})
    return std::nullopt;
  auto data = data_of(bytes, kSidrRequestDataMax);
  if (!data) return std::nullopt;
  return SidrRequest{load_be64(&bytes[kAtTransaction]), load_be16(&bytes[kAtPortSpace]),
                     std::move(*data)};
}

std::optional<uint64_t> SidrRequest::of_other_version(std::span<const std::byte> bytes) {
  if (!is_message(bytes, SidrKind::kRequest, kWireSize) ||
      bytes[kAtVersion] == std::byte{kSidrVersion})
    return std::nullopt;
  return load_be64(&bytes[kAtTransaction]);
}

std::vector<std::byte> SidrReply::encode() const {
  assert(private_data.size() <= kSidrReplyDataMax);
  std::vector<std::byte> bytes(kHeaderSize + private_data.size());
  put_head(bytes.data(), SidrKind::kReply, transaction, private_data);
  bytes[kAtStatus] = static_cast<std::byte>(status);
  store_be32(&bytes[kAtQpNumber], qp_number);
  store_be32(&bytes[kAtQkey], qkey);
  return bytes;
}

std::optional<SidrReply> SidrReply::decode(std::span<const std::byte> bytes) {
  if (!is_message(bytes, SidrKind::kReply, kHeaderSize)) return std::nullopt;
  SidrReply reply;
  reply.transaction = load_be64(&bytes[kAtTransaction]);
  reply.status = static_cast<SidrStatus>(bytes[kAtStatus]);
  if (bytes[kAtVersion] != std::byte{kSidrVersion}) {
    if (reply.status == SidrStatus::kSuccess) reply.status = SidrStatus::kUnknownVersion;
    return reply;
  }
  auto data = data_of(bytes, kSidrReplyDataMax);
  if (!data) return std::nullopt;
  reply.qp_number = load_be32(&bytes[kAtQpNumber]);
  reply.qkey = load_be32(&bytes[kAtQkey]);
  reply.private_data = std::move(*data);
  return reply;
}

const char* describe(SidrStatus status) {
  static constexpr const char* kTexts[] = {"accepted",   "nothing listens there",
                                           "rejected",   "no queue pair",
                                           "redirected", "unknown version of the request"};
  static_assert(std::size(kTexts) == static_cast<size_t>(SidrStatus::kUnknownVersion) + 1);
  const auto number = static_cast<size_t>(status);  // any value when it comes from a peer
  return number < std::size(kTexts) ? kTexts[number] : "unknown status";
}

}  // namespace uwarp
