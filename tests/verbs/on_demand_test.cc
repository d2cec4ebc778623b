// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// On-demand paging: regions whose memory may be unmapped and mapped again, explicit and implicit,
// and advice.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "verbs/verbs_fixture.h"

namespace {

constexpr int kOnDemand = kAllAccess | IBV_ACCESS_ON_DEMAND;

class Paging : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    pair_ = std::make_unique<Pair>(context(), 1 << 16);
    page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    size_ = 4 * page_;
    // Reserves the addresses, so that no other mapping takes them while they are unmapped.
    pages_ = static_cast<uint8_t*>(
        mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  }
  void TearDown() override {
    pair_.reset();
    munmap(pages_, size_);
  }
  void map(size_t first, size_t count, int protection = PROT_READ | PROT_WRITE) {
    ASSERT_NE(mmap(pages_ + first * page_, count * page_, protection,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
              MAP_FAILED);
  }
  void unmap(size_t first, size_t count) { munmap(pages_ + first * page_, count * page_); }
  Mr all_of_it(int access = kOnDemand) {
    return Mr(ibv_reg_mr(b().pd.get(), pages_, size_, access));
  }
  Address place(const Mr& mr, size_t offset = 0) {
    Address address = {};
    address.memory = reinterpret_cast<uint64_t>(pages_) + offset;
    address.rkey = mr->rkey;
    return address;
  }
  ibv_wc_status access(ibv_wr_opcode opcode, const Address& where, uint32_t length = 64) {
    EXPECT_EQ(a().post_rdma(opcode, 5, where, 0, length), 0);
    const auto done = next_completion(a().cq.get());
    return done ? done->status : IBV_WC_GENERAL_ERR;
  }
  int advise(const Mr& mr, ibv_advise_mr_advice advice, size_t offset, uint32_t length,
             uint32_t flags = IBV_ADVISE_MR_FLAG_FLUSH) {
    ibv_sge sge = {reinterpret_cast<uint64_t>(pages_) + offset, length, mr->lkey};
    return ibv_advise_mr(b().pd.get(), advice, flags, &sge, 1);
  }
  End& a() { return pair_->a; }
  End& b() { return pair_->b; }
  std::unique_ptr<Pair> pair_;
  size_t page_ = 0;
  size_t size_ = 0;
  uint8_t* pages_ = nullptr;
};

TEST_F(Paging, MemoryMayComeLater) {
  const Mr mr = all_of_it();
  ASSERT_NE(mr, nullptr);
  map(0, 4);
  std::memset(a().memory.data(), 0x61, size_);
  // Large messages too; in plain regions their bytes are placed directly.
  EXPECT_EQ(access(IBV_WR_RDMA_WRITE, place(mr), static_cast<uint32_t>(size_)), IBV_WC_SUCCESS);
  std::memset(a().memory.data(), 0, size_);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, place(mr), static_cast<uint32_t>(size_)), IBV_WC_SUCCESS);
  for (size_t i = 0; i < size_; ++i) ASSERT_EQ(a().memory[i], 0x61) << i;
  // Unmapped and mapped again.
  unmap(0, 4);
  map(0, 4);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, place(mr)), IBV_WC_SUCCESS);
  EXPECT_EQ(a().memory[0], 0);
}

TEST_F(Paging, MissingMemoryIsARemoteAccessError) {
  const Mr mr = all_of_it();
  unmap(0, 4);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, place(mr)), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Paging, WriteToReadOnlyMemoryEndsTheConnection) {
  const Mr mr = all_of_it();
  map(0, 4, PROT_READ);
  ASSERT_EQ(a().post_rdma(IBV_WR_RDMA_WRITE, 1, place(mr), 0, static_cast<uint32_t>(size_)), 0);
  EXPECT_TRUE(wait_until([&] { return state_of(a().qp.get()) == IBV_QPS_ERR; }));
  EXPECT_EQ(pages_[0], 0);
}

TEST_F(Paging, MissingReceiveBuffer) {
  const Mr mr = all_of_it();
  unmap(0, 4);
  ibv_sge sge = {reinterpret_cast<uint64_t>(pages_), 64, mr->lkey};
  ibv_recv_wr wr = {1, nullptr, &sge, 1};
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(b().qp.get(), &wr, &bad), 0);
  ASSERT_EQ(a().post_send(2), 0);
  EXPECT_COMPLETION(b().cq.get(), 1, IBV_WC_LOC_PROT_ERR);
}

TEST_F(Paging, MissingSource) {
  const Mr mr = all_of_it();
  unmap(0, 4);
  ibv_sge sge = {reinterpret_cast<uint64_t>(pages_), 4096, mr->lkey};
  ibv_send_wr wr = {};
  wr.wr_id = 3;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(b().qp.get(), &wr, &bad), 0);
  EXPECT_COMPLETION(b().cq.get(), 3, IBV_WC_LOC_PROT_ERR);
}

