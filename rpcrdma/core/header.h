// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The transport header in front of every RPC-over-RDMA message. Sans-IO. RFC 8166 4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/chunk_lists.h"

namespace rpcrdma::core {

enum class Procedure : uint32_t {
  kMsg = 0,    ///< the RPC message follows the header
  kNomsg = 1,  ///< it is in the Read chunk at position zero, or in the Reply chunk
  kMsgp = 2,   ///< padded message: not to be sent any more
  kDone = 3,   ///< not to be sent any more
  kError = 4,
};

enum class HeaderError : uint32_t {
  kVersion = 1,  ///< ERR_VERS, with the versions that are known
  kChunk = 2,    ///< ERR_CHUNK
};

struct Header {
  static constexpr uint32_t kVersion = 1;
  static constexpr size_t kFixedSize = 16;             // XID, version, credits, procedure
  static constexpr size_t kSizeMin = kFixedSize + 12;  // with three empty lists

  uint32_t xid = 0;
  uint32_t version = kVersion;
  uint32_t credits = 0;
  Procedure procedure = Procedure::kMsg;
  ChunkLists chunks;                           ///< of kMsg and kNomsg
  HeaderError error = HeaderError::kChunk;     ///< of kError
  uint32_t version_low = 0, version_high = 0;  ///< of kError with kVersion

  bool operator==(const Header&) const = default;

  /// An RDMA_ERROR message, the answer to the call of this XID.
  static Header make_error(uint32_t xid, uint32_t credits, HeaderError error);

  /// Bytes written, or 0 if `room` is too small.
  size_t encode(std::span<std::byte> room) const;
};

struct DecodedHeader {
  enum class Verdict {
    kGood,
    kShort,       ///< less than the fixed part: cannot be answered
    kBadVersion,  ///< the XID can be relied upon, and nothing else
    kBadBody,     ///< the fixed part can be relied upon, and nothing else
  };
  Verdict verdict = Verdict::kShort;
  Header header;
  size_t size = 0;  ///< bytes of the header, when it is good
};

/// Procedures that must not be sent any more, and unknown ones, are good without chunks; what to do
/// with them is up to the receiver. RFC 8166 4.4, 4.5.
DecodedHeader decode_header(std::span<const std::byte> message);

}  // namespace rpcrdma::core
