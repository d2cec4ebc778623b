// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Address handles: RoCE adapters can make them, iWARP ones cannot.
#include <netinet/ip.h>
#include <netinet/ip6.h>

#include <cerrno>
#include <cstring>

#include "verbs/verbs_fixture.h"

namespace {

using Ah = std::unique_ptr<ibv_ah, Destroyer<ibv_destroy_ah>>;

class AddressHandles : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    pd_.reset(ibv_alloc_pd(context()));
    ASSERT_EQ(ibv_query_gid(context(), 1, 0, &gid_), 0);
  }
  /// The address of the device itself.
  ibv_ah_attr attributes() const {
    ibv_ah_attr attr = {};
    attr.is_global = 1;
    attr.port_num = 1;
    attr.grh.dgid = gid_;
    attr.grh.hop_limit = 64;
    return attr;
  }
  Ah make(ibv_ah_attr attr) {
    errno = 0;
    return Ah(ibv_create_ah(pd_.get(), &attr));
  }
  Pd pd_;
  ibv_gid gid_ = {};
};

TEST_F(AddressHandles, AreMadeInTheRocePersonaAlone) {
  ibv_device_attr device = {};
  ASSERT_EQ(ibv_query_device(context(), &device), 0);
  Ah ah = make(attributes());
  if (!roce()) {
    EXPECT_EQ(ah, nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    EXPECT_EQ(device.max_ah, 0);
    return;
  }
  ASSERT_NE(ah, nullptr) << std::strerror(errno);
  EXPECT_EQ(ah->context, context());
  EXPECT_EQ(ah->pd, pd_.get());
  EXPECT_GT(device.max_ah, 0);
  // An address handle keeps its domain alive, like every object that is made on one.
  EXPECT_EQ(ibv_dealloc_pd(pd_.get()), EBUSY);
}

TEST_F(AddressHandles, OfEachGid) {
  if (!roce()) GTEST_SKIP() << "iWARP has none";
  ibv_port_attr port = {};
  ASSERT_EQ(ibv_query_port(context(), 1, &port), 0);
  const ibv_gid none = {};
  for (int index = 0; index < port.gid_tbl_len; ++index) {
    ibv_gid gid = {};
    const bool there =
        ibv_query_gid(context(), 1, index, &gid) == 0 && std::memcmp(&gid, &none, sizeof gid) != 0;
    ibv_ah_attr attr = attributes();
    attr.grh.sgid_index = static_cast<uint8_t>(index);
    if (there) attr.grh.dgid = gid;
    EXPECT_EQ(make(attr) != nullptr, there) << index;
  }
}

// With the LID from ibv_query_port(), as rsockets address their own queue pair.
TEST_F(AddressHandles, OfTheOwnPortNeedNoGid) {
  if (!roce()) GTEST_SKIP() << "iWARP has none";
  ibv_ah_attr attr = {};
  attr.port_num = 1;
  EXPECT_NE(make(attr), nullptr) << std::strerror(errno);
}

TEST_F(AddressHandles, WrongAttributesAreRefused) {
  const struct {
    const char* what;
    void (*spoil)(ibv_ah_attr&);
  } rows[] = {
      {"no such port", [](ibv_ah_attr& attr) { attr.port_num = 2; }},
      {"no port", [](ibv_ah_attr& attr) { attr.port_num = 0; }},
      {"no GRH, and not the port's own LID",
       [](ibv_ah_attr& attr) { attr.is_global = 0, attr.dlid = 1; }},
      {"GID index without a GID", [](ibv_ah_attr& attr) { attr.grh.sgid_index = 255; }},
      {"to nowhere", [](ibv_ah_attr& attr) { attr.grh.dgid = {}; }},
  };
  for (const auto& row : rows) {
    ibv_ah_attr attr = attributes();
    row.spoil(attr);
    EXPECT_EQ(make(attr), nullptr) << row.what;
    EXPECT_EQ(errno, EINVAL) << row.what;
  }
}

// As if the device's own address had sent the datagram: libibverbs looks up the GID.
TEST_F(AddressHandles, FromACompletion) {
  if (!roce()) GTEST_SKIP() << "iWARP has none";
  ibv_wc wc = {};
  wc.wc_flags = IBV_WC_GRH;
  wc.src_qp = 5;
  ibv_grh grh = {};
  auto* const v4 = reinterpret_cast<iphdr*>(reinterpret_cast<char*>(&grh) + 20);
  v4->version = 4;
  v4->ihl = 5;
  v4->ttl = 64;
  v4->protocol = IPPROTO_UDP;
  std::memcpy(&v4->saddr, gid_.raw + 12, 4);
  std::memcpy(&v4->daddr, gid_.raw + 12, 4);
  uint32_t sum = 0;
  for (int i = 0; i < 10; ++i) sum += reinterpret_cast<const uint16_t*>(v4)[i];
  v4->check = static_cast<uint16_t>(~((sum & 0xffff) + (sum >> 16)));
  ibv_ah_attr attr = {};
  ASSERT_EQ(ibv_init_ah_from_wc(context(), 1, &wc, &grh, &attr), 0);
  EXPECT_EQ(attr.is_global, 1);
  EXPECT_EQ(attr.grh.sgid_index, 0);
  EXPECT_EQ(std::memcmp(&attr.grh.dgid, &gid_, sizeof gid_), 0);
  EXPECT_NE(make(attr), nullptr) << std::strerror(errno);
  EXPECT_NE(Ah(ibv_create_ah_from_wc(pd_.get(), &wc, &grh, 1)), nullptr) << std::strerror(errno);
  wc.wc_flags = 0;
  wc.slid = 1;
  EXPECT_EQ(ibv_create_ah_from_wc(pd_.get(), &wc, &grh, 1), nullptr) << "without a GRH";
  EXPECT_EQ(errno, EINVAL);
}

}  // namespace