TEST_F(Paging, Atomics) {
  const Mr mr = all_of_it();
  map(0, 1);
  const auto add = [&](size_t offset) {
    ibv_sge sge = a().sge(0, 8);
    ibv_send_wr wr = {};
    wr.wr_id = 4;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.atomic.remote_addr = place(mr, offset).memory;
    wr.wr.atomic.rkey = mr->rkey;
    wr.wr.atomic.compare_add = 3;
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(a().qp.get(), &wr, &bad), 0);
  };
  add(8);
  EXPECT_COMPLETION(a().cq.get(), 4, IBV_WC_SUCCESS);
  EXPECT_EQ(pages_[8], 3);
  add(2 * page_);
  EXPECT_COMPLETION(a().cq.get(), 4, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Paging, ImplicitCoversEverything) {
  Mr mr(ibv_reg_mr(b().pd.get(), nullptr, SIZE_MAX, kOnDemand));
  ASSERT_NE(mr, nullptr);
  map(0, 4);
  std::memset(a().memory.data(), 0x62, size_);
  EXPECT_EQ(access(IBV_WR_RDMA_WRITE, place(mr), static_cast<uint32_t>(size_)), IBV_WC_SUCCESS);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, place(mr)), IBV_WC_SUCCESS);
  EXPECT_EQ(pages_[size_ - 1], 0x62);
  Address nowhere = place(mr);
  nowhere.memory = 64;
  EXPECT_EQ(access(IBV_WR_RDMA_READ, nowhere), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Paging, DeregisteringTheImplicitOneLeavesOthers) {
  Mr mr(ibv_reg_mr(b().pd.get(), nullptr, SIZE_MAX, kOnDemand));
  ASSERT_EQ(b().post_receive(1), 0);
  mr.reset();
  ASSERT_EQ(a().post_send(2), 0);
  EXPECT_COMPLETION(b().cq.get(), 1, IBV_WC_SUCCESS);
}

TEST_F(Paging, Advice) {
  const Mr mr = all_of_it();
  map(0, 2);
  const uint32_t two = static_cast<uint32_t>(2 * page_);
  for (uint32_t flags : {0u, uint32_t{IBV_ADVISE_MR_FLAG_FLUSH}}) {
    EXPECT_EQ(advise(mr, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, two, flags), 0);
    EXPECT_EQ(advise(mr, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 3, two - 3, flags), 0);
    EXPECT_EQ(advise(mr, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, 0, two, flags), 0);
  }
  unsigned char there[2] = {};
  ASSERT_EQ(mincore(pages_, 2 * page_, there), 0);
  EXPECT_EQ(there[0] & there[1] & 1, 1);
}

TEST_F(Paging, AdviceThatIsRefused) {
  const Mr mr = all_of_it(), read_only = all_of_it(IBV_ACCESS_ON_DEMAND);
  map(0, 1, PROT_READ);
  unmap(1, 3);
  constexpr auto kRead = IBV_ADVISE_MR_ADVICE_PREFETCH;
  constexpr auto kWrite = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
  EXPECT_EQ(advise(mr, kRead, page_, 8), EFAULT) << "not mapped";
  EXPECT_EQ(advise(mr, kWrite, 0, 8), EFAULT) << "mapped read-only";
  EXPECT_EQ(advise(mr, kRead, size_ - 4, 8), EFAULT) << "behind the region";
  EXPECT_EQ(advise(read_only, kRead, 0, 8), 0);
  EXPECT_EQ(advise(read_only, kWrite, 0, 8), EPERM) << "region not writable";
  EXPECT_EQ(advise(mr, kRead, 0, 8, 1 << 7), EINVAL) << "flag";
  EXPECT_EQ(advise(mr, static_cast<ibv_advise_mr_advice>(77), 0, 8), ENOTSUP);
  EXPECT_EQ(ibv_advise_mr(b().pd.get(), kRead, 0, nullptr, 0), EINVAL);
  ibv_sge plain = b().sge();
  EXPECT_EQ(ibv_advise_mr(b().pd.get(), kRead, 0, &plain, 1), EINVAL) << "not on demand";
  ibv_sge foreign = a().sge();
  EXPECT_EQ(ibv_advise_mr(b().pd.get(), kRead, 0, &foreign, 1), EPERM) << "foreign domain";
  plain.lkey ^= 0xff;
  EXPECT_EQ(ibv_advise_mr(b().pd.get(), kRead, 0, &plain, 1), EFAULT) << "no such key";
}

}  // namespace
