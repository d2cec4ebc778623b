// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Thread domains, parent domains, and the clock.
#include <cerrno>
#include <cstring>
#include <thread>

#include "verbs/verbs_fixture.h"

namespace {

using Td = std::unique_ptr<ibv_td, Destroyer<ibv_dealloc_td>>;
using Mw = std::unique_ptr<ibv_mw, Destroyer<ibv_dealloc_mw>>;

class Domains : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    pd_.reset(ibv_alloc_pd(context()));
    ibv_td_init_attr init = {};
    td_.reset(ibv_alloc_td(context(), &init));
    ASSERT_NE(td_, nullptr);
  }
  void TearDown() override {
    pd_.reset();
    td_.reset();
  }
  Pd parent(ibv_pd* pd, ibv_td* td, uint32_t mask = 0) {
    ibv_parent_domain_init_attr init = {};
    init.pd = pd;
    init.td = td;
    init.comp_mask = mask;
    errno = 0;
    return Pd(ibv_alloc_parent_domain(context(), &init));
  }
  Pd pd_;
  Td td_;
};

TEST_F(Domains, KeepWhatTheyAreMadeOf) {
  Pd both = parent(pd_.get(), td_.get());
  ASSERT_NE(both, nullptr);
  EXPECT_EQ(both->context, context());
  EXPECT_EQ(ibv_dealloc_pd(pd_.get()), EBUSY);
  EXPECT_EQ(ibv_dealloc_td(td_.get()), EBUSY);
  Pd second = parent(pd_.get(), nullptr);
  EXPECT_NE(second, nullptr);
}

