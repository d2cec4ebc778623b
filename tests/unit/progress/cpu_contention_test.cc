// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// When a polling thread decides that other threads want its core.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/tuning.h"
#include "os/clock.h"
#include "stream/poller.h"
#include "unit/one_core.h"

namespace uwarp {
namespace {

constexpr uint64_t kLook = 2 * tuning::kLossNs;  // time between two looks

/// A thread with the figures that the scheduler reports.
struct Thread {
  CpuContention demand;
  CpuContention::Reading reading{.now_ns = 1, .run_ns = 0, .switches = 7};

  /// The next look, after `run_ns` on the core, `away_ns` off the core, and `switches` switches.
  bool check(uint64_t run_ns, uint64_t away_ns, uint64_t switches) {
    reading.now_ns += run_ns + away_ns;
    reading.run_ns += run_ns;
    reading.switches += switches;
    return demand.check(reading);
  }
};

TEST(CpuContention, AThreadThatKeepsItsCoreHasNoContention) {
  Thread thread;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(thread.check(kLook, 0, 0));
}

TEST(CpuContention, TheFirstLookReportsNoContention) {
  Thread thread;
  EXPECT_FALSE(thread.check(kLook, 10 * tuning::kLossNs, 3));
}

TEST(CpuContention, ATimeSliceOfAnotherIsNoticed) {
  Thread thread;
  EXPECT_FALSE(thread.check(kLook, 0, 0));
  EXPECT_TRUE(thread.check(kLook, tuning::kLossNs, 1));
}

TEST(CpuContention, AShortInterruptionIsNot) {
  Thread thread;
  EXPECT_FALSE(thread.check(kLook, 0, 0));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(thread.check(kLook, tuning::kLossNs - 1, 1));
}

// For example the processor of a virtual machine was away, or the thread slept.
TEST(CpuContention, TimeWithoutASwitchIsNotContention) {
  Thread thread;
  EXPECT_FALSE(thread.check(kLook, 0, 0));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(thread.check(kLook, 10 * tuning::kLossNs, 0));
}

// A thread that yields loses the core only for moments.
TEST(CpuContention, LastsAsLongAsThereAreManySwitches) {
  constexpr uint64_t kTime = tuning::kBelievedNs / 2;
  constexpr uint64_t kMany = kTime / tuning::kSwitchNs;
  Thread thread;
  EXPECT_FALSE(thread.check(kLook, 0, 0));
  EXPECT_TRUE(thread.check(kLook, tuning::kLossNs, 1));
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(thread.check(kTime, 0, kMany));
  EXPECT_TRUE(thread.check(tuning::kBelievedNs - 1, 0, 0));
  EXPECT_FALSE(thread.check(1, 0, 0));
  EXPECT_FALSE(thread.check(kLook, 1, 1));
}

// Time asleep does not count as lost, although the helper thread runs now and then.
TEST(CpuContention, EndsWhenAThreadThatYieldsKeepsItsCore) {
  Thread thread;
  EXPECT_FALSE(thread.check(kLook, 0, 0));
  EXPECT_TRUE(thread.check(kLook, tuning::kLossNs, 1));
  EXPECT_TRUE(thread.check(kLook, tuning::kBelievedNs / 2, 1));
  EXPECT_FALSE(thread.check(kLook, tuning::kBelievedNs / 2, 1));
}

// Two threads that spin on one core.
TEST(CpuContention, SpinnersOnOneCoreNoticeEachOther) {
  const auto cores = usable_cores();
  ASSERT_FALSE(cores.empty());
  std::atomic<bool> noticed{false};
  const auto spin = [&] {
    const OneCore place(cores[0]);
    CpuContention demand;
    const uint64_t end_ns = now_ns() + 30 * kNsPerSecond;
    while (!noticed && now_ns() < end_ns)
      if (demand.wanted()) noticed = true;
  };
  std::thread other(spin);
  std::thread(spin).join();
  other.join();
  EXPECT_TRUE(noticed);
}

}  // namespace
}  // namespace uwarp
