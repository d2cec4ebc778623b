// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The public struct of an object says by which handle, and in which context, the kernel knows it.
// If an application has overwritten either, every verb that asks the kernel fails as the kernel
// would have it, and the object can be used once it is put back. Posting and polling ask no kernel.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "verbs/verbs_fixture.h"

namespace {

using Ah = std::unique_ptr<ibv_ah, Destroyer<ibv_destroy_ah>>;
using Dm = std::unique_ptr<ibv_dm, Destroyer<ibv_free_dm>>;
using Mw = std::unique_ptr<ibv_mw, Destroyer<ibv_dealloc_mw>>;
using Xrcd = std::unique_ptr<ibv_xrcd, Destroyer<ibv_close_xrcd>>;

/// 239.255.87.88: joined only, never sent to.
const ibv_gid kGroup = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 255, 87, 88}};

/// Another value stands in `place` while this object lives.
template <typename T>
class Overwritten {
 public:
  Overwritten(T& place, T value) : place_(place), kept_(std::exchange(place, value)) {}
  ~Overwritten() { place_ = kept_; }
  Overwritten(const Overwritten&) = delete;
  Overwritten& operator=(const Overwritten&) = delete;

 private:
  T& place_;
  const T kept_;
};

/// What a call fails with, which errno has to say as well; 0 if it succeeds.
int error_of(int result) {
  if (result > 0) {
    EXPECT_EQ(errno, result);
  }
  return result == 0 ? 0 : errno;
}
template <typename T>
int error_of(T* made) {
  return made != nullptr ? 0 : errno;
}

class Handles : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    other_ = open_device();
    pd_.reset(ibv_alloc_pd(context()));
    cq_.reset(ibv_create_cq(context(), 16, nullptr, nullptr, 0));
    ASSERT_TRUE(other_ && pd_ && cq_);
  }
  /// The call is refused while `object` does not say its own handle, or not its own context.
  template <typename Object, typename Call>
  void refused(const char* name, int error, Object* object, Call&& call) {
    if constexpr (requires { object->handle; }) {
      const Overwritten foreign(object->handle, object->handle ^ 0x5a5a5a5a);
      errno = 0;
      EXPECT_STREQ(std::strerror(error_of(call())), std::strerror(error)) << name << ", handle";
    }
    const Overwritten foreign(object->context, other_.get());
    errno = 0;
    EXPECT_STREQ(std::strerror(error_of(call())), std::strerror(error)) << name << ", context";
  }
  Mr region(int access = IBV_ACCESS_LOCAL_WRITE) {
    return Mr(ibv_reg_mr(pd_.get(), memory_, sizeof memory_, access));
  }
  Srq shared_queue() {
    ibv_srq_init_attr init = {nullptr, {16, 1, 0}};
    return Srq(ibv_create_srq(pd_.get(), &init));
  }
  Dm device_memory() {
    ibv_alloc_dm_attr attr = {};
    attr.length = 64;
    return Dm(ibv_alloc_dm(context(), &attr));
  }
  ibv_qp* create_qp(ibv_cq* send_cq, ibv_cq* recv_cq, ibv_srq* srq = nullptr) {
    ibv_qp_init_attr init = init_attributes(send_cq);
    init.recv_cq = recv_cq;
    init.srq = srq;
    return ibv_create_qp(pd_.get(), &init);
  }
  ibv_qp* create_qp_ex(ibv_qp_type type = IBV_QPT_RC, ibv_xrcd* xrcd = nullptr) {
    ibv_qp_init_attr_ex init = {};
    init.qp_type = type;
    init.cap = {4, 4, 1, 1, 0};
    init.send_cq = init.recv_cq = cq_.get();
    init.comp_mask = xrcd != nullptr ? IBV_QP_INIT_ATTR_XRCD : IBV_QP_INIT_ATTR_PD;
    init.pd = pd_.get();
    init.xrcd = xrcd;
    return ibv_create_qp_ex(context(), &init);
  }
  ibv_pd* parent_domain() {
    ibv_parent_domain_init_attr init = {};
    init.pd = pd_.get();
    return ibv_alloc_parent_domain(context(), &init);
  }
  ibv_ah* address_handle() {
    ibv_ah_attr attr = {};
    attr.port_num = 1;
    return ibv_create_ah(pd_.get(), &attr);
  }

  Context other_;
  Pd pd_;
  Cq cq_;
  alignas(4096) uint8_t memory_[4096] = {};
};

