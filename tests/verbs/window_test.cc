// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Memory windows of both types: binding, what a peer may do through them, invalidation by either
// side, and what is refused.
#include <cerrno>
#include <cstring>

#include "verbs/verbs_fixture.h"

namespace {

using Mw = std::unique_ptr<ibv_mw, Destroyer<ibv_dealloc_mw>>;

constexpr uint32_t kBytes = 64;
constexpr int kBindable = kAllAccess | IBV_ACCESS_MW_BIND;

/// `a` accesses memory of `b`, which is registered a second time so that windows can be bound to
/// it.
class Windows : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    pair_ = std::make_unique<Pair>(context(), 1 << 16);
    region_.reset(ibv_reg_mr(b().pd.get(), b().memory.data(), b().memory.size(), kBindable));
    ASSERT_NE(region_, nullptr);
  }
  void TearDown() override {
    region_.reset();
    pair_.reset();
  }
  End& a() { return pair_->a; }
  End& b() { return pair_->b; }
  uint64_t start() { return reinterpret_cast<uint64_t>(b().memory.data()); }

  Mw window(ibv_mw_type type) {
    Mw mw(ibv_alloc_mw(b().pd.get(), type));
    EXPECT_NE(mw, nullptr);
    return mw;
  }
  ibv_mw_bind_info part(size_t offset, uint64_t length, unsigned access = IBV_ACCESS_REMOTE_WRITE) {
    return {region_.get(), start() + offset, length, access};
  }
  int bind1(ibv_mw* mw, const ibv_mw_bind_info& bind, unsigned flags = IBV_SEND_SIGNALED) {
    ibv_mw_bind request = {77, flags, bind};
    return ibv_bind_mw(b().qp.get(), mw, &request);
  }
  int bind2(End& end, ibv_mw* mw, uint32_t key, const ibv_mw_bind_info& bind) {
    ibv_send_wr wr = {};
    wr.wr_id = 78;
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = key;
    wr.bind_mw.bind_info = bind;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(end.qp.get(), &wr, &bad);
  }
  int invalidate(End& end, ibv_wr_opcode opcode, uint64_t wr_id, uint32_t key) {
    ibv_send_wr wr = {};
    wr.wr_id = wr_id;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.invalidate_rkey = key;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(end.qp.get(), &wr, &bad);
  }
  /// Accesses b's memory from `a`; returns the status of the request.
  ibv_wc_status access(ibv_wr_opcode opcode, uint32_t key, uint64_t address,
                       uint32_t length = kBytes) {
    Address place = {};
    place.memory = address;
    place.rkey = key;
    EXPECT_EQ(a().post_rdma(opcode, 5, place, 0, length), 0);
    const auto done = next_completion(a().cq.get());
    return done ? done->status : IBV_WC_GENERAL_ERR;
  }
  /// A Write, then a Read that shows whether the Write was accepted: a Write alone completes early.
  ibv_wc_status write_and_read(uint32_t key, uint64_t address) {
    const auto status = access(IBV_WR_RDMA_WRITE, key, address);
    return status != IBV_WC_SUCCESS ? status : access(IBV_WR_RDMA_READ, key, address);
  }
  std::unique_ptr<Pair> pair_;
  Mr region_;
};

TEST_F(Windows, FieldsOfAWindow) {
  for (ibv_mw_type type : {IBV_MW_TYPE_1, IBV_MW_TYPE_2}) {
    Mw mw = window(type);
    EXPECT_EQ(mw->context, context());
    EXPECT_EQ(mw->pd, b().pd.get());
    EXPECT_EQ(mw->type, type);
    EXPECT_NE(mw->rkey, 0u);
    EXPECT_EQ(ibv_dealloc_pd(b().pd.get()), EBUSY);
  }
  errno = 0;
  EXPECT_EQ(ibv_alloc_mw(b().pd.get(), static_cast<ibv_mw_type>(3)), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Windows, Type1ShowsAPart) {
  Mw mw = window(IBV_MW_TYPE_1);
  const uint32_t before = mw->rkey;
  ASSERT_EQ(bind1(mw.get(), part(128, kBytes, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)),
            0);
  EXPECT_NE(mw->rkey, before);
  const auto done = next_completion(b().cq.get());
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->wr_id, 77u);
  EXPECT_EQ(done->status, IBV_WC_SUCCESS);
  EXPECT_EQ(done->opcode, IBV_WC_BIND_MW);
  std::memset(a().memory.data(), 0x33, kBytes);
  EXPECT_EQ(write_and_read(mw->rkey, start() + 128), IBV_WC_SUCCESS);
  EXPECT_EQ(b().memory[127], 0);
  EXPECT_EQ(b().memory[128], 0x33);
  EXPECT_EQ(b().memory[128 + kBytes], 0);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, mw->rkey, start() + 127), IBV_WC_REM_ACCESS_ERR);
}

