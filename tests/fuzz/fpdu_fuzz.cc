// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// FPDUs and their headers: any bytes taken as a stream of FPDUs. Checked: no decoder reads beyond
// its bytes; a decoded header encodes to the same bytes, except for ignored bits; the same ULPDU
// framed again is an FPDU with a good CRC.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "protocol/mpa/fpdu.h"
#include "protocol/wire/rdmap_headers.h"

namespace uwarp {
namespace {

using Bytes = std::span<const std::byte>;

void check(bool holds) {
  if (!holds) std::abort();
}

// Decodes the header, encodes it again, and compares from byte `from` on.
template <typename Header>
void round_trip(Bytes bytes, size_t from = 0) {
  if (bytes.size() < Header::kWireSize) return;
  std::byte out[Header::kWireSize];
  Header::decode(bytes.data()).encode(out);
  check(std::equal(out + from, out + Header::kWireSize, bytes.data() + from));
}

void try_terminate(Bytes bytes) {
  const auto header = TerminateHeader::decode(bytes);
  check(header.has_value() == (bytes.size() >= TerminateHeader::kWireSizeMin));
  if (!header) return;
  check(describe(header->code) != nullptr);
  std::byte out[TerminateHeader::kWireSizeMax];
  const size_t size = header->encode(out);
  check(size == header->encoded_size() && size <= sizeof out);
  check(std::memcmp(out, bytes.data(), 2) == 0);
  if (header->truncated) return;
  // A Terminate with D but without M is encoded with D alone; all other bits are equal.
  check(size <= bytes.size());
  check(size == 4 || std::memcmp(out + 4, bytes.data() + 4, size - 4) == 0);
}

void try_rdmap_header(RdmapOpcode opcode, Bytes bytes) {
  switch (opcode) {
    case RdmapOpcode::kReadRequest:
      return round_trip<ReadRequestHeader>(bytes);
    case RdmapOpcode::kAtomicRequest:
      return round_trip<AtomicRequestHeader>(bytes, 4);  // the first bytes hold reserved bits
    case RdmapOpcode::kAtomicResponse:
      return round_trip<AtomicResponseHeader>(bytes);
    case RdmapOpcode::kTerminate:
      return try_terminate(bytes);
    default:
      return;
  }
}

void try_ulpdu(Bytes ulpdu) {
  if (ulpdu.size() < 2) return;
  const DdpControl control{static_cast<uint8_t>(ulpdu[0])};
  const RdmapOpcode opcode = RdmapControl{static_cast<uint8_t>(ulpdu[1])}.opcode();
  check(traits(opcode).name != nullptr);
  if (control.tagged()) {
    round_trip<TaggedHeader>(ulpdu);
  } else {
    round_trip<UntaggedHeader>(ulpdu);
  }
  // Tries both header sizes, also against the T bit, as a faulty peer might send it.
  for (size_t skipped : {ddp_header_size(control), size_t{2}})
    try_rdmap_header(opcode, ulpdu.subspan(std::min(skipped, ulpdu.size())));
}

void frame_again(Bytes ulpdu) {
  std::vector<std::byte> fpdu(kFpduLengthSize + ulpdu.size() + kFpduTrailerMax);
  store_be16(fpdu.data(), static_cast<uint16_t>(ulpdu.size()));
  std::copy(ulpdu.begin(), ulpdu.end(), fpdu.begin() + kFpduLengthSize);
  std::byte* trailer = fpdu.data() + kFpduLengthSize + ulpdu.size();
  const size_t covered = kFpduLengthSize + ulpdu.size() + fpdu_pad(ulpdu.size());
  const size_t written = write_fpdu_trailer(trailer, ulpdu.size(), 0);
  write_fpdu_trailer(trailer, ulpdu.size(), crc32c(fpdu.data(), covered));
  fpdu.resize(kFpduLengthSize + ulpdu.size() + written);
  check(fpdu.size() == fpdu_size(ulpdu.size()));
  check(verify_fpdu_crc(fpdu));
  fpdu[fpdu.size() / 2] ^= std::byte{0x10};
  check(!verify_fpdu_crc(fpdu));
}

}  // namespace
}  // namespace uwarp

// Proves: 5042-q
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace uwarp;
  Bytes stream(reinterpret_cast<const std::byte*>(bytes), size);
  while (stream.size() >= kFpduLengthSize) {
    const size_t length = load_be16(stream.data());
    // The last FPDU may be cut off; what there is of it is decoded.
    const Bytes ulpdu =
        stream.subspan(kFpduLengthSize).first(std::min(length, stream.size() - kFpduLengthSize));
    try_ulpdu(ulpdu);
    frame_again(ulpdu);
    const size_t whole = std::min(fpdu_size(length), stream.size());
    (void)verify_fpdu_crc(stream.first(whole));
    stream = stream.subspan(whole);
  }
  return 0;
}
