// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Terminate codes: the three numbers of each, and a text for every value a peer can send.
#include "protocol/wire/terminate_code.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace uwarp {
namespace {

TEST(TerminateCode, LayerTypeAndCode) {
  constexpr TerminateCode access = TerminateCode::kRdmapAccess;
  static_assert(layer(access) == 0 && etype(access) == 1 && code(access) == 2);
  constexpr TerminateCode unspecified = TerminateCode::kRdmapOperationUnspecified;
  static_assert(layer(unspecified) == 0 && etype(unspecified) == 2 && code(unspecified) == 0xFF);
  constexpr TerminateCode no_buffer = TerminateCode::kDdpUntaggedNoBuffer;
  static_assert(layer(no_buffer) == 1 && etype(no_buffer) == 2 && code(no_buffer) == 2);
  constexpr TerminateCode crc = TerminateCode::kMpaCrc;
  static_assert(layer(crc) == 2 && etype(crc) == 0 && code(crc) == 2);
}

// 33 defined errors with different texts; all other values share one.
TEST(TerminateCode, EveryValueHasAText) {
  std::set<std::string> texts;
  int named = 0;
  for (unsigned value = 0; value <= 0xFFFF; ++value) {
    const std::string text = describe(static_cast<TerminateCode>(value));
    texts.insert(text);
    if (text != "undefined error") ++named;
  }
  EXPECT_EQ(named, 33);
  EXPECT_EQ(texts.size(), 34u);
}

}  // namespace
}  // namespace uwarp