// Proves: 5041-8.3-1 5040-8.1.1-4
TEST_F(Windows, Type1IsReboundAndUnbound) {
  Mw mw = window(IBV_MW_TYPE_1);
  const unsigned both = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  ASSERT_EQ(bind1(mw.get(), part(0, kBytes, both)), 0);
  const uint32_t first = mw->rkey;
  ASSERT_EQ(bind1(mw.get(), part(1024, kBytes, both), IBV_SEND_SIGNALED | IBV_SEND_FENCE), 0);
  const uint32_t second = mw->rkey;
  EXPECT_COMPLETION(b().cq.get(), 77, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(b().cq.get(), 77, IBV_WC_SUCCESS);
  EXPECT_NE(first, second);
  EXPECT_EQ(write_and_read(second, start() + 1024), IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dereg_mr(region_.get()), EBUSY);
  ASSERT_EQ(bind1(mw.get(), part(0, 0, 0)), 0);
  EXPECT_COMPLETION(b().cq.get(), 77, IBV_WC_SUCCESS);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, second, start() + 1024), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Windows, Type1ZeroBased) {
  Mw mw = window(IBV_MW_TYPE_1);
  ASSERT_EQ(bind1(mw.get(), part(256, kBytes, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED)), 0);
  EXPECT_COMPLETION(b().cq.get(), 77, IBV_WC_SUCCESS);
  b().memory[256] = 9;
  EXPECT_EQ(access(IBV_WR_RDMA_READ, mw->rkey, 0), IBV_WC_SUCCESS);
  EXPECT_EQ(a().memory[0], 9);
}

TEST_F(Windows, RightsOfTheWindowCount) {
  Mw mw = window(IBV_MW_TYPE_1);
  ASSERT_EQ(bind1(mw.get(), part(0, kBytes, IBV_ACCESS_REMOTE_WRITE)), 0);
  EXPECT_COMPLETION(b().cq.get(), 77, IBV_WC_SUCCESS);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, mw->rkey, start()), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Windows, BindRefusedAtOnce) {
  Mw mw = window(IBV_MW_TYPE_1), mw2 = window(IBV_MW_TYPE_2);
  EXPECT_EQ(bind1(mw2.get(), part(0, kBytes)), EINVAL) << "type";
  EXPECT_EQ(bind1(mw.get(), {nullptr, 0, kBytes, 0}), EINVAL) << "no region";
  EXPECT_EQ(bind1(mw.get(), part(0, kBytes, IBV_ACCESS_MW_BIND)), EINVAL) << "access";
  EXPECT_EQ(bind1(mw.get(), part(0, kBytes), IBV_SEND_INLINE), EINVAL) << "flag";
  const uint32_t key = ibv_inc_rkey(mw2->rkey);
  EXPECT_EQ(bind2(b(), mw.get(), key, part(0, kBytes)), EINVAL) << "type";
  EXPECT_EQ(bind2(b(), nullptr, key, part(0, kBytes)), EINVAL) << "no window";
}