/// By a method of the kernel's ioctl().
#define EXPECT_REFUSED(object, call) refused(#call, ENOENT, (object), [&] { return call; })
/// By a command of its write(), to which the handle is a wrong argument.
#define EXPECT_INVALID(object, call) refused(#call, EINVAL, (object), [&] { return call; })

TEST_F(Handles, OfDomains) {
  ibv_pd* const pd = pd_.get();
  ibv_srq_init_attr srq = {nullptr, {16, 1, 0}};
  const Dm dm = device_memory();
  const Mr mr = region();
  const Mr on_demand = region(IBV_ACCESS_ON_DEMAND);
  const Pd other(ibv_alloc_pd(context()));
  ibv_sge place = {reinterpret_cast<uint64_t>(memory_), 64, on_demand->lkey};
  const int file = memfd_create("memory", 0);
  ASSERT_EQ(ftruncate(file, 4096), 0);
  EXPECT_REFUSED(pd, ibv_dealloc_pd(pd));
  EXPECT_INVALID(pd, ibv_reg_mr(pd, memory_, 64, 0));
  EXPECT_REFUSED(pd, ibv_reg_dmabuf_mr(pd, 0, 64, 0, file, 0));
  EXPECT_REFUSED(pd, ibv_reg_dm_mr(pd, dm.get(), 0, 64, IBV_ACCESS_ZERO_BASED));
  EXPECT_REFUSED(pd, ibv_alloc_null_mr(pd));
  EXPECT_INVALID(pd, ibv_alloc_mw(pd, IBV_MW_TYPE_1));
  EXPECT_INVALID(pd, ibv_alloc_mw(pd, IBV_MW_TYPE_2));
  EXPECT_REFUSED(pd, ibv_create_srq(pd, &srq));
  EXPECT_REFUSED(pd, create_qp(cq_.get(), cq_.get()));
  EXPECT_REFUSED(pd, create_qp_ex());
  EXPECT_REFUSED(pd, parent_domain());
  EXPECT_REFUSED(pd, ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &place, 1));
  EXPECT_INVALID(other.get(),
                 ibv_rereg_mr(mr.get(), IBV_REREG_MR_CHANGE_PD, other.get(), nullptr, 0, 0));
  EXPECT_INVALID(pd, address_handle());
  close(file);
}

TEST_F(Handles, OfParentDomains) {
  const Pd parent(parent_domain());
  ASSERT_NE(parent, nullptr);
  ibv_cq_init_attr_ex init = {};
  init.cqe = 16;
  init.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
  init.parent_domain = parent.get();
  EXPECT_REFUSED(parent.get(), ibv_create_cq_ex(context(), &init));
  EXPECT_REFUSED(parent.get(), ibv_dealloc_pd(parent.get()));
}

TEST_F(Handles, OfRegionsAndWindows) {
  const Mr mr = region();
  EXPECT_REFUSED(mr.get(), ibv_dereg_mr(mr.get()));
  EXPECT_REFUSED(mr.get(),
                 ibv_rereg_mr(mr.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 0));
  for (const ibv_mw_type type : {IBV_MW_TYPE_1, IBV_MW_TYPE_2}) {
    const Mw mw(ibv_alloc_mw(pd_.get(), type));
    EXPECT_REFUSED(mw.get(), ibv_dealloc_mw(mw.get()));
  }
  const Dm dm = device_memory();
  EXPECT_REFUSED(dm.get(), ibv_free_dm(dm.get()));
  EXPECT_REFUSED(dm.get(), ibv_reg_dm_mr(pd_.get(), dm.get(), 0, 64, IBV_ACCESS_ZERO_BASED));
}

TEST_F(Handles, OfCompletionQueues) {
  ibv_cq* const cq = cq_.get();
  const Cq right(ibv_create_cq(context(), 16, nullptr, nullptr, 0));
  ibv_modify_cq_attr moderation = {IBV_CQ_ATTR_MODERATE, {1, 1}};
  EXPECT_REFUSED(cq, ibv_destroy_cq(cq));
  EXPECT_INVALID(cq, ibv_resize_cq(cq, 32));
  EXPECT_INVALID(cq, ibv_modify_cq(cq, &moderation));
  EXPECT_INVALID(cq, ibv_req_notify_cq(cq, 0));
  EXPECT_REFUSED(cq, create_qp(cq, right.get()));
  EXPECT_REFUSED(cq, create_qp(right.get(), cq));
  ibv_cq_init_attr_ex init = {};
  init.cqe = 16;
  const Cq extended(ibv_cq_ex_to_cq(ibv_create_cq_ex(context(), &init)));
  EXPECT_REFUSED(extended.get(), ibv_destroy_cq(extended.get()));
}

