// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Traffic over sockets that do as little as they are allowed to.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "faults/stuttering_sockets.h"
#include "verbs/verbs_fixture.h"

namespace {

constexpr uint32_t kMessageBytes = 3000;
constexpr int kMessages = 40;

/// Two connected pairs at a time, so that epoll has events to reorder.
class Sockets : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    for (auto& pair : pairs_) {
      pair = std::make_unique<Pair>(context());
      std::iota(pair->a.memory.begin(), pair->a.memory.end(), uint8_t{1});
    }
  }
  std::array<std::unique_ptr<Pair>, 2> pairs_;
};

TEST_F(Sockets, AllArrivesWithShortAndFailingCalls) {
  // Both pairs are connected first, because a start-up without kernel memory may fail.
  for (auto& pair : pairs_) {
    ASSERT_EQ(pair->a.post_rdma(IBV_WR_RDMA_WRITE, 1, pair->b.address(), 0, 8), 0);
    EXPECT_COMPLETION(pair->a.cq.get(), 1, IBV_WC_SUCCESS);
  }
  const StutteringSockets stuttering(20261121);
  for (int i = 0; i < kMessages; ++i) {
    const auto offset = static_cast<size_t>(i) * kMessageBytes;
    for (auto& pair : pairs_) {
      ASSERT_EQ(pair->b.post_receive(10 + i, offset, kMessageBytes), 0);
      ASSERT_EQ(pair->a.post_send(100 + i, offset, kMessageBytes), 0);
    }
    for (auto& pair : pairs_) {
      EXPECT_COMPLETION(pair->a.cq.get(), uint64_t(100 + i), IBV_WC_SUCCESS);
      EXPECT_COMPLETION(pair->b.cq.get(), uint64_t(10 + i), IBV_WC_SUCCESS);
    }
    ASSERT_FALSE(HasFailure()) << "message " << i;
  }
  for (auto& pair : pairs_) {
    EXPECT_EQ(std::memcmp(pair->a.memory.data(), pair->b.memory.data(), kMessages * kMessageBytes),
              0);
    ASSERT_EQ(pair->a.post_rdma(IBV_WR_RDMA_READ, 2, pair->b.address(), 1 << 19, 1 << 17), 0);
    EXPECT_COMPLETION(pair->a.cq.get(), 2, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(&pair->a.memory[1 << 19], &pair->b.memory[1 << 19], 1 << 17), 0);
  }
  const auto counts = stuttering.counts();
  EXPECT_GT(counts.interrupted, 0u);
  EXPECT_GT(counts.shortened, 0u);
  EXPECT_GT(counts.without_memory, 0u);
}

}  // namespace
