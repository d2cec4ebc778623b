// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// RDMAP headers and opcode traits with the golden FPDUs: decoded to the given values, encoded to
// the same bytes, and cut at every offset.
#include "protocol/wire/rdmap_headers.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "protocol/mpa/fpdu.h"
#include "vector_file.h"

namespace uwarp {
namespace {

using test::text;
using Op = RdmapOpcode;

constexpr STag kTarget{0x1A2B3C4D};
constexpr STag kSink{0x5E6F7081};
constexpr STag kToInvalidate{0x00C0FFEE};
constexpr TaggedOffset kTo = 0x00007F0012345000;

std::vector<std::byte> ulpdu_of(const std::string& name) {
  const auto fpdu = test::load_vector("rdmap/" + name + ".hex").bytes;
  const size_t length = load_be16(fpdu.data());
  EXPECT_EQ(fpdu.size(), fpdu_size(length)) << name;
  return {fpdu.begin() + 2, fpdu.begin() + 2 + static_cast<ptrdiff_t>(length)};
}

struct TaggedGolden {
  const char* name;
  Op opcode;
  bool last;
  STag stag;
  TaggedOffset to;
  std::string payload;
};

const TaggedGolden kTagged[] = {
    {"x05_rtr_write", Op::kWrite, true, STag{1}, 0, ""},
    {"x07_rtr_read_response", Op::kReadResponse, true, STag{1}, 0, ""},
    {"x08_write", Op::kWrite, true, kTarget, kTo,
     std::string("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f", 16)},
    {"x09a_write_first", Op::kWrite, false, kTarget, kTo, " !\"#$%&'"},
    {"x09b_write_last", Op::kWrite, true, kTarget, kTo + 8, "()*+"},
    {"x11_read_response", Op::kReadResponse, true, kSink, 0x1000, "readdata"},
};

TEST(RdmapVectors, Tagged) {
  for (const TaggedGolden& golden : kTagged) {
    SCOPED_TRACE(golden.name);
    const auto ulpdu = ulpdu_of(golden.name);
    const TaggedHeader expected{.control = DdpControl::make(true, golden.last),
                                .rsvd_ulp = make_rdmap_control(golden.opcode),
                                .stag = golden.stag,
                                .to = golden.to};
    EXPECT_EQ(TaggedHeader::decode(ulpdu.data()), expected);
    EXPECT_EQ(text(std::span(ulpdu).subspan(TaggedHeader::kWireSize)), golden.payload);
    std::vector<std::byte> out(TaggedHeader::kWireSize);
    expected.encode(out.data());
    EXPECT_TRUE(std::equal(out.begin(), out.end(), ulpdu.begin()));
    EXPECT_TRUE(traits(golden.opcode).tagged);
  }
}

struct UntaggedGolden {
  const char* name;
  Op opcode;
  bool last;
  STag invalidate;
  uint32_t msn;
  uint32_t mo;
  size_t rest;  // bytes after the DDP header
};

constexpr UntaggedGolden kUntagged[] = {
    {"x06_rtr_read", Op::kReadRequest, true, {}, 1, 0, 28},
    {"x10_read_request", Op::kReadRequest, true, {}, 1, 0, 28},
    {"x12_send", Op::kSend, true, {}, 1, 0, 5},
    {"x13_send_invalidate", Op::kSendInvalidate, true, kToInvalidate, 2, 0, 4},
    {"x14_send_solicited", Op::kSendSolicited, true, {}, 3, 0, 2},
    {"x15_send_solicited_invalidate", Op::kSendSolicitedInvalidate, true, kToInvalidate, 4, 0, 0},
    {"x16a_send_first", Op::kSend, false, {}, 5, 0, 6},
    {"x16b_send_last", Op::kSend, true, {}, 5, 6, 4},
    {"x17_terminate_ddp_stag", Op::kTerminate, true, {}, 1, 0, 20},
    {"x18_terminate_read_access", Op::kTerminate, true, {}, 1, 0, 52},
    {"x19_terminate_crc", Op::kTerminate, true, {}, 1, 0, 4},
    {"x20_fetch_add", Op::kAtomicRequest, true, {}, 2, 0, 52},
    {"x21_cmp_swap", Op::kAtomicRequest, true, {}, 3, 0, 52},
    {"x22_atomic_response", Op::kAtomicResponse, true, {}, 1, 0, 12},
    {"x23_atomic_response_swap", Op::kAtomicResponse, true, {}, 2, 0, 12},
    {"x24_immediate", Op::kImmediate, true, {}, 6, 0, 8},
    {"x25_immediate_solicited", Op::kImmediateSolicited, true, {}, 7, 0, 8},
};

TEST(RdmapVectors, Untagged) {
  for (const UntaggedGolden& golden : kUntagged) {
    SCOPED_TRACE(golden.name);
    const auto ulpdu = ulpdu_of(golden.name);
    const UntaggedHeader expected{.control = DdpControl::make(false, golden.last),
                                  .rsvd_ulp = make_rdmap_control(golden.opcode),
                                  .invalidate_stag = golden.invalidate,
                                  .qn = traits(golden.opcode).queue,
                                  .msn = Msn{golden.msn},
                                  .mo = golden.mo};
    EXPECT_EQ(UntaggedHeader::decode(ulpdu.data()), expected);
    EXPECT_EQ(ulpdu.size() - UntaggedHeader::kWireSize, golden.rest);
    EXPECT_GE(golden.rest, traits(golden.opcode).header_size);
    std::vector<std::byte> out(UntaggedHeader::kWireSize);
    expected.encode(out.data());
    EXPECT_TRUE(std::equal(out.begin(), out.end(), ulpdu.begin()));
    EXPECT_FALSE(traits(golden.opcode).tagged);
  }
}

// Together, both tables name every vector in the folder.
TEST(RdmapVectors, NoneIsForgotten) {
  EXPECT_EQ(test::load_vectors("rdmap").size(), std::size(kTagged) + std::size(kUntagged));
}

// Decodes a header from a vector, compares, encodes it again, and tries every smaller size.
template <typename Header>
void expect_header(const char* name, const Header& expected) {
  SCOPED_TRACE(name);
  const auto ulpdu = ulpdu_of(name);
  const auto bytes = std::span(ulpdu).subspan(UntaggedHeader::kWireSize);
  ASSERT_EQ(bytes.size(), Header::kWireSize);
  EXPECT_EQ(Header::decode(bytes.data()), expected);
  std::vector<std::byte> out(Header::kWireSize);
  expected.encode(out.data());
  EXPECT_TRUE(std::equal(out.begin(), out.end(), bytes.begin()));
}

TEST(RdmapVectors, ReadRequests) {
  expect_header("x06_rtr_read", ReadRequestHeader{STag{1}, 0, 0, STag{1}, 0});
  expect_header("x10_read_request", ReadRequestHeader{kSink, 0x1000, 4096, kTarget, kTo});
}

TEST(RdmapVectors, Atomics) {
  expect_header("x20_fetch_add", AtomicRequestHeader{.opcode = AtomicOpcode::kFetchAdd,
                                                     .request_id = 7,
                                                     .remote_stag = kTarget,
                                                     .remote_to = kTo + 8,
                                                     .add_or_swap = 1,
                                                     .add_or_swap_mask = 0,
                                                     .compare = 0});
  expect_header("x21_cmp_swap", AtomicRequestHeader{.opcode = AtomicOpcode::kCmpSwap,
                                                    .request_id = 8,
                                                    .remote_stag = kTarget,
                                                    .remote_to = kTo + 8,
                                                    .add_or_swap = 0x1122334455667788,
                                                    .add_or_swap_mask = ~uint64_t{0},
                                                    .compare = 42,
                                                    .compare_mask = ~uint64_t{0}});
  expect_header("x22_atomic_response", AtomicResponseHeader{7, 41});
  expect_header("x23_atomic_response_swap", AtomicResponseHeader{8, 42});
}

// The 28 reserved bits of an Atomic Request are ignored.
TEST(AtomicRequestHeader, ReservedBitsAreIgnored) {
  auto ulpdu = ulpdu_of("x21_cmp_swap");
  std::byte* header = ulpdu.data() + UntaggedHeader::kWireSize;
  store_be32(header, 0xFFFFFFF2);
  EXPECT_EQ(AtomicRequestHeader::decode(header).opcode, AtomicOpcode::kCmpSwap);
}

std::span<const std::byte> terminate_of(const std::vector<std::byte>& ulpdu) {
  return std::span(ulpdu).subspan(UntaggedHeader::kWireSize);
}

TEST(TerminateHeader, DecodesBareError) {
  const auto ulpdu = ulpdu_of("x19_terminate_crc");
  const auto header = TerminateHeader::decode(terminate_of(ulpdu));
  ASSERT_TRUE(header);
  EXPECT_EQ(header->code, TerminateCode::kMpaCrc);
  EXPECT_FALSE(header->has_length || header->has_ddp_header || header->has_rdmap_header);
  EXPECT_FALSE(header->truncated);
}

TEST(TerminateHeader, DecodesTaggedCopy) {
  const auto ulpdu = ulpdu_of("x17_terminate_ddp_stag");
  const auto header = TerminateHeader::decode(terminate_of(ulpdu));
  ASSERT_TRUE(header);
  EXPECT_EQ(header->code, TerminateCode::kDdpTaggedInvalidSTag);
  EXPECT_TRUE(header->has_length && header->has_ddp_header);
  EXPECT_FALSE(header->has_rdmap_header || header->truncated);
  EXPECT_EQ(header->ddp_segment_length, 30);
  ASSERT_EQ(header->ddp_header_size, TaggedHeader::kWireSize);
  EXPECT_EQ(TaggedHeader::decode(header->ddp_header.data()).stag, STag{0xDEADBEEF});
}

TEST(TerminateHeader, DecodesReadRequestCopy) {
  const auto ulpdu = ulpdu_of("x18_terminate_read_access");
  const auto header = TerminateHeader::decode(terminate_of(ulpdu));
  ASSERT_TRUE(header);
  EXPECT_EQ(header->code, TerminateCode::kRdmapAccess);
  EXPECT_TRUE(header->has_length && header->has_ddp_header && header->has_rdmap_header);
  EXPECT_EQ(header->ddp_segment_length, 46);
  ASSERT_EQ(header->ddp_header_size, UntaggedHeader::kWireSize);
  EXPECT_EQ(UntaggedHeader::decode(header->ddp_header.data()).qn, QueueNumber::kReadRequest);
  EXPECT_EQ(ReadRequestHeader::decode(header->rdmap_header.data()),
            (ReadRequestHeader{kSink, 0x1000, 4096, kTarget, kTo}));
}

// Built from the faulty FPDU, each golden Terminate is reproduced byte for byte.
TEST(TerminateHeader, EncodesTheGoldenBytes) {
  const auto expect_bytes = [](const char* name, const TerminateHeader& header) {
    const auto ulpdu = ulpdu_of(name);
    std::vector<std::byte> out(header.encoded_size());
    EXPECT_EQ(header.encode(out.data()), out.size());
    const auto expected = terminate_of(ulpdu);
    EXPECT_TRUE(std::equal(out.begin(), out.end(), expected.begin(), expected.end())) << name;
  };
  TerminateHeader crc;
  crc.code = TerminateCode::kMpaCrc;
  expect_bytes("x19_terminate_crc", crc);

  auto write = ulpdu_of("x08_write");
  store_be32(&write[2], 0xDEADBEEF);
  TerminateHeader stag;
  stag.code = TerminateCode::kDdpTaggedInvalidSTag;
  stag.copy_ddp_header(write.data(), static_cast<uint16_t>(write.size()));
  expect_bytes("x17_terminate_ddp_stag", stag);

  const auto read = ulpdu_of("x10_read_request");
  TerminateHeader access;
  access.code = TerminateCode::kRdmapAccess;
  access.copy_ddp_header(read.data(), static_cast<uint16_t>(read.size()));
  access.copy_read_request(read.data() + UntaggedHeader::kWireSize);
  expect_bytes("x18_terminate_read_access", access);
}

// From 4 bytes on, the error is decoded wherever the Terminate is cut; headers that are cut off are
// marked absent. Bytes behind the announced headers are ignored.
TEST(TerminateHeader, EveryCutAndTrailingBytes) {
  for (const char* name :
       {"x17_terminate_ddp_stag", "x18_terminate_read_access", "x19_terminate_crc"}) {
    SCOPED_TRACE(name);
    const auto ulpdu = ulpdu_of(name);
    const auto bytes = terminate_of(ulpdu);
    const auto whole = TerminateHeader::decode(bytes);
    ASSERT_TRUE(whole);
    for (size_t size = 0; size < bytes.size(); ++size) {
      const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
      const auto header = TerminateHeader::decode(cut);
      ASSERT_EQ(header.has_value(), size >= 4) << size;
      if (!header) continue;
      EXPECT_TRUE(header->truncated) << size;
      EXPECT_EQ(header->code, whole->code);
      EXPECT_LE(header->encoded_size(), size);
    }
    std::vector<std::byte> longer(bytes.begin(), bytes.end());
    longer.resize(longer.size() + 48);
    const auto header = TerminateHeader::decode(longer);
    ASSERT_TRUE(header);
    EXPECT_FALSE(header->truncated);
    EXPECT_EQ(header->encoded_size(), whole->encoded_size());
  }
}

// M without D: only the length. R without D is never sent by uwarp; the copied header follows
// directly.
TEST(TerminateHeader, OtherMixesOfBits) {
  for (const auto& [length, rdmap] : {std::pair{true, false}, std::pair{true, true},
                                      std::pair{false, true}, std::pair{false, false}}) {
    TerminateHeader sent;
    sent.code = TerminateCode::kDdpUntaggedTooLong;
    sent.has_length = length;
    sent.ddp_segment_length = length ? 0x1234 : 0;
    if (rdmap) {
      const auto read = ulpdu_of("x10_read_request");
      sent.copy_read_request(read.data() + UntaggedHeader::kWireSize);
    }
    std::vector<std::byte> bytes(sent.encoded_size());
    EXPECT_EQ(bytes.size(), 4u + (length ? 2 : 0) + (rdmap ? 28 : 0));
    sent.encode(bytes.data());
    const auto back = TerminateHeader::decode(bytes);
    ASSERT_TRUE(back);
    EXPECT_FALSE(back->truncated || back->has_ddp_header);
    EXPECT_EQ(back->has_length, length);
    EXPECT_EQ(back->ddp_segment_length, sent.ddp_segment_length);
    EXPECT_EQ(back->has_rdmap_header, rdmap);
    EXPECT_EQ(back->rdmap_header, sent.rdmap_header);
  }
}

// The 13 reserved bits are sent as zero and ignored.
TEST(TerminateHeader, ReservedBitsAreIgnored) {
  const std::byte bytes[] = {std::byte{0x20}, std::byte{0x02}, std::byte{0x1F}, std::byte{0xFF}};
  const auto header = TerminateHeader::decode(bytes);
  ASSERT_TRUE(header);
  EXPECT_FALSE(header->truncated || header->has_length);
  std::byte out[4];
  EXPECT_EQ(header->encode(out), 4u);
  EXPECT_EQ(out[2], std::byte{0});
  EXPECT_EQ(out[3], std::byte{0});
}

TEST(RdmapControl, Values) {
  static_assert(make_rdmap_control(Op::kWrite) == 0x40);
  static_assert(make_rdmap_control(Op::kAtomicResponse) == 0x4B);
  for (int byte = 0; byte < 256; ++byte) {
    const RdmapControl control{static_cast<uint8_t>(byte)};
    EXPECT_EQ(control.version(), byte / 64);
    EXPECT_EQ(static_cast<int>(control.opcode()), byte % 16);
  }
}

// The table of opcodes. 5040 section 4, 7306 sections 4 to 6.
TEST(RdmapOpcode, Traits) {
  std::set<std::string> names;
  for (uint8_t value = 0; value < 16; ++value) {
    const auto& row = traits(static_cast<Op>(value));
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(row.defined, value <= 0xB || value == 0xF);
    EXPECT_EQ(row.tagged, value == 0 || value == 2);
    EXPECT_EQ(row.invalidates, value == 4 || value == 6);
    EXPECT_EQ(row.solicited, value == 5 || value == 6 || value == 9);
    EXPECT_EQ(row.has_payload, value == 0 || (value >= 2 && value <= 6) || value == 0xF);
  }
  EXPECT_EQ(traits(Op::kReadRequest).header_size, ReadRequestHeader::kWireSize);
  EXPECT_EQ(traits(Op::kAtomicRequest).header_size, AtomicRequestHeader::kWireSize);
  EXPECT_EQ(traits(Op::kAtomicResponse).header_size, AtomicResponseHeader::kWireSize);
  EXPECT_EQ(traits(Op::kImmediate).header_size, kImmediateSize);
  EXPECT_EQ(traits(Op::kTerminate).header_size, TerminateHeader::kWireSizeMin);
  EXPECT_EQ(traits(Op::kAtomicRequest).queue, QueueNumber::kReadRequest);
  EXPECT_EQ(traits(Op::kAtomicResponse).queue, QueueNumber::kAtomicResponse);
  EXPECT_EQ(traits(Op::kTerminate).queue, QueueNumber::kTerminate);
  EXPECT_EQ(traits(Op::kImmediate).queue, QueueNumber::kSend);
  // The traits of an unchecked value from the wire are read inside the table.
  EXPECT_FALSE(traits(static_cast<Op>(0xFC)).defined);
  EXPECT_STREQ(name(Op::kSend), "Send");
}

}  // namespace
}  // namespace uwarp
