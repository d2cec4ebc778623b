// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The direct verbs: masked atomics, and what uwarp knows about a peer.
#include <infiniband/uwarpdv.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "verbs/verbs_fixture.h"

namespace {

class DirectVerbs : public VerbsTest {
 protected:
  static uint64_t& cell(End& end) { return *reinterpret_cast<uint64_t*>(end.memory.data()); }
  static uint64_t old_value(End& end) {
    uint64_t value;
    std::memcpy(&value, end.memory.data() + 64, sizeof value);
    return value;
  }
  uwarpdv_atomic_wr aimed(End& target, ibv_sge& sge) {
    uwarpdv_atomic_wr wr = {};
    wr.wr_id = 7;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.rkey = target.mr->rkey;
    wr.remote_addr = target.address().memory;
    return wr;
  }
};

TEST_F(DirectVerbs, KnowsItsDevice) {
  EXPECT_TRUE(uwarpdv_is_supported(context()->device));
  ibv_device other = *context()->device;
  std::strcpy(other.name, "siw0");
  EXPECT_FALSE(uwarpdv_is_supported(&other));
}

TEST_F(DirectVerbs, PeerOfARendezvousIsAUwarp) {
  uwarpdv_peer_attr attr;
  End alone(context());
  std::memset(&attr, 0x5a, sizeof attr);
  ASSERT_EQ(uwarpdv_query_peer(alone.qp.get(), &attr, sizeof attr), 0);
  EXPECT_EQ(attr.caps, 0u);
  EXPECT_EQ(attr.comp_mask, uint64_t{UWARPDV_PEER_ATTR_IDENTITY});
  EXPECT_STREQ(attr.identity, "");
  constexpr uint32_t kFirstRelease = offsetof(uwarpdv_peer_attr, identity);
  EXPECT_EQ(uwarpdv_query_peer(alone.qp.get(), &attr, kFirstRelease - 1), EINVAL);
  // A caller that was built for the first release.
  attr.identity[0] = 'x';
  EXPECT_EQ(uwarpdv_query_peer(alone.qp.get(), &attr, kFirstRelease), 0);
  EXPECT_EQ(attr.comp_mask, 0u);
  EXPECT_EQ(attr.identity[0], 'x');
  Pair pair(context());
  ASSERT_EQ(pair.b.post_receive(1), 0);
  ASSERT_EQ(pair.a.post_send(2), 0);
  EXPECT_COMPLETION(pair.b.cq.get(), 1, IBV_WC_SUCCESS);
  ASSERT_EQ(uwarpdv_query_peer(pair.a.qp.get(), &attr, sizeof attr), 0);
  // Under ./test.sh --tls the peer has proved a key.
  const char* const tls = std::getenv("UWARP_TLS");
  const bool proved = tls != nullptr && std::strcmp(tls, "psk") == 0;
  EXPECT_EQ(attr.caps, unsigned{UWARPDV_PEER_CONNECTED | UWARPDV_PEER_UWARP |
                                UWARPDV_PEER_SEND_WITH_IMM | UWARPDV_PEER_ATOMICS} |
                           (proved ? unsigned{UWARPDV_PEER_TLS} : 0u));
  EXPECT_STREQ(attr.identity, proved ? "alice" : "");
  // A caller that was built for a later release.
  struct {
    uwarpdv_peer_attr known;
    uint64_t more;
  } longer;
  std::memset(&longer, 0x5a, sizeof longer);
  ASSERT_EQ(uwarpdv_query_peer(pair.a.qp.get(), &longer.known, sizeof longer), 0);
  EXPECT_EQ(longer.more, 0u);
}

TEST_F(DirectVerbs, MaskedCompareAndSwap) {
  Pair pair(context());
  cell(pair.b) = 0x1122334455667788;
  ibv_sge sge = pair.a.sge(64, 8);
  uwarpdv_atomic_wr wr = aimed(pair.b, sge);
  wr.opcode = UWARPDV_MASKED_CMP_SWP;
  wr.op.cmp_swp = {0xffffffffffff7788, 0xffff, 0xaaaaaaaaaaaaaaaa, 0x00000000ffff0000};
  uwarpdv_atomic_wr* bad = nullptr;
  ASSERT_EQ(uwarpdv_post_atomic(pair.a.qp.get(), &wr, &bad), 0);
  const auto wc = next_completion(pair.a.cq.get());
  ASSERT_TRUE(wc.has_value());
  EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc->opcode, IBV_WC_COMP_SWAP);
  EXPECT_EQ(old_value(pair.a), 0x1122334455667788u);
  EXPECT_EQ(cell(pair.b), 0x11223344aaaa7788u);
  // The compared bits differ, so nothing is swapped.
  wr.op.cmp_swp.compare_mask = 0xff00000000000000;
  ASSERT_EQ(uwarpdv_post_atomic(pair.a.qp.get(), &wr, &bad), 0);
  EXPECT_COMPLETION(pair.a.cq.get(), 7, IBV_WC_SUCCESS);
  EXPECT_EQ(cell(pair.b), 0x11223344aaaa7788u);
}

