// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include <gtest/gtest.h>

#include <optional>

#include "os/output_file.h"

namespace uwarp {
namespace {

constexpr uint64_t kStart = 5'000'000'000;

TEST(CollapsedLog, TheFirstLinesAreWrittenThenOnePerInterval) {
  CollapsedLog log;
  for (uint32_t i = 0; i < CollapsedLog::kBurst; ++i) EXPECT_EQ(log.note(kStart + i), 0u);
  for (int i = 0; i < 1'000; ++i) EXPECT_EQ(log.note(kStart + 100), std::nullopt);
  EXPECT_EQ(log.note(kStart + CollapsedLog::kIntervalNs - 1), std::nullopt);
  EXPECT_EQ(log.note(kStart + CollapsedLog::kIntervalNs), 1'001u);
  EXPECT_EQ(log.note(kStart + CollapsedLog::kIntervalNs), std::nullopt);
  EXPECT_EQ(log.note(kStart + 2 * CollapsedLog::kIntervalNs), 1u);
}

TEST(CollapsedLog, AQuietTimeGivesTheFirstLinesBack) {
  CollapsedLog log;
  for (int i = 0; i < 100; ++i) (void)log.note(kStart);
  const uint64_t later = kStart + 100 * CollapsedLog::kIntervalNs;
  EXPECT_EQ(log.note(later), 100 - CollapsedLog::kBurst);
  for (uint32_t i = 1; i < CollapsedLog::kBurst; ++i) EXPECT_EQ(log.note(later), 0u);
  EXPECT_EQ(log.note(later), std::nullopt);
}

}  // namespace
}  // namespace uwarp
