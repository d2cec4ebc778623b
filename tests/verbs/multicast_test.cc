// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Queue pairs in multicast groups, on loopback: which of them get a copy, and what is dropped.
// Plain libibverbs; nothing of uwarp but the port of its groups.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "verbs/verbs_fixture.h"

namespace {

constexpr uint16_t kMulticastPort = 22359;  // UWARP_MULTICAST_PORT
constexpr uint32_t kGroupQpn = 0xFFFFFF;
constexpr uint32_t kQkey = 0x01234567;
constexpr uint32_t kRouteHeader = 40;
constexpr uint32_t kMost = 4096;
using Ah = std::unique_ptr<ibv_ah, Destroyer<ibv_destroy_ah>>;

/// A UD queue pair in RTS, with its own memory.
class Member {
 public:
  explicit Member(ibv_context* context, uint32_t flags = 0, uint32_t qkey = kQkey)
      : memory(64 * 1024),
        pd(ibv_alloc_pd(context)),
        cq(ibv_create_cq(context, 256, nullptr, nullptr, 0)) {
    mr.reset(ibv_reg_mr(pd.get(), memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE));
    ibv_qp_init_attr_ex init = {};
    init.send_cq = init.recv_cq = cq.get();
    init.cap = {64, 64, 1, 1, 0};
    init.qp_type = IBV_QPT_UD;
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
    init.pd = pd.get();
    init.create_flags = flags;
    qp.reset(ibv_create_qp_ex(context, &init));
    EXPECT_NE(qp, nullptr) << std::strerror(errno);
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qkey = qkey;
    EXPECT_EQ(ibv_modify_qp(qp.get(), &attr,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
              0);
    attr.qp_state = IBV_QPS_RTR;
    EXPECT_EQ(ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE), 0);
    attr.qp_state = IBV_QPS_RTS;
    EXPECT_EQ(ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
  }
  int attach(const ibv_gid& group) { return ibv_attach_mcast(qp.get(), &group, 0); }
  int detach(const ibv_gid& group) { return ibv_detach_mcast(qp.get(), &group, 0); }
  /// Receives use the upper half of the memory.
  void post_receive(uint64_t id, uint32_t length = kRouteHeader + kMost) {
    ibv_sge sge = {reinterpret_cast<uint64_t>(memory.data() + memory.size() / 2), length, mr->lkey};
    ibv_recv_wr wr = {}, *bad;
    wr.wr_id = id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ASSERT_EQ(ibv_post_recv(qp.get(), &wr, &bad), 0);
  }
  void send(ibv_ah* to, uint32_t length, uint32_t qkey = kQkey, uint32_t number = kGroupQpn) {
    ibv_sge sge = {reinterpret_cast<uint64_t>(memory.data()), length, mr->lkey};
    ibv_send_wr wr = {}, *bad;
    wr.wr_id = 1000;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND_WITH_IMM;
    wr.imm_data = htonl(0xcafe0000 + length);
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.ud.ah = to;
    wr.wr.ud.remote_qpn = number;
    wr.wr.ud.remote_qkey = qkey;
    ASSERT_EQ(ibv_post_send(qp.get(), &wr, &bad), 0);
    EXPECT_COMPLETION(cq.get(), 1000, IBV_WC_SUCCESS);
  }
  const uint8_t* received() const { return memory.data() + memory.size() / 2; }

  std::vector<uint8_t> memory;
  Pd pd;
  Cq cq;
  Mr mr;
  Qp qp;
};

class Multicast : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    if (!roce()) GTEST_SKIP() << "iWARP has none";
    // Each test has its own group, so that parallel runs do not meet.
    std::random_device random;
    group_.raw[10] = group_.raw[11] = 0xff;
    group_.raw[12] = 239;
    for (int i = 13; i < 16; ++i) group_.raw[i] = static_cast<uint8_t>(random() % 254 + 1);
  }
  Ah handle(Member& from, const ibv_gid& group) {
    ibv_ah_attr attr = {};
    attr.is_global = attr.port_num = 1;
    attr.grh.dgid = group;
    attr.grh.hop_limit = 5;
    attr.grh.traffic_class = 0x20;
    Ah made(ibv_create_ah(from.pd.get(), &attr));
    EXPECT_NE(made, nullptr) << std::strerror(errno);
    return made;
  }
  static void expect_datagram(Member& member, uint64_t id, uint32_t length, uint32_t source) {
    const auto found = next_completion(member.cq.get());
    ASSERT_TRUE(found);
    EXPECT_EQ(found->wr_id, id);
    EXPECT_EQ(found->status, IBV_WC_SUCCESS);
    EXPECT_EQ(found->byte_len, kRouteHeader + length);
    EXPECT_EQ(found->src_qp, source);
    EXPECT_EQ(found->wc_flags & (IBV_WC_GRH | IBV_WC_WITH_IMM), IBV_WC_GRH | IBV_WC_WITH_IMM);
    EXPECT_EQ(ntohl(found->imm_data), 0xcafe0000 + length);
  }
  static void expect_nothing(Member& member) {
    EXPECT_FALSE(next_completion(member.cq.get(), std::chrono::milliseconds(50)));
  }