TEST_F(DirectVerbs, MaskedFetchAndAddKeepsCarriesInTheirFields) {
  Pair pair(context());
  cell(pair.b) = 0x00000000ffffffff;
  ibv_sge sge = pair.a.sge(64, 8);
  uwarpdv_atomic_wr wr = aimed(pair.b, sge);
  wr.opcode = UWARPDV_MASKED_FETCH_ADD;
  wr.op.fetch_add = {0x0000000100000001, 0x8000000080000000};
  uwarpdv_atomic_wr* bad = nullptr;
  ASSERT_EQ(uwarpdv_post_atomic(pair.a.qp.get(), &wr, &bad), 0);
  const auto wc = next_completion(pair.a.cq.get());
  ASSERT_TRUE(wc.has_value());
  EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc->opcode, IBV_WC_FETCH_ADD);
  EXPECT_EQ(old_value(pair.a), 0xffffffffu);
  EXPECT_EQ(cell(pair.b), 0x0000000100000000u);
}

TEST_F(DirectVerbs, RefusalsNameTheRequest) {
  Pair pair(context());
  ibv_sge sge = pair.a.sge(64, 8);
  for (int row = 0; row < 3; ++row) {
    uwarpdv_atomic_wr first = aimed(pair.b, sge), wrong = first, last = first;
    first.next = &wrong;
    wrong.next = &last;
    if (row == 0) std::memset(&wrong.opcode, 0x11, sizeof wrong.opcode);
    if (row == 1) wrong.send_flags |= 1u << 20;
    if (row == 2) wrong.num_sge = -1;
    uwarpdv_atomic_wr* bad = nullptr;
    EXPECT_EQ(uwarpdv_post_atomic(pair.a.qp.get(), &first, &bad), EINVAL) << row;
    EXPECT_EQ(bad, &wrong) << row;
    EXPECT_COMPLETION(pair.a.cq.get(), 7, IBV_WC_SUCCESS);
  }
}

TEST_F(DirectVerbs, NotByDatagrams) {
  if (!roce()) GTEST_SKIP() << "iWARP has none";
  End end(context());
  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = end.cq.get();
  init.cap = {16, 16, 1, 1, 0};
  init.qp_type = IBV_QPT_UD;
  const Qp qp(ibv_create_qp(end.pd.get(), &init));
  ASSERT_NE(qp, nullptr);
  ibv_sge sge = end.sge(64, 8);
  uwarpdv_atomic_wr wr = aimed(end, sge);
  wr.opcode = UWARPDV_MASKED_FETCH_ADD;
  uwarpdv_atomic_wr* bad = nullptr;
  EXPECT_EQ(uwarpdv_post_atomic(qp.get(), &wr, &bad), EOPNOTSUPP);
  EXPECT_EQ(bad, &wr);
}

TEST_F(DirectVerbs, InABatch) {
  End a(context()), b(context());
  ibv_qp_init_attr_ex init = {};
  init.send_cq = init.recv_cq = a.cq.get();
  init.cap = {16, 16, 1, 1, 0};
  init.qp_type = IBV_QPT_RC;
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  init.pd = a.pd.get();
  init.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
  a.qp.reset(ibv_create_qp_ex(context(), &init));
  ASSERT_NE(a.qp, nullptr);
  ASSERT_EQ(to_init(a.qp.get()), 0);
  a.connect(b.address());
  b.connect(a.address());
  cell(b) = 0xff;
  ibv_qp_ex* qp = ibv_qp_to_qp_ex(a.qp.get());
  const Address target = b.address();
  ibv_wr_start(qp);
  qp->wr_id = 1;
  qp->wr_flags = IBV_SEND_SIGNALED;
  uwarpdv_wr_masked_fetch_add(qp, target.rkey, target.memory, 1, 0x80);
  ibv_wr_set_sge(qp, a.mr->lkey, a.sge(64).addr, 8);
  qp->wr_id = 2;
  uwarpdv_wr_masked_cmp_swp(qp, target.rkey, target.memory, 0, 0xff, 0x4242, 0xff00);
  ibv_wr_set_sge(qp, a.mr->lkey, a.sge(64).addr, 8);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  EXPECT_COMPLETION(a.cq.get(), 1, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(a.cq.get(), 2, IBV_WC_SUCCESS);
  EXPECT_EQ(cell(b), 0x4200u);
}

}  // namespace