TEST_F(Domains, Refusals) {
  EXPECT_EQ(parent(nullptr, td_.get()), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(parent(pd_.get(), nullptr, 1u << 30), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_td_init_attr init = {1};
  EXPECT_EQ(ibv_alloc_td(context(), &init), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Domains, ParentServesWhereverAPlainOneDoes) {
  Pd both = parent(pd_.get(), td_.get());
  End peer(context(), 1 << 16);
  std::vector<uint8_t> memory(4096, 0x55);
  Cq cq(ibv_create_cq(context(), 64, nullptr, nullptr, 0));
  ibv_srq_init_attr srq_init = {};
  srq_init.attr = {16, 1, 0};
  Srq srq(ibv_create_srq(both.get(), &srq_init));
  ASSERT_NE(srq, nullptr);
  ibv_qp_init_attr init = init_attributes(cq.get());
  init.srq = srq.get();
  Qp qp(ibv_create_qp(both.get(), &init));
  ASSERT_NE(qp, nullptr);
  EXPECT_EQ(qp->pd, both.get());
  Mw mw(ibv_alloc_mw(both.get(), IBV_MW_TYPE_2));
  ASSERT_NE(mw, nullptr);
  // Regions of the plain domain and of its parent domain both belong to the queue pair's domain.
  Mr of_plain(ibv_reg_mr(pd_.get(), memory.data(), 2048, kAllAccess));
  Mr of_parent(ibv_reg_mr(both.get(), memory.data() + 2048, 2048, kAllAccess));
  ASSERT_EQ(to_init(qp.get()), 0);
  Address address = peer.address();
  address.qpn = qp->qp_num;
  peer.connect(address);
  ASSERT_EQ(to_rtr(qp.get(), peer.address()), 0);
  ASSERT_EQ(to_rts(qp.get(), address.psn), 0);
  for (const Mr* mr : {&of_plain, &of_parent}) {
    Address place = {};
    place.memory = reinterpret_cast<uint64_t>((*mr)->addr);
    place.rkey = (*mr)->rkey;
    ASSERT_EQ(peer.post_rdma(IBV_WR_RDMA_READ, 1, place), 0);
    EXPECT_COMPLETION(peer.cq.get(), 1, IBV_WC_SUCCESS);
    EXPECT_EQ(peer.memory[0], 0x55);
  }
  EXPECT_EQ(ibv_dealloc_pd(both.get()), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(pd_.get()), EBUSY);
}

/// The domain stays while this object of it is there.
template <typename Object>
void keeps_domain(const char* name, ibv_pd* pd, const Object& object) {
  ASSERT_NE(object, nullptr) << name << ": " << std::strerror(errno);
  errno = 0;
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY) << name;
  EXPECT_EQ(errno, EBUSY) << name;
}
#define EXPECT_KEEPS(pd, object) keeps_domain(#object, pd, object)

// As the kernel counts what is made on a domain, plain or parent.
TEST_F(Domains, StayWhileAnythingIsLeft) {
  using Ah = std::unique_ptr<ibv_ah, Destroyer<ibv_destroy_ah>>;
  alignas(4096) static uint8_t memory[4096];
  Cq cq(ibv_create_cq(context(), 16, nullptr, nullptr, 0));
  ibv_qp_init_attr qp = init_attributes(cq.get());
  ibv_srq_init_attr srq = {nullptr, {16, 1, 0}};
  ibv_ah_attr ah = {};
  ah.port_num = 1;
  Pd plain(ibv_alloc_pd(context())), both = parent(plain.get(), nullptr);
  EXPECT_KEEPS(plain.get(), both);
  for (ibv_pd* pd : {both.get(), plain.get()}) {
    if (pd == plain.get()) both.reset();
    EXPECT_KEEPS(pd, Mr(ibv_reg_mr(pd, memory, sizeof memory, 0)));
    EXPECT_KEEPS(pd, Mr(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_ON_DEMAND)));
    EXPECT_KEEPS(pd, Mr(ibv_alloc_null_mr(pd)));
    EXPECT_KEEPS(pd, Mw(ibv_alloc_mw(pd, IBV_MW_TYPE_1)));
    EXPECT_KEEPS(pd, Mw(ibv_alloc_mw(pd, IBV_MW_TYPE_2)));
    EXPECT_KEEPS(pd, Qp(ibv_create_qp(pd, &qp)));
    EXPECT_KEEPS(pd, Srq(ibv_create_srq(pd, &srq)));
    if (roce()) EXPECT_KEEPS(pd, Ah(ibv_create_ah(pd, &ah)));
  }
  EXPECT_EQ(ibv_dealloc_pd(plain.release()), 0);
}

TEST_F(Domains, ParentWaitsForItsRegions) {
  Pd both = parent(pd_.get(), nullptr);
  std::vector<uint8_t> memory(4096);
  Mr mr(ibv_reg_mr(both.get(), memory.data(), memory.size(), 0));
  EXPECT_EQ(ibv_dealloc_pd(both.get()), EBUSY);
  EXPECT_EQ(ibv_rereg_mr(mr.get(), IBV_REREG_MR_CHANGE_PD, pd_.get(), nullptr, 0, 0), 0);
  EXPECT_EQ(ibv_dealloc_pd(both.release()), 0);
}

TEST_F(Domains, AllocatorsAreTaken) {
  Pd with = parent(pd_.get(), nullptr,
                   IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT);
  EXPECT_NE(with, nullptr);
}

/// Makes a completion queue on a parent domain; null with errno.
ibv_cq_ex* cq_on(ibv_context* context, ibv_pd* parent) {
  ibv_cq_init_attr_ex init = {};
  init.cqe = 256;
  init.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
  init.parent_domain = parent;
  errno = 0;
  return ibv_create_cq_ex(context, &init);
}

TEST_F(Domains, ParentWaitsForItsCompletionQueues) {
  Pd both = parent(pd_.get(), td_.get());
  Cq cq(ibv_cq_ex_to_cq(cq_on(context(), both.get())));
  ASSERT_NE(cq, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(both.get()), EBUSY);
  EXPECT_EQ(cq_on(context(), pd_.get()), nullptr) << "a plain domain is no parent";
  EXPECT_EQ(errno, EINVAL);
}

// One application thread, as the thread domain promises, and the engine's own threads: both ways of
// posting and of polling.
TEST_F(Domains, ThreadDomainServesItsThread) {
  Pd both = parent(pd_.get(), td_.get());
  ibv_cq_ex* const extended = cq_on(context(), both.get());
  ASSERT_NE(extended, nullptr);
  Cq cq(ibv_cq_ex_to_cq(extended));
  ibv_qp_init_attr_ex init = {};
  init.send_cq = init.recv_cq = cq.get();
  init.cap = {64, 64, 4, 4, 64};
  init.qp_type = IBV_QPT_RC;
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  init.pd = both.get();
  init.send_ops_flags = IBV_QP_EX_WITH_SEND;
  Qp qp(ibv_create_qp_ex(context(), &init));
  ASSERT_NE(qp, nullptr);
  End peer(context());
  std::vector<uint8_t> memory(4096);
  Mr mr(ibv_reg_mr(both.get(), memory.data(), memory.size(), kAllAccess));
  ASSERT_EQ(to_init(qp.get()), 0);
  Address address = peer.address();
  address.qpn = qp->qp_num;
  peer.connect(address);
  ASSERT_EQ(to_rtr(qp.get(), peer.address()), 0);
  ASSERT_EQ(to_rts(qp.get(), address.psn), 0);

  constexpr uint64_t kMessages = 2000;
  std::thread other([&] {
    for (uint64_t done = 0; done < kMessages; ++done) {
      EXPECT_EQ(peer.post_receive(done), 0);
      EXPECT_COMPLETION(peer.cq.get(), done, IBV_WC_SUCCESS);
    }
  });
  ibv_qp_ex* const batch = ibv_qp_to_qp_ex(qp.get());
  ibv_sge sge = {reinterpret_cast<uint64_t>(memory.data()), 64, mr->lkey};
  for (uint64_t id = 0; id < kMessages; ++id) {
    if (id % 2 == 0) {
      ibv_wr_start(batch);
      batch->wr_id = id;
      batch->wr_flags = IBV_SEND_SIGNALED;
      ibv_wr_send(batch);
      ibv_wr_set_sge(batch, sge.lkey, sge.addr, sge.length);
      ASSERT_EQ(ibv_wr_complete(batch), 0);
      ibv_poll_cq_attr attr = {};
      const auto end = std::chrono::steady_clock::now() + kPatience;
      while (ibv_start_poll(extended, &attr) != 0)
        ASSERT_LT(std::chrono::steady_clock::now(), end) << "no completion in time";
      EXPECT_EQ(extended->wr_id, id);
      EXPECT_EQ(extended->status, IBV_WC_SUCCESS);
      ibv_end_poll(extended);
    } else {
      ibv_send_wr wr = {};
      wr.wr_id = id;
      wr.sg_list = &sge;
      wr.num_sge = 1;
      wr.opcode = IBV_WR_SEND;
      wr.send_flags = IBV_SEND_SIGNALED;
      ibv_send_wr* bad = nullptr;
      ASSERT_EQ(ibv_post_send(qp.get(), &wr, &bad), 0);
      EXPECT_COMPLETION(cq.get(), id, IBV_WC_SUCCESS);
    }
  }
  other.join();
}

TEST_F(Domains, ClockGoesOn) {
  ibv_values_ex first = {}, second = {};
  first.comp_mask = second.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  ASSERT_EQ(ibv_query_rt_values_ex(context(), &first), 0);
  ASSERT_EQ(ibv_query_rt_values_ex(context(), &second), 0);
  EXPECT_EQ(first.comp_mask, uint32_t{IBV_VALUES_MASK_RAW_CLOCK});
  EXPECT_GT(first.raw_clock.tv_nsec, 0);
  EXPECT_GE(second.raw_clock.tv_nsec, first.raw_clock.tv_nsec);
  ibv_values_ex none = {};
  none.comp_mask = 1u << 20;
  EXPECT_EQ(ibv_query_rt_values_ex(context(), &none), EINVAL);
  none.comp_mask = 0;
  EXPECT_EQ(ibv_query_rt_values_ex(context(), &none), 0);
  EXPECT_EQ(none.comp_mask, 0u);
}

}  // namespace
