// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_reg_mr: what it accepts, and what it refuses with which errno.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "verbs/verbs_fixture.h"

namespace {

constexpr size_t kPage = 4096;

class Memory : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    pd_.reset(ibv_alloc_pd(context()));
    ASSERT_NE(pd_, nullptr);
    pages_ = static_cast<uint8_t*>(
        mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  void TearDown() override {
    munmap(pages_, 4 * kPage);
    pd_.reset();
  }
  /// 0, or the errno of the refusal.
  int result(void* address, size_t length, int access) {
    errno = 0;
    Mr mr(ibv_reg_mr(pd_.get(), address, length, access));
    return mr == nullptr ? errno : 0;
  }
  Pd pd_;
  uint8_t* pages_ = nullptr;
};

TEST_F(Memory, FieldsOfARegion) {
  Mr mr(ibv_reg_mr(pd_.get(), pages_, 100, kAllAccess));
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(mr->context, context());
  EXPECT_EQ(mr->pd, pd_.get());
  EXPECT_EQ(mr->addr, pages_);
  EXPECT_EQ(mr->length, 100u);
  EXPECT_EQ(mr->lkey, mr->rkey);
  EXPECT_NE(mr->lkey, 0u);
}

// Proves: 5042-n
TEST_F(Memory, KeysAreNotReusedSoon) {
  std::set<uint32_t> keys;
  for (int i = 0; i < 1000; ++i) {
    Mr mr(ibv_reg_mr(pd_.get(), pages_, kPage, kAllAccess));
    ASSERT_NE(mr, nullptr);
    EXPECT_TRUE(keys.insert(mr->rkey).second) << i;
  }
}

TEST_F(Memory, AccessFlags) {
  struct Row {
    const char* what;
    int access;
    int error;
  };
  const Row rows[] = {
      {"none", 0, 0},
      {"local write", IBV_ACCESS_LOCAL_WRITE, 0},
      {"remote read alone", IBV_ACCESS_REMOTE_READ, 0},
      {"all", kAllAccess, 0},
      {"remote write without local write", IBV_ACCESS_REMOTE_WRITE, EINVAL},
      {"remote atomic without local write", IBV_ACCESS_REMOTE_ATOMIC, EINVAL},
      {"window binding", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND, 0},
      {"zero-based", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED, 0},
      {"huge pages", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_HUGETLB, 0},
      {"relaxed ordering", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING, 0},
      {"any optional flag", IBV_ACCESS_LOCAL_WRITE | 1 << 25, 0},
      {"unknown flag", IBV_ACCESS_LOCAL_WRITE | 1 << 30, EINVAL},
      {"unknown low flag", IBV_ACCESS_LOCAL_WRITE | 1 << 15, EINVAL},
  };
  for (const Row& row : rows) EXPECT_EQ(result(pages_, kPage, row.access), row.error) << row.what;
}

// Proves: 5040-8.1.2-4 5041-8.3-4
TEST_F(Memory, UnmappedMemoryIsRefused) {
  munmap(pages_ + kPage, kPage);
  EXPECT_EQ(result(nullptr, kPage, 0), EFAULT);
  EXPECT_EQ(result(pages_, kPage, IBV_ACCESS_LOCAL_WRITE), 0);
  EXPECT_EQ(result(pages_, kPage + 1, IBV_ACCESS_LOCAL_WRITE), EFAULT);
  EXPECT_EQ(result(pages_ + kPage, 1, 0), EFAULT);
  EXPECT_EQ(result(pages_, 4 * kPage, 0), EFAULT) << "a hole in the middle";
  EXPECT_EQ(result(pages_ + 2 * kPage, 2 * kPage, 0), 0);
}

// Proves: 5040-8.1.2-4 5041-8.3-4
TEST_F(Memory, ReadOnlyMemoryIsNotForWriting) {
  mprotect(pages_, kPage, PROT_READ);
  EXPECT_EQ(result(pages_, kPage, 0), 0);
  EXPECT_EQ(result(pages_, kPage, IBV_ACCESS_REMOTE_READ), 0);
  EXPECT_EQ(result(pages_, kPage, IBV_ACCESS_LOCAL_WRITE), EFAULT);
  EXPECT_EQ(result(pages_, 2 * kPage, IBV_ACCESS_LOCAL_WRITE), EFAULT);
}

// Proves: 5041-8.3-4
TEST_F(Memory, InaccessibleMemoryIsRefused) {
  mprotect(pages_, kPage, PROT_NONE);
  EXPECT_EQ(result(pages_, kPage, 0), EFAULT);
}

TEST_F(Memory, RangesThatWrapAreRefused) {
  EXPECT_EQ(result(pages_, ~size_t{0}, 0), EINVAL);
  errno = 0;
  EXPECT_EQ(ibv_reg_mr_iova(pd_.get(), pages_, kPage, ~uint64_t{0} - 10, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Memory, LengthZeroIsARegionOfNothing) {
  EXPECT_EQ(result(pages_, 0, kAllAccess), 0);
  EXPECT_EQ(result(nullptr, 0, kAllAccess), 0);
}

TEST_F(Memory, OddAddressesAndLengths) {
  for (size_t offset : {1, 7, 4095})
    for (size_t length : {1, 3, 4097}) EXPECT_EQ(result(pages_ + offset, length, kAllAccess), 0);
}

TEST_F(Memory, ManyRegionsOfTheSameMemory) {
  std::vector<Mr> regions;
  for (int i = 0; i < 5000; ++i) {
    regions.emplace_back(ibv_reg_mr(pd_.get(), pages_, kPage, kAllAccess));
    ASSERT_NE(regions.back(), nullptr) << i;
  }
}

// What each combination of rights lets a peer do.
// Proves: 5040-3.2-g
TEST_F(Memory, RightsHoldForPeers) {
  for (unsigned bits = 0; bits < 8; ++bits) {
    int rights = IBV_ACCESS_LOCAL_WRITE;
    if (bits & 1) rights |= IBV_ACCESS_REMOTE_WRITE;
    if (bits & 2) rights |= IBV_ACCESS_REMOTE_READ;
    if (bits & 4) rights |= IBV_ACCESS_REMOTE_ATOMIC;
    const ibv_wr_opcode kinds[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                   IBV_WR_ATOMIC_FETCH_AND_ADD};
    for (unsigned kind = 0; kind < 3; ++kind) {
      SCOPED_TRACE(bits * 10 + kind);
      Pair pair(context(), 4096);
      std::memset(pages_, 0, kPage);
      Mr mr(ibv_reg_mr(pair.b.pd.get(), pages_, kPage, rights));
      ASSERT_NE(mr, nullptr);
      pair.a.memory[0] = 0x42;
      ibv_sge sge = pair.a.sge(0, 8);
      ibv_send_wr wr = {};
      wr.wr_id = 1;
      wr.sg_list = &sge;
      wr.num_sge = 1;
      wr.opcode = kinds[kind];
      wr.send_flags = IBV_SEND_SIGNALED;
      if (kind == 2) {
        wr.wr.atomic = {reinterpret_cast<uint64_t>(pages_), 0x42, 0, mr->rkey};
      } else {
        wr.wr.rdma = {reinterpret_cast<uint64_t>(pages_), mr->rkey};
      }
      ibv_send_wr* bad = nullptr;
      ASSERT_EQ(ibv_post_send(pair.a.qp.get(), &wr, &bad), 0);
      const bool allowed = (bits >> kind & 1) != 0;
      const auto wc = next_completion(pair.a.cq.get());
      ASSERT_TRUE(wc.has_value());
      // A Write completes when the kernel has it, unless completions wait for the peer's
      // acknowledgement.
      const bool unseen = kind == 0 && !roce();
      EXPECT_EQ(wc->status, allowed || unseen ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR);
      const volatile uint8_t* first = pages_;
      if (allowed) {
        EXPECT_TRUE(wait_until([&] { return kind == 1 || *first == 0x42; }));
        EXPECT_EQ(state_of(pair.b.qp.get()), IBV_QPS_RTS);
      } else {
        EXPECT_TRUE(wait_until([&] { return state_of(pair.b.qp.get()) == IBV_QPS_ERR; }));
        EXPECT_EQ(*first, 0);
      }
      while (auto event = next_async_event(context(), std::chrono::milliseconds(0)))
        ibv_ack_async_event(&*event);
    }
  }
}

}  // namespace
