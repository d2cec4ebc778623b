// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include <gtest/gtest.h>

#include "qp/transmit/send_completer.h"

namespace uwarp {
namespace {

constexpr uint16_t kReads = 2;

Acknowledging begun_at(uint64_t position) {
  Acknowledging acknowledging;
  acknowledging.restart(true, kReads, position);
  return acknowledging;
}

TEST(Acknowledging, NeedsReadsOfItsOwn) {
  Acknowledging acknowledging;
  acknowledging.restart(true, 0, 0);
  EXPECT_FALSE(acknowledging.on());
  acknowledging.restart(false, kReads, 0);
  EXPECT_FALSE(acknowledging.on());
  EXPECT_FALSE(acknowledging.due(1, 0, false, true));
}

TEST(Acknowledging, IsDueBehindARequestThatWantsACompletion) {
  Acknowledging acknowledging = begun_at(5);
  acknowledging.owe();
  EXPECT_TRUE(acknowledging.due(6, 0, false, false));
  EXPECT_FALSE(acknowledging.due(5, 0, false, false)) << "nothing is open";
  EXPECT_FALSE(acknowledging.due(6, kReads, false, false)) << "no Read may follow now";
  acknowledging.cover(6);
  EXPECT_FALSE(acknowledging.due(6, 0, false, false));
}

TEST(Acknowledging, IsInNoHurryWithoutACompletion) {
  const Acknowledging acknowledging = begun_at(0);
  EXPECT_FALSE(acknowledging.due(1, 0, false, false));
  EXPECT_TRUE(acknowledging.due(1, 0, false, true)) << "a request behind it waits";
}

TEST(Acknowledging, GoesOncePerBatchWhileRequestsFollow) {
  Acknowledging acknowledging = begun_at(0);
  acknowledging.begin_batch();
  acknowledging.owe();
  EXPECT_FALSE(acknowledging.due(1, 0, true, false)) << "the batch may cover more";
  acknowledging.begin_batch();
  EXPECT_TRUE(acknowledging.due(4, 0, true, false));
  acknowledging.cover(4);
  EXPECT_FALSE(acknowledging.due(5, 0, true, false));
}

}  // namespace
}  // namespace uwarp