  ibv_gid group_ = {};
};

// Within one process and device. Between processes and hosts: tests/tools/test_datagrams.py.
TEST_F(Multicast, EachMemberGetsACopyAlsoTheSender) {
  Member sender(context()), first(context()), second(context()), stranger(context());
  for (Member* member : {&sender, &first, &second}) ASSERT_EQ(member->attach(group_), 0);
  const Ah to = handle(sender, group_);
  for (const uint32_t length : {0u, 1u, 100u, 1024u, kMost}) {
    for (Member* member : {&sender, &first, &second, &stranger}) member->post_receive(length);
    for (uint32_t i = 0; i < length; ++i) sender.memory[i] = static_cast<uint8_t>(i * 7 + length);
    ibv_sge sge = {reinterpret_cast<uint64_t>(sender.memory.data()), length, sender.mr->lkey};
    ibv_send_wr wr = {}, *bad;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND_WITH_IMM;
    wr.imm_data = htonl(0xcafe0000 + length);
    wr.wr.ud = {to.get(), kGroupQpn, kQkey};
    ASSERT_EQ(ibv_post_send(sender.qp.get(), &wr, &bad), 0);
    for (Member* member : {&sender, &first, &second}) {
      expect_datagram(*member, length, length, sender.qp->qp_num);
      EXPECT_EQ(std::memcmp(member->received() + kRouteHeader, sender.memory.data(), length), 0);
      // The IPv4 header in the last 20 bytes: from the device's own address to the group.
      EXPECT_EQ(member->received()[20], 0x45);
      EXPECT_EQ(member->received()[28], 5) << "hop limit";
      EXPECT_EQ(member->received()[32], 127);
      EXPECT_EQ(std::memcmp(member->received() + 36, &group_.raw[12], 4), 0);
    }
    expect_nothing(stranger);
  }
  for (Member* member : {&sender, &first, &second}) EXPECT_EQ(member->detach(group_), 0);
}

TEST_F(Multicast, AQueuePairMayRefuseItsOwn) {
  Member sender(context(), IBV_QP_CREATE_BLOCK_SELF_MCAST_LB), other(context());
  for (Member* member : {&sender, &other}) {
    ASSERT_EQ(member->attach(group_), 0);
    member->post_receive(1);
  }
  sender.send(handle(sender, group_).get(), 10);
  expect_datagram(other, 1, 10, sender.qp->qp_num);
  expect_nothing(sender);
  other.send(handle(other, group_).get(), 20);
  expect_datagram(sender, 1, 20, other.qp->qp_num);
  for (Member* member : {&sender, &other}) EXPECT_EQ(member->detach(group_), 0);
}

