// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Result: a value or an error, also of the same type, with move-only values, and without a value.
#include "base/result.h"

#include <errno.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace uwarp {
namespace {

Result<int> half(int number) {
  if (number % 2 != 0) return Error{EINVAL};
  return number / 2;
}

Result<std::unique_ptr<std::string>> make(bool works) {
  if (!works) return Error{ENOMEM};
  return std::make_unique<std::string>("made");
}

Result<void> check(bool works) {
  if (!works) return Error{EPERM};
  return {};
}

TEST(Result, ValueOrErrno) {
  EXPECT_TRUE(half(4).ok());
  EXPECT_EQ(*half(4), 2);
  EXPECT_EQ(half(0).value(), 0);
  EXPECT_FALSE(half(3));
  EXPECT_EQ(half(3).error(), EINVAL);
}

TEST(Result, MoveOnlyValue) {
  auto made = make(true);
  ASSERT_TRUE(made);
  EXPECT_EQ(**made, "made");
  EXPECT_EQ((*made)->size(), 4u);
  const std::unique_ptr<std::string> taken = *std::move(made);
  EXPECT_EQ(*taken, "made");
  EXPECT_EQ(make(false).error(), ENOMEM);
}

TEST(Result, Void) {
  EXPECT_TRUE(check(true).ok());
  EXPECT_FALSE(check(false));
  EXPECT_EQ(check(false).error(), EPERM);
}

enum class Trouble { kNone, kBig };

TEST(Result, ErrorOfAnotherType) {
  const Result<std::string, Trouble> failed = Error{Trouble::kBig};
  EXPECT_FALSE(failed);
  EXPECT_EQ(failed.error(), Trouble::kBig);
  const Result<std::string, Trouble> fine = std::string("x");
  EXPECT_EQ(fine->size(), 1u);
}

}  // namespace
}  // namespace uwarp