// Programs pass any number as the new key; mlx5 and rxe take its low byte.
TEST_F(Windows, TheLowByteOfANewKeyCounts) {
  Mw mw = window(IBV_MW_TYPE_2);
  const uint32_t first = mw->rkey;
  const unsigned both = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  for (const uint32_t number : {ibv_inc_rkey(first), 17u, 0xbau, 1024u + 5, first ^ 0x1300}) {
    const uint32_t key = (first & ~0xffu) | (number & 0xff);
    ASSERT_EQ(bind2(b(), mw.get(), number, part(0, kBytes, both)), 0) << number;
    EXPECT_EQ(mw->rkey, key);
    EXPECT_COMPLETION(b().cq.get(), 78, IBV_WC_SUCCESS);
    EXPECT_EQ(write_and_read(key, start()), IBV_WC_SUCCESS);
    ASSERT_EQ(invalidate(b(), IBV_WR_LOCAL_INV, 6, key), 0);
    EXPECT_COMPLETION(b().cq.get(), 6, IBV_WC_SUCCESS);
  }
}

TEST_F(Windows, BindThatFailsIsAnErrorCompletion) {
  struct Row {
    const char* what;
    int region_access;
    size_t offset;
    uint64_t length;
  };
  const Row rows[] = {{"region without MW_BIND", kAllAccess, 0, kBytes},
                      {"write window onto a region not to be written",
                       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND, 0, kBytes},
                      {"behind the end", kBindable, (1 << 16) - 8, kBytes}};
  for (const Row& row : rows) {
    Pair pair(context(), 1 << 16);
    End& end = pair.b;
    Mr mr(ibv_reg_mr(end.pd.get(), end.memory.data(), end.memory.size(), row.region_access));
    Mw mw(ibv_alloc_mw(end.pd.get(), IBV_MW_TYPE_2));
    const ibv_mw_bind_info bind = {mr.get(),
                                   reinterpret_cast<uint64_t>(end.memory.data()) + row.offset,
                                   row.length, IBV_ACCESS_REMOTE_WRITE};
    ASSERT_EQ(bind2(end, mw.get(), ibv_inc_rkey(mw->rkey), bind), 0) << row.what;
    EXPECT_COMPLETION(end.cq.get(), 78, IBV_WC_MW_BIND_ERR);
    EXPECT_EQ(state_of(end.qp.get()), IBV_QPS_ERR);
  }
}

TEST_F(Windows, Type2IsInvalidatedLocally) {
  Mw mw = window(IBV_MW_TYPE_2);
  const uint32_t key = ibv_inc_rkey(mw->rkey);
  const unsigned both = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  ASSERT_EQ(bind2(b(), mw.get(), key, part(0, kBytes, both)), 0);
  EXPECT_COMPLETION(b().cq.get(), 78, IBV_WC_SUCCESS);
  EXPECT_EQ(write_and_read(key, start()), IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dereg_mr(region_.get()), EBUSY);
  ASSERT_EQ(invalidate(b(), IBV_WR_LOCAL_INV, 6, key), 0);
  const auto done = next_completion(b().cq.get());
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->status, IBV_WC_SUCCESS);
  EXPECT_EQ(done->opcode, IBV_WC_LOCAL_INV);
  // Bound again with the next key; the old key is no longer valid.
  const uint32_t next = ibv_inc_rkey(key);
  ASSERT_EQ(bind2(b(), mw.get(), next, part(0, kBytes, both)), 0);
  EXPECT_COMPLETION(b().cq.get(), 78, IBV_WC_SUCCESS);
  EXPECT_EQ(write_and_read(next, start()), IBV_WC_SUCCESS);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, key, start()), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Windows, Type2IsInvalidatedByThePeer) {
  Mw mw = window(IBV_MW_TYPE_2);
  const uint32_t key = ibv_inc_rkey(mw->rkey);
  ASSERT_EQ(bind2(b(), mw.get(), key, part(0, kBytes)), 0);
  EXPECT_COMPLETION(b().cq.get(), 78, IBV_WC_SUCCESS);
  ASSERT_EQ(b().post_receive(9), 0);
  ASSERT_EQ(invalidate(a(), IBV_WR_SEND_WITH_INV, 10, key), 0);
  const auto got = next_completion(b().cq.get());
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->wr_id, 9u);
  EXPECT_EQ(got->status, IBV_WC_SUCCESS);
  EXPECT_EQ(got->wc_flags, unsigned{IBV_WC_WITH_INV});
  EXPECT_EQ(got->invalidated_rkey, key);
  EXPECT_COMPLETION(a().cq.get(), 10, IBV_WC_SUCCESS);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, key, start()), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Windows, APeerInvalidatesNothingElse) {
  ASSERT_EQ(b().post_receive(9), 0);
  ASSERT_EQ(invalidate(a(), IBV_WR_SEND_WITH_INV, 10, region_->rkey), 0);
  EXPECT_COMPLETION(b().cq.get(), 9, IBV_WC_REM_INV_REQ_ERR);
}