TEST_F(Multicast, AttachingAndDetaching) {
  Member member(context());
  EXPECT_EQ(member.detach(group_), EINVAL);
  EXPECT_EQ(member.attach(group_), 0);
  EXPECT_EQ(member.attach(group_), 0) << "attaching again changes nothing";
  EXPECT_EQ(ibv_destroy_qp(member.qp.get()), EBUSY);
  member.post_receive(1);
  member.send(handle(member, group_).get(), 5);
  expect_datagram(member, 1, 5, member.qp->qp_num);
  expect_nothing(member);
  EXPECT_EQ(member.detach(group_), 0);
  EXPECT_EQ(member.detach(group_), EINVAL);
  member.post_receive(2);
  member.send(handle(member, group_).get(), 5);
  expect_nothing(member);
  ibv_gid unicast = {};
  ASSERT_EQ(ibv_query_gid(context(), 1, 0, &unicast), 0);
  EXPECT_EQ(member.attach(unicast), EINVAL);
  EXPECT_EQ(member.attach({}), EINVAL);
}

TEST_F(Multicast, GroupsAreApart) {
  ibv_gid other = group_;
  other.raw[15] = static_cast<uint8_t>(other.raw[15] % 254 + 1);
  Member here(context()), there(context());
  ASSERT_EQ(here.attach(group_), 0);
  ASSERT_EQ(there.attach(other), 0);
  here.post_receive(1);
  there.post_receive(2);
  here.send(handle(here, other).get(), 30);
  expect_datagram(there, 2, 30, here.qp->qp_num);
  expect_nothing(here);
  EXPECT_EQ(here.detach(group_), 0);
  EXPECT_EQ(there.detach(other), 0);
}

TEST_F(Multicast, WhatDoesNotFitIsDroppedForThatMemberAlone) {
  Member sender(context()), other_key(context(), 0, 0x777), no_receive(context()), good(context());
  for (Member* member : {&other_key, &no_receive, &good}) ASSERT_EQ(member->attach(group_), 0);
  other_key.post_receive(1);
  good.post_receive(1);
  sender.send(handle(sender, group_).get(), 10);
  expect_datagram(good, 1, 10, sender.qp->qp_num);
  expect_nothing(other_key);
  // The group with the queue pair number of a member instead of the multicast number.
  good.post_receive(2);
  sender.send(handle(sender, group_).get(), 10, kQkey, good.qp->qp_num);
  expect_nothing(good);
  for (Member* member : {&other_key, &no_receive, &good}) EXPECT_EQ(member->detach(group_), 0);
}

TEST_F(Multicast, InOrderAndWhole) {
  constexpr uint32_t kRounds = 20, kEach = 60;
  Member sender(context()), member(context());
  ASSERT_EQ(member.attach(group_), 0);
  const Ah to = handle(sender, group_);
  for (uint32_t round = 0; round < kRounds; ++round) {
    std::vector<ibv_send_wr> list(kEach);
    std::vector<ibv_sge> sges(kEach);
    for (uint32_t i = 0; i < kEach; ++i) {
      member.post_receive(i);
      // All together are larger than the frames in which they are collected.
      sges[i] = {reinterpret_cast<uint64_t>(sender.memory.data()), 4000 + i, sender.mr->lkey};
      list[i].sg_list = &sges[i];
      list[i].num_sge = 1;
      list[i].opcode = IBV_WR_SEND_WITH_IMM;
      list[i].imm_data = htonl(0xcafe0000 + sges[i].length);
      list[i].wr.ud = {to.get(), kGroupQpn, kQkey};
      list[i].next = i + 1 < kEach ? &list[i + 1] : nullptr;
    }
    list.back().send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad;
    ASSERT_EQ(ibv_post_send(sender.qp.get(), list.data(), &bad), 0);
    EXPECT_COMPLETION(sender.cq.get(), 0, IBV_WC_SUCCESS);
    for (uint32_t i = 0; i < kEach; ++i) expect_datagram(member, i, 4000 + i, sender.qp->qp_num);
  }
  EXPECT_EQ(member.detach(group_), 0);
}

