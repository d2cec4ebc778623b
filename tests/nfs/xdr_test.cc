// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/xdr.h"

#include <gtest/gtest.h>

#include <string>

namespace uwarp::nfs {
namespace {

TEST(Xdr, NumbersAreBigEndianAndOpaquesArePadded) {
  XdrWriter out;
  out.u32(0x01020304);
  out.u64(0x05060708090a0b0c);
  out.string("abcde");
  const std::string expected("\1\2\3\4\5\6\7\10\11\12\13\14\0\0\0\5abcde\0\0\0", 24);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(out.bytes().data()), out.size()), expected);
}

TEST(Xdr, WhatWasWrittenIsRead) {
  XdrWriter out;
  out.boolean(true);
  out.u64(UINT64_MAX - 1);
  out.string("");
  out.string("x");
  XdrReader in(out.bytes());
  EXPECT_TRUE(in.boolean());
  EXPECT_EQ(in.u64(), UINT64_MAX - 1);
  EXPECT_EQ(in.string(10), "");
  EXPECT_EQ(in.string(10), "x");
  EXPECT_EQ(in.remaining(), 0u);
}

TEST(Xdr, EveryTruncationIsAnError) {
  XdrWriter out;
  out.u32(7);
  out.string("hello");
  for (size_t size = 0; size < out.size(); ++size) {
    XdrReader in(out.bytes().first(size));
    EXPECT_THROW((in.u32(), in.string(100)), XdrError) << size;
  }
}

TEST(Xdr, LengthsBeyondTheLimitOrTheMessageAreErrors) {
  XdrWriter out;
  out.u32(UINT32_MAX);
  out.u32(0);
  EXPECT_THROW(XdrReader(out.bytes()).opaque(100), XdrError);
  EXPECT_THROW(XdrReader(out.bytes()).opaque(SIZE_MAX), XdrError);
  EXPECT_THROW(XdrReader(out.bytes()).fixed_opaque(SIZE_MAX), XdrError);
  EXPECT_THROW(XdrReader(out.bytes()).boolean(), XdrError);
}

}  // namespace
}  // namespace uwarp::nfs
