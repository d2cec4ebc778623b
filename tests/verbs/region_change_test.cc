// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_rereg_mr: every flag, what peers that use the region see, and what is refused.
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "verbs/verbs_fixture.h"

namespace {

class Change : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    pair_ = std::make_unique<Pair>(context(), 1 << 16);
  }
  void TearDown() override { pair_.reset(); }
  End& a() { return pair_->a; }
  End& b() { return pair_->b; }
  int change(int flags, ibv_pd* pd = nullptr, void* address = nullptr, size_t length = 0,
             int access = 0) {
    return ibv_rereg_mr(b().mr.get(), flags, pd, address, length, access);
  }
  ibv_wc_status read(uint64_t offset = 0) {
    Address place = b().address();
    place.memory += offset;
    EXPECT_EQ(a().post_rdma(IBV_WR_RDMA_READ, 5, place), 0);
    const auto done = next_completion(a().cq.get());
    return done ? done->status : IBV_WC_GENERAL_ERR;
  }
  std::unique_ptr<Pair> pair_;
};

TEST_F(Change, AccessUnderTheSameKeys) {
  const uint32_t lkey = b().mr->lkey, rkey = b().mr->rkey;
  EXPECT_EQ(change(IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ),
            0);
  EXPECT_EQ(b().mr->lkey, lkey);
  EXPECT_EQ(b().mr->rkey, rkey);
  EXPECT_EQ(read(), IBV_WC_SUCCESS);
  EXPECT_EQ(change(IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, IBV_ACCESS_LOCAL_WRITE), 0);
  EXPECT_EQ(read(), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Change, Translation) {
  std::vector<uint8_t> other(5000, 0x44);
  EXPECT_EQ(change(IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, other.data(), other.size()), 0);
  EXPECT_EQ(b().mr->addr, other.data());
  EXPECT_EQ(b().mr->length, other.size());
  const auto distance =
      reinterpret_cast<uint64_t>(other.data()) - reinterpret_cast<uint64_t>(b().memory.data());
  EXPECT_EQ(read(distance), IBV_WC_SUCCESS);
  EXPECT_EQ(a().memory[0], 0x44);
  EXPECT_EQ(read(0), IBV_WC_REM_ACCESS_ERR);
  b().mr.reset();
}

TEST_F(Change, ProtectionDomain) {
  Pd other(ibv_alloc_pd(context()));
  EXPECT_EQ(change(IBV_REREG_MR_CHANGE_PD, other.get()), 0);
  EXPECT_EQ(b().mr->pd, other.get());
  EXPECT_EQ(read(), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(change(IBV_REREG_MR_CHANGE_PD, b().pd.get()), 0);
  pair_ = nullptr;
}

TEST_F(Change, AllAtOnce) {
  Pd other(ibv_alloc_pd(context()));
  std::vector<uint8_t> memory(100);
  EXPECT_EQ(
      change(IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS,
             other.get(), memory.data(), memory.size(),
             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND),
      0);
  EXPECT_EQ(b().mr->addr, memory.data());
  EXPECT_EQ(b().mr->pd, other.get());
  b().mr.reset();
}

TEST_F(Change, ReceivePostedBeforeNamesTheOldPlace) {
  ASSERT_EQ(b().post_receive(1), 0);
  std::vector<uint8_t> other(5000);
  EXPECT_EQ(change(IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, other.data(), other.size()), 0);
  ASSERT_EQ(a().post_send(2), 0);
  EXPECT_COMPLETION(b().cq.get(), 1, IBV_WC_LOC_PROT_ERR);
  b().mr.reset();
}

// After the change the memory may be unmapped, so no request may go on using it as plain memory.
TEST_F(Change, WorkUnderWayDoesNotBecomeOnDemand) {
  constexpr uint32_t kBytes = 32 << 20;  // more than the socket buffers hold
  ibv_device_attr_ex device = {};
  ASSERT_EQ(ibv_query_device_ex(context(), nullptr, &device), 0);
  if (device.odp_caps.general_caps == 0) GTEST_SKIP() << "no memory on demand here";
  Pair large(context(), kBytes);
  ASSERT_EQ(large.a.post_send(1, 0, kBytes), 0);
  EXPECT_FALSE(next_completion(large.a.cq.get(), std::chrono::milliseconds(100)));
  ASSERT_EQ(ibv_rereg_mr(large.a.mr.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                         kAllAccess | IBV_ACCESS_ON_DEMAND),
            0);
  ASSERT_EQ(large.b.post_receive(2, 0, kBytes), 0);
  std::optional<ibv_wc> sent;
  ASSERT_TRUE(wait_until([&] {
    (void)next_completion(large.b.cq.get(), std::chrono::milliseconds(1));
    sent = next_completion(large.a.cq.get(), std::chrono::milliseconds(1));
    return sent.has_value();
  }));
  EXPECT_EQ(sent->status, IBV_WC_LOC_PROT_ERR);
}

TEST_F(Change, RefusalLeavesTheRegionAsItWas) {
  void* hole = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(hole, 4096);
  struct Row {
    const char* what;
    int flags;
    void* address;
    size_t length;
    int access;
    int result;
    int error;
  };
  void* memory = b().memory.data();
  const Row rows[] = {
      {"unknown flag", 1 << 5, nullptr, 0, 0, IBV_REREG_MR_ERR_INPUT, EINVAL},
      {"no address", IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, 10, 0, IBV_REREG_MR_ERR_INPUT,
       EINVAL},
      {"access not announced", IBV_REREG_MR_CHANGE_TRANSLATION, memory, 10, IBV_ACCESS_LOCAL_WRITE,
       IBV_REREG_MR_ERR_INPUT, EINVAL},
      {"unknown access", IBV_REREG_MR_CHANGE_ACCESS, nullptr, 0, 1 << 15, IBV_REREG_MR_ERR_CMD,
       EINVAL},
      {"remote write without local", IBV_REREG_MR_CHANGE_ACCESS, nullptr, 0,
       IBV_ACCESS_REMOTE_WRITE, IBV_REREG_MR_ERR_CMD, EINVAL},
      {"no domain", IBV_REREG_MR_CHANGE_PD, nullptr, 0, 0, IBV_REREG_MR_ERR_CMD, EINVAL},
      {"unmapped", IBV_REREG_MR_CHANGE_TRANSLATION, hole, 10, 0, IBV_REREG_MR_ERR_CMD, EFAULT},
      {"wraps", IBV_REREG_MR_CHANGE_TRANSLATION, memory, ~size_t{0}, 0, IBV_REREG_MR_ERR_CMD,
       EINVAL},
  };
  for (const Row& row : rows) {
    errno = 0;
    EXPECT_EQ(change(row.flags, nullptr, row.address, row.length, row.access), row.result)
        << row.what;
    EXPECT_EQ(errno, row.error) << row.what;
    EXPECT_EQ(b().mr->addr, memory) << row.what;
    EXPECT_EQ(read(), IBV_WC_SUCCESS) << row.what;
  }
}

TEST_F(Change, OnlyPlainRegionsAreChanged) {
  Mr null(ibv_alloc_null_mr(b().pd.get()));
  ASSERT_NE(null, nullptr);
  EXPECT_EQ(ibv_rereg_mr(null.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 0),
            IBV_REREG_MR_ERR_INPUT);
}

/// Peers read all the time while the region moves between two places, which hold different bytes.
/// Each answer must be entirely from one of them, and none may fail.
TEST_F(Change, PeersSeeOneOrTheOther) {
  constexpr int kChanges = 300;
  constexpr uint32_t kBytes = 8192;
  std::vector<uint8_t> first(kBytes, 1), second(kBytes, 2);
  Mr mr(ibv_reg_mr(b().pd.get(), first.data(), kBytes, kAllAccess | IBV_ACCESS_ZERO_BASED));
  ASSERT_NE(mr, nullptr);
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    for (int i = 0; i < kChanges; ++i) {
      auto& to = i % 2 == 0 ? second : first;
      EXPECT_EQ(
          ibv_rereg_mr(mr.get(), IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, to.data(), kBytes, 0),
          0);
    }
    stop = true;
  });
  Address place = {};
  place.rkey = mr->rkey;
  int reads = 0;
  while (!stop || reads == 0) {
    ASSERT_EQ(a().post_rdma(IBV_WR_RDMA_READ, 1, place, 0, 1024), 0);
    const auto done = next_completion(a().cq.get());
    ASSERT_TRUE(done.has_value());
    ASSERT_EQ(done->status, IBV_WC_SUCCESS) << ibv_wc_status_str(done->status);
    const uint8_t seen = a().memory[0];
    ASSERT_TRUE(seen == 1 || seen == 2);
    for (int i = 0; i < 1024; ++i) ASSERT_EQ(a().memory[i], seen) << i;
    ++reads;
  }
  changer.join();
}

}  // namespace