// Proves: 5041-8.2-d 5041-8.3-3
TEST_F(Windows, Type2BelongsToItsQueuePair) {
  // Bound by one queue pair of the domain, used through another.
  ibv_qp_init_attr init = init_attributes(b().cq.get());
  Qp other(ibv_create_qp(b().pd.get(), &init));
  ASSERT_NE(other, nullptr);
  End peer(context(), 1 << 16);
  ASSERT_EQ(to_init(other.get()), 0);
  Address address = b().address();
  address.qpn = other->qp_num;
  peer.connect(address);
  ASSERT_EQ(to_rtr(other.get(), peer.address()), 0);
  ASSERT_EQ(to_rts(other.get(), address.psn), 0);
  Mw mw = window(IBV_MW_TYPE_2);
  const uint32_t key = ibv_inc_rkey(mw->rkey);
  ASSERT_EQ(bind2(b(), mw.get(), key, part(0, kBytes, IBV_ACCESS_REMOTE_READ)), 0);
  EXPECT_COMPLETION(b().cq.get(), 78, IBV_WC_SUCCESS);
  address.memory = start();
  address.rkey = key;
  ASSERT_EQ(peer.post_rdma(IBV_WR_RDMA_READ, 3, address), 0);
  EXPECT_COMPLETION(peer.cq.get(), 3, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, key, start()), IBV_WC_SUCCESS);
}

TEST_F(Windows, DestroyingTheQueuePairUnbindsType2) {
  Mw mw = window(IBV_MW_TYPE_2);
  ASSERT_EQ(bind2(b(), mw.get(), ibv_inc_rkey(mw->rkey), part(0, kBytes)), 0);
  EXPECT_COMPLETION(b().cq.get(), 78, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dereg_mr(region_.get()), EBUSY);
  b().qp.reset();
  region_.reset();
}

TEST_F(Windows, DeallocatingUnbinds) {
  for (ibv_mw_type type : {IBV_MW_TYPE_1, IBV_MW_TYPE_2}) {
    Mw mw = window(type);
    if (type == IBV_MW_TYPE_1) {
      ASSERT_EQ(bind1(mw.get(), part(0, kBytes), IBV_SEND_SIGNALED), 0);
    } else {
      ASSERT_EQ(bind2(b(), mw.get(), ibv_inc_rkey(mw->rkey), part(0, kBytes)), 0);
    }
    const auto done = next_completion(b().cq.get());
    ASSERT_TRUE(done && done->status == IBV_WC_SUCCESS);
    EXPECT_EQ(ibv_dereg_mr(region_.get()), EBUSY);
  }
  region_.reset();
}

TEST_F(Windows, BoundRegionIsNotReregistered) {
  Mw mw = window(IBV_MW_TYPE_1);
  ASSERT_EQ(bind1(mw.get(), part(0, kBytes, IBV_ACCESS_REMOTE_READ)), 0);
  EXPECT_COMPLETION(b().cq.get(), 77, IBV_WC_SUCCESS);
  errno = 0;
  EXPECT_EQ(ibv_rereg_mr(region_.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 0),
            IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(errno, EBUSY);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, mw->rkey, start()), IBV_WC_SUCCESS);
}

// Proves: 5040-8.1.2-2
TEST_F(Windows, AsManyAsAdvertised) {
  ibv_device_attr attr = {};
  ASSERT_EQ(ibv_query_device(context(), &attr), 0);
  std::vector<Mw> windows;
  for (int i = 0; i < attr.max_mw; ++i) {
    windows.push_back(window(i % 2 == 0 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2));
    ASSERT_NE(windows.back(), nullptr) << i;
  }
  errno = 0;
  EXPECT_EQ(ibv_alloc_mw(b().pd.get(), IBV_MW_TYPE_1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
}

}  // namespace