TEST_F(Handles, OfSharedQueues) {
  const Srq srq = shared_queue();
  ibv_srq_attr attr = {32, 1, 0};
  EXPECT_REFUSED(srq.get(), ibv_destroy_srq(srq.get()));
  EXPECT_INVALID(srq.get(), ibv_modify_srq(srq.get(), &attr, IBV_SRQ_MAX_WR));
  EXPECT_INVALID(srq.get(), ibv_query_srq(srq.get(), &attr));
  EXPECT_REFUSED(srq.get(), create_qp(cq_.get(), cq_.get(), srq.get()));
}

TEST_F(Handles, OfQueuePairs) {
  const Qp qp(create_qp(cq_.get(), cq_.get()));
  ASSERT_NE(qp, nullptr);
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  EXPECT_INVALID(qp.get(), ibv_query_qp(qp.get(), &attr, IBV_QP_STATE, &init));
  EXPECT_INVALID(qp.get(), to_init(qp.get()));
  EXPECT_REFUSED(qp.get(), ibv_destroy_qp(qp.get()));
  EXPECT_INVALID(qp.get(), ibv_attach_mcast(qp.get(), &kGroup, 0));
  EXPECT_INVALID(qp.get(), ibv_detach_mcast(qp.get(), &kGroup, 0));
  EXPECT_EQ(to_init(qp.get()), 0);
}

TEST_F(Handles, OfAddressHandles) {
  if (!roce()) GTEST_SKIP() << "iWARP has none";
  const Ah ah(address_handle()), second(address_handle());
  ASSERT_TRUE(ah && second);
  EXPECT_NE(ah->handle, second->handle);
  EXPECT_REFUSED(ah.get(), ibv_destroy_ah(ah.get()));
}

// The handle of an XRC domain is the library's own.
TEST_F(Handles, OfXrcDomains) {
  if (!roce()) GTEST_SKIP() << "iWARP has none";
  ibv_xrcd_init_attr anonymous = {};
  anonymous.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  anonymous.fd = -1;
  anonymous.oflags = O_CREAT;
  const Xrcd xrcd(ibv_open_xrcd(context(), &anonymous));
  ASSERT_NE(xrcd, nullptr);
  const Qp qp(create_qp_ex(IBV_QPT_XRC_RECV, xrcd.get()));
  ASSERT_NE(qp, nullptr);
  ibv_qp_open_attr attr = {};
  attr.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  attr.qp_num = qp->qp_num;
  attr.xrcd = xrcd.get();
  attr.qp_type = IBV_QPT_XRC_RECV;
  EXPECT_REFUSED(xrcd.get(), ibv_close_xrcd(xrcd.get()));
  EXPECT_REFUSED(xrcd.get(), create_qp_ex(IBV_QPT_XRC_RECV, xrcd.get()));
  EXPECT_INVALID(xrcd.get(), ibv_open_qp(context(), &attr));
  EXPECT_REFUSED(qp.get(), ibv_destroy_qp(qp.get()));
}

TEST_F(Handles, AreNotLookedAtInPostingAndPolling) {
  Pair pair(context());
  {
    const Overwritten a(pair.a.qp->handle, 1u), b(pair.b.qp->handle, 2u);
    const Overwritten from(pair.a.mr->handle, 3u), to(pair.b.mr->handle, 4u);
    const Overwritten sent(pair.a.cq->handle, 5u), received(pair.b.cq->handle, 6u);
    ASSERT_EQ(pair.b.post_receive(1), 0);
    ASSERT_EQ(pair.a.post_send(2), 0);
    EXPECT_COMPLETION(pair.b.cq.get(), 1, IBV_WC_SUCCESS);
    EXPECT_COMPLETION(pair.a.cq.get(), 2, IBV_WC_SUCCESS);
  }
}

}  // namespace
