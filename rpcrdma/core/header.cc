// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "core/header.h"

namespace rpcrdma::core {

namespace {

bool decode_error(XdrReader& reader, Header& header) {
  uint32_t error = 0;
  if (!reader.u32(error)) return false;
  header.error = HeaderError{error};
  switch (header.error) {
    case HeaderError::kVersion:
      return reader.u32(header.version_low) && reader.u32(header.version_high);
    case HeaderError::kChunk:
      return true;
  }
  return false;
}

bool decode_body(XdrReader& reader, Header& header) {
  switch (header.procedure) {
    case Procedure::kMsg:
    case Procedure::kNomsg:
      return header.chunks.decode(reader);
    case Procedure::kError:
      return decode_error(reader, header);
    case Procedure::kMsgp:
    case Procedure::kDone:
      break;
  }
  return true;
}

}  // namespace

Header Header::make_error(uint32_t xid, uint32_t credits, HeaderError error) {
  Header header;
  header.xid = xid;
  header.credits = credits;
  header.procedure = Procedure::kError;
  header.error = error;
  if (error == HeaderError::kVersion) header.version_low = header.version_high = kVersion;
  return header;
}

size_t Header::encode(std::span<std::byte> room) const {
  XdrWriter writer(room);
  writer.u32(xid);
  writer.u32(version);
  writer.u32(credits);
  writer.u32(static_cast<uint32_t>(procedure));
  if (procedure == Procedure::kError) {
    writer.u32(static_cast<uint32_t>(error));
    if (error == HeaderError::kVersion) {
      writer.u32(version_low);
      writer.u32(version_high);
    }
  } else {
    chunks.encode(writer);
  }
  return writer.good() ? writer.size() : 0;
}

DecodedHeader decode_header(std::span<const std::byte> message) {
  using Verdict = DecodedHeader::Verdict;
  DecodedHeader decoded;
  Header& header = decoded.header;
  XdrReader reader(message);
  uint32_t procedure = 0;
  if (!reader.u32(header.xid) || !reader.u32(header.version) || !reader.u32(header.credits) ||
      !reader.u32(procedure)) {
    return decoded;
  }
  header.procedure = Procedure{procedure};
  if (header.version != Header::kVersion) {
    decoded.verdict = Verdict::kBadVersion;
    return decoded;
  }
  const bool good = decode_body(reader, header);
  decoded.verdict = good ? Verdict::kGood : Verdict::kBadBody;
  if (good)
    decoded.size = reader.consumed();
  else
    header.chunks = {};
  return decoded;
}

}  // namespace rpcrdma::core