// Any host can send anything to a group.
TEST_F(Multicast, OtherPacketsToAGroupAreDropped) {
  Member sender(context()), member(context());
  ASSERT_EQ(member.attach(group_), 0);
  member.post_receive(1);
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(fd, 0);
  const in_addr loopback = {htonl(INADDR_LOOPBACK)};
  ASSERT_EQ(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &loopback, sizeof loopback), 0);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(kMulticastPort);
  std::memcpy(&to.sin_addr, &group_.raw[12], 4);
  std::mt19937 random(1);
  std::vector<uint8_t> bytes(9000);
  for (auto& byte : bytes) byte = static_cast<uint8_t>(random());
  const auto send = [&](size_t size) {
    EXPECT_EQ(sendto(fd, bytes.data(), size, 0, reinterpret_cast<sockaddr*>(&to), sizeof to),
              static_cast<ssize_t>(size));
  };
  for (const size_t size : {0, 1, 23, 24, 25, 100, 4120, 4121, 9000}) send(size);
  // A right mark alone; then a right header too, with a wrong length, and with another Q_Key.
  std::memcpy(bytes.data(), "uMC\1", 4);
  for (const size_t size : {4, 27, 28, 29, 4124, 4125}) send(size);
  std::fill(bytes.begin() + 4, bytes.begin() + 28, uint8_t{0});
  std::fill(bytes.begin() + 9, bytes.begin() + 12, uint8_t{0xff});
  bytes[4] = 0x10;
  send(34);
  bytes[4] = 0;
  bytes[5] = 6;
  send(34);
  // Another version.
  bytes[3] = 2;
  bytes[16] = 0x01, bytes[17] = 0x23, bytes[18] = 0x45, bytes[19] = 0x67;
  send(34);
  close(fd);
  sender.send(handle(sender, group_).get(), 10);
  expect_datagram(member, 1, 10, sender.qp->qp_num);
  EXPECT_EQ(member.detach(group_), 0);
}

// Objects that the application has left are freed with the device, sockets included.
TEST_F(Multicast, NothingIsLeft) {
  const size_t before = open_files();
  {
    Member member(context());
    ASSERT_EQ(member.attach(group_), 0);
    const Ah to = handle(member, group_);
    EXPECT_EQ(member.detach(group_), 0);
  }
  EXPECT_LE(open_files(), before + 2) << "the port of queue pairs may stay";
}

TEST_F(Multicast, TheLimitsOfTheDeviceAreReported) {
  ibv_device_attr attr = {};
  ASSERT_EQ(ibv_query_device(context(), &attr), 0);
  EXPECT_GE(attr.max_mcast_grp, 1024);
  EXPECT_GE(attr.max_mcast_qp_attach, 256);
  EXPECT_GE(attr.max_total_mcast_qp_attach, attr.max_mcast_grp);
}

// Groups with two and more members, and more groups than one socket may join.
TEST_F(Multicast, ManyGroups) {
  constexpr int kMany = 100;
  Member member(context());
  ibv_gid group = group_;
  for (int i = 0; i < kMany; ++i) {
    group.raw[15] = static_cast<uint8_t>(i);
    ASSERT_EQ(member.attach(group), 0) << i;
  }
  for (int i = 0; i < kMany; i += 9) {
    group.raw[15] = static_cast<uint8_t>(i);
    member.post_receive(7);
    member.send(handle(member, group).get(), 8);
    expect_datagram(member, 7, 8, member.qp->qp_num);
  }
  for (int i = 0; i < kMany; ++i) {
    group.raw[15] = static_cast<uint8_t>(i);
    EXPECT_EQ(member.detach(group), 0);
  }
}

}  // namespace
