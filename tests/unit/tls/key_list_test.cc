// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "tls/key_list.h"

#include <gtest/gtest.h>

namespace uwarp {
namespace {

constexpr char kKey[] = "000102030405060708090a0b0c0d0e0F";

TEST(KeyList, TakesLines) {
  KeyList list;
  const std::string text =
      std::string("# keys\n\n  first:") + kKey + "\r\nurn:second: " + kKey + kKey;
  EXPECT_EQ(list.parse(text), "");
  EXPECT_EQ(list.own().identity, "first");
  EXPECT_EQ(list.own().bytes.size(), 16u);
  EXPECT_EQ(list.own().bytes[15], 15);
  ASSERT_NE(list.find("urn:second"), nullptr);
  EXPECT_EQ(list.find("urn:second")->bytes.size(), 32u);
  EXPECT_EQ(list.find("third"), nullptr);
  EXPECT_EQ(list.find("firs"), nullptr);
}

TEST(KeyList, SaysWhatIsWrongAndNotWithAKey) {
  const std::string right = std::string("alice:") + kKey;
  const struct {
    std::string text;
    const char* says;
  } cases[] = {
      {"", "has no key"},
      {"# nothing\n", "has no key"},
      {"alice", "line 1 is not identity:hexkey"},
      {"\n:" + std::string(kKey), "line 2 has an identity"},
      {"two words:" + std::string(kKey), "has an identity"},
      {"a,b:" + std::string(kKey), "has an identity"},
      {std::string(129, 'a') + ":" + kKey, "has an identity"},
      {right + "\n" + right, "line 2 has the identity of an earlier line"},
      {right + "0", "even number of hexadecimal digits"},
      {right + "zz", "even number of hexadecimal digits"},
      {"alice:00", "less than 16"},
      {"alice:" + std::string(130, '0'), "more than 64"},
  };
  for (const auto& one : cases) {
    KeyList list;
    const std::string wrong = list.parse(one.text);
    EXPECT_NE(wrong.find(one.says), std::string::npos) << one.text << ": " << wrong;
    EXPECT_EQ(wrong.find("0001"), std::string::npos) << wrong;
  }
}

}  // namespace
}  // namespace uwarp
