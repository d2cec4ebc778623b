// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a device reports about itself, and that objects are made and destroyed in the order that the
// manual pages ask for.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "verbs/verbs_fixture.h"

namespace {

class Device : public VerbsTest {};

TEST_F(Device, IsAnRnicUnlessAskedOtherwise) {
  const char* const persona = std::getenv("UWARP_PERSONA");
  const bool adapter = persona != nullptr && std::strcmp(persona, "roce") == 0;
  EXPECT_EQ(context()->device->node_type, adapter ? IBV_NODE_CA : IBV_NODE_RNIC);
  EXPECT_EQ(context()->device->transport_type, adapter ? IBV_TRANSPORT_IB : IBV_TRANSPORT_IWARP);
  EXPECT_GE(context()->num_comp_vectors, 1);
  EXPECT_GE(context()->async_fd, 0);
}

// Proves: 7306-1.1-b
TEST_F(Device, AttributesAreThoseOfTheDesign) {
  ibv_device_attr attr = {};
  ASSERT_EQ(ibv_query_device(context(), &attr), 0);
  EXPECT_NE(attr.node_guid, 0u);
  EXPECT_EQ(attr.node_guid, ibv_get_device_guid(context()->device));
  EXPECT_EQ(attr.sys_image_guid, attr.node_guid);
  EXPECT_EQ(attr.max_qp_wr, 16384);
  EXPECT_EQ(attr.max_srq_wr, 16384);
  EXPECT_EQ(attr.max_sge, 32);
  EXPECT_EQ(attr.max_sge_rd, 32);
  EXPECT_EQ(attr.max_qp_rd_atom, 128);
  EXPECT_EQ(attr.max_qp_init_rd_atom, 128);
  EXPECT_EQ(attr.max_mr_size, ~uint64_t{0});
  EXPECT_EQ(attr.phys_port_cnt, 1);
  EXPECT_GE(attr.max_qp, 10000);
  EXPECT_GE(attr.max_cqe, 131072);
  EXPECT_NE(attr.fw_ver[0], 0);
  EXPECT_EQ(attr.atomic_cap, roce() ? IBV_ATOMIC_HCA : IBV_ATOMIC_GLOB);
  EXPECT_GE(attr.max_mw, 65536);
  const unsigned flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B |
                         IBV_DEVICE_MEM_MGT_EXTENSIONS | IBV_DEVICE_SRQ_RESIZE;
  EXPECT_EQ(attr.device_cap_flags & flags, flags);
  EXPECT_EQ(attr.device_cap_flags & IBV_DEVICE_RC_RNR_NAK_GEN, 0u);
}

TEST_F(Device, ExtendedAttributesStartWithTheBasicOnes) {
  ibv_device_attr attr = {};
  ibv_device_attr_ex extended;
  std::memset(&extended, 0x5a, sizeof extended);
  ASSERT_EQ(ibv_query_device(context(), &attr), 0);
  ASSERT_EQ(ibv_query_device_ex(context(), nullptr, &extended), 0);
  EXPECT_EQ(std::memcmp(&attr, &extended.orig_attr, sizeof attr), 0);
  EXPECT_EQ(extended.phys_port_cnt_ex, 1u);
  EXPECT_EQ(extended.device_cap_flags_ex, uint64_t{attr.device_cap_flags});
  EXPECT_GT(extended.max_dm_size, 0u);
  EXPECT_EQ(extended.odp_caps.general_caps,
            uint64_t{IBV_ODP_SUPPORT} | uint64_t{IBV_ODP_SUPPORT_IMPLICIT});
  EXPECT_EQ(extended.odp_caps.per_transport_caps.rc_odp_caps, 0x3fu);
  EXPECT_EQ(extended.odp_caps.per_transport_caps.ud_odp_caps != 0, roce());
  EXPECT_EQ(extended.tso_caps.max_tso, 0u);
  EXPECT_EQ(extended.rss_caps.rx_hash_function, 0);
  const ibv_query_device_ex_input unknown = {1};
  EXPECT_EQ(ibv_query_device_ex(context(), &unknown, &extended), EINVAL);
}

TEST_F(Device, PortIsActiveEthernet) {
  ibv_port_attr port;
  std::memset(&port, 0x5a, sizeof port);
  ASSERT_EQ(ibv_query_port(context(), 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(port.max_mtu, IBV_MTU_4096);
  EXPECT_EQ(port.active_mtu, IBV_MTU_4096) << "the loopback netdev takes 65536";
  EXPECT_EQ(port.gid_tbl_len, 16);
  EXPECT_EQ(port.pkey_tbl_len, 1);
  EXPECT_EQ(port.lid, 0);
  EXPECT_GE(port.max_msg_sz, 1u << 30);
  EXPECT_EQ(ibv_query_port(context(), 0, &port), EINVAL);
  EXPECT_EQ(ibv_query_port(context(), 2, &port), EINVAL);
}

TEST_F(Device, FirstGidIsAMappedAddress) {
  ibv_gid gid = {};
  ASSERT_EQ(ibv_query_gid(context(), 1, 0, &gid), 0);
  constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  EXPECT_EQ(std::memcmp(gid.raw, kMapped, sizeof kMapped), 0);
  EXPECT_NE(gid.raw[12], 0);
}

TEST_F(Device, OpensManyTimes) {
  const size_t before = open_files();
  for (int i = 0; i < 50; ++i) {
    Context other = open_device();
    ASSERT_NE(other, nullptr);
    Pd pd(ibv_alloc_pd(other.get()));
    EXPECT_NE(pd, nullptr);
  }
  EXPECT_EQ(open_files(), before);
}

TEST_F(Device, UsedObjectsCannotBeDestroyed) {
  Pd pd(ibv_alloc_pd(context()));
  Cq cq(ibv_create_cq(context(), 10, nullptr, nullptr, 0));
  {
    ibv_qp_init_attr init = init_attributes(cq.get());
    Qp qp(ibv_create_qp(pd.get(), &init));
    ASSERT_NE(qp, nullptr);
    EXPECT_EQ(ibv_dealloc_pd(pd.get()), EBUSY) << "a queue pair is there";
    EXPECT_EQ(ibv_destroy_cq(cq.get()), EBUSY) << "a queue pair uses it";
  }
  ibv_srq_init_attr srq_init = {nullptr, {16, 1, 0}};
  Srq srq(ibv_create_srq(pd.get(), &srq_init));
  ASSERT_NE(srq, nullptr);
  EXPECT_EQ(ibv_dealloc_pd(pd.get()), EBUSY) << "a shared receive queue is there";
  ibv_qp_init_attr init = init_attributes(cq.get());
  init.srq = srq.get();
  Qp qp(ibv_create_qp(pd.get(), &init));
  ASSERT_NE(qp, nullptr);
  EXPECT_EQ(ibv_destroy_srq(srq.get()), EBUSY) << "a queue pair uses it";
}

// ib_send_bw leaves a region behind on iWARP where it connects without rdma_cm, which works with no
// other iWARP adapter. That region does not keep its domain, and may still be deregistered later.
TEST_F(Device, ARegionLeftByIbSendBwDoesNotKeepItsDomain) {
  Pair pair(context());
  EXPECT_EQ(ibv_dealloc_pd(pair.a.pd.get()), EBUSY) << "a queue pair is there";
  pair.a.qp.reset();
  EXPECT_EQ(ibv_dealloc_pd(pair.a.pd.get()), roce() ? EBUSY : 0);
  if (!roce()) pair.a.pd.release();
}

// Defined only under AddressSanitizer.
extern "C" void __lsan_disable() __attribute__((weak));
extern "C" void __lsan_enable() __attribute__((weak));

/// The structs leak (the application still has pointers to them), but no file stays open and
/// nothing keeps running.
TEST_F(Device, ClosesWithObjectsLeftAlive) {
  { End first(context()); }  // the engine opens its own files at first use
  const size_t before = open_files();
  Context other = open_device();
  if (__lsan_disable != nullptr) __lsan_disable();
  ibv_pd* pd = ibv_alloc_pd(other.get());
  ibv_cq* cq = ibv_create_cq(other.get(), 10, nullptr, nullptr, 0);
  ibv_qp_init_attr init = init_attributes(cq);
  ibv_qp* qp = ibv_create_qp(pd, &init);
  ASSERT_NE(qp, nullptr);
  ASSERT_EQ(to_init(qp), 0);
  if (__lsan_enable != nullptr) __lsan_enable();
  other.reset();
  EXPECT_EQ(open_files(), before);
}

/// A forked child may destroy what it has inherited and make new objects; this does not affect the
/// parent.
TEST_F(Device, ForkedChildStartsAfresh) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer allows no threads in a forked child";
#endif
  Pair pair(context());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (ibv_alloc_pd(context()) != nullptr || errno != ENODEV) _exit(1);
    if (ibv_destroy_qp(pair.a.qp.get()) != 0 || ibv_dereg_mr(pair.a.mr.get()) != 0) _exit(2);
    if (ibv_destroy_cq(pair.a.cq.get()) != 0 || ibv_dealloc_pd(pair.a.pd.get()) != 0) _exit(3);
    if (ibv_close_device(context()) != 0) _exit(4);
    ibv_context* own = open_device().release();
    if (own == nullptr) _exit(5);
    Pair fresh(own, 4096);
    if (fresh.b.post_receive(1) != 0 || fresh.a.post_send(2) != 0) _exit(6);
    const auto wc = next_completion(fresh.b.cq.get());
    _exit(wc && wc->status == IBV_WC_SUCCESS ? 0 : 7);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ASSERT_EQ(pair.b.post_receive(1), 0);
  ASSERT_EQ(pair.a.post_send(2), 0);
  EXPECT_COMPLETION(pair.b.cq.get(), 1, IBV_WC_SUCCESS);
}

TEST_F(Device, WhatDoesNotExistFailsWithItsErrno) {
  Pd pd(ibv_alloc_pd(context()));
  ibv_wq_init_attr wq = {};
  EXPECT_EQ(ibv_create_wq(context(), &wq), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

}  // namespace
