// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The two messages of service ID resolution: the bytes in docs/wire.md, and bytes that are no such
// message.
#include "protocol/wire/sidr_message.h"

#include <gtest/gtest.h>

#include <string>

namespace uwarp {
namespace {

std::vector<std::byte> sidr_data(const std::string& text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

std::string hex(std::span<const std::byte> bytes) {
  std::string out;
  char text[3];
  for (const std::byte each : bytes) {
    (void)snprintf(text, sizeof text, "%02x", std::to_integer<unsigned>(each));
    out += text;
  }
  return out;
}

const SidrRequest kQuestion{0x0102030405060708, 0x0111, sidr_data("hi")};
const SidrReply kAnswer{0x0102030405060708, SidrStatus::kSuccess, 0x00c35105, 0x01234567,
                        sidr_data("yes")};

TEST(SidrMessage, TheExampleOfTheDocument) {
  const auto request = kQuestion.encode();
  EXPECT_EQ(hex(std::span(request).first(34)),
            "75534452"
            "01"
            "01"
            "02"
            "00"
            "0102030405060708"
            "0111"
            "0000000000000000000000000000"
            "6869");
  for (const std::byte each : std::span(request).subspan(34)) EXPECT_EQ(each, std::byte{0});
  EXPECT_EQ(hex(kAnswer.encode()),
            "75534452"
            "01"
            "02"
            "03"
            "00"
            "0102030405060708"
            "00c35105"
            "01234567"
            "0000000000000000"
            "796573");
}

TEST(SidrMessage, IsReadAsItWasWritten) {
  const auto request = SidrRequest::decode(kQuestion.encode());
  ASSERT_TRUE(request);
  EXPECT_EQ(request->transaction, kQuestion.transaction);
  EXPECT_EQ(request->port_space, 0x0111);
  EXPECT_EQ(request->private_data, kQuestion.private_data);
  const auto reply = SidrReply::decode(kAnswer.encode());
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->transaction, kAnswer.transaction);
  EXPECT_EQ(reply->status, SidrStatus::kSuccess);
  EXPECT_EQ(reply->qp_number, kAnswer.qp_number);
  EXPECT_EQ(reply->qkey, kAnswer.qkey);
  EXPECT_EQ(reply->private_data, kAnswer.private_data);
}

TEST(SidrMessage, PrivateDataHasTheKernelsLimits) {
  SidrRequest request = kQuestion;
  request.private_data.assign(kSidrRequestDataMax, std::byte{7});
  auto bytes = request.encode();
  EXPECT_EQ(SidrRequest::decode(bytes)->private_data, request.private_data);
  bytes[6] = std::byte{kSidrRequestDataMax + 1};
  EXPECT_FALSE(SidrRequest::decode(bytes));
  SidrReply reply = kAnswer;
  reply.private_data.assign(kSidrReplyDataMax, std::byte{7});
  auto answer = reply.encode();
  EXPECT_EQ(answer.size(), SidrReply::kMostWireSize);
  EXPECT_EQ(SidrReply::decode(answer)->private_data, reply.private_data);
  answer.push_back(std::byte{7});
  answer[6] = std::byte{kSidrReplyDataMax + 1};
  EXPECT_FALSE(SidrReply::decode(answer));
}

TEST(SidrMessage, ShortOrForeignOnesAreNone) {
  const auto request = kQuestion.encode();
  for (size_t size = 0; size < request.size(); ++size) {
    EXPECT_FALSE(SidrRequest::decode(std::span(request).first(size))) << size;
    EXPECT_FALSE(SidrRequest::of_other_version(std::span(request).first(size))) << size;
  }
  const auto reply = kAnswer.encode();
  for (size_t size = 0; size < reply.size(); ++size)
    EXPECT_FALSE(SidrReply::decode(std::span(reply).first(size))) << size;
  EXPECT_FALSE(SidrRequest::decode(reply));
  EXPECT_FALSE(SidrReply::decode(request));
  for (const size_t at : {0, 1, 2, 3, 5}) {
    auto changed = request;
    changed[at] ^= std::byte{0x40};
    EXPECT_FALSE(SidrRequest::decode(changed)) << at;
    auto answer = reply;
    answer[at] ^= std::byte{0x40};
    EXPECT_FALSE(SidrReply::decode(answer)) << at;
  }
}

TEST(SidrMessage, OtherVersions) {
  auto request = kQuestion.encode();
  EXPECT_FALSE(SidrRequest::of_other_version(request));
  request[4] = std::byte{2};
  EXPECT_FALSE(SidrRequest::decode(request));
  EXPECT_EQ(SidrRequest::of_other_version(request), kQuestion.transaction);
  auto reply = kAnswer.encode();
  reply[4] = std::byte{2};
  const auto read = SidrReply::decode(reply);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->status, SidrStatus::kUnknownVersion);
  EXPECT_EQ(read->transaction, kAnswer.transaction);
  EXPECT_TRUE(read->private_data.empty());
}

// A later version may be longer: if its number says that this one can read it, the bytes behind are
// ignored.
TEST(SidrMessage, MayBeLonger) {
  const auto request = kQuestion.encode();
  std::vector<std::byte> longer(request.begin(), request.end());
  longer.resize(300, std::byte{9});
  EXPECT_EQ(SidrRequest::decode(longer)->private_data, kQuestion.private_data);
}

TEST(SidrMessage, EachStatusHasAName) {
  for (uint8_t status = 0; status <= 5; ++status)
    EXPECT_STRNE(describe(static_cast<SidrStatus>(status)), "unknown status");
  EXPECT_STREQ(describe(static_cast<SidrStatus>(6)), "unknown status");
}

}  // namespace
}  // namespace uwarp
