// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The rules by which links and addresses become devices, with made-up records.
#include <gtest/gtest.h>
#include <linux/if_addr.h>
#include <net/if.h>
#include <net/if_arp.h>

#include <set>

#include "net/net_device.h"

namespace uwarp {
namespace {

constexpr unsigned kUp = IFF_UP | IFF_RUNNING;

LinkRecord link(int ifindex, const std::string& name, uint8_t last_mac_byte, unsigned flags = kUp,
                unsigned type = ARPHRD_ETHER) {
  LinkRecord record;
  record.ifindex = ifindex;
  record.name = name;
  if (last_mac_byte != 0) record.mac = {0x02, 0x11, 0x22, 0x33, 0x44, last_mac_byte};
  record.mtu_bytes = 1500;
  record.flags = flags;
  record.hardware_type = type;
  return record;
}

LinkRecord loopback_link() { return link(1, "lo", 0, kUp | IFF_LOOPBACK, ARPHRD_LOOPBACK); }

AddressRecord address(int ifindex, const std::string& text, unsigned flags = 0) {
  auto ip = *IpAddress::from_string(text);
  if (ip.is_link_local()) ip = IpAddress::from_v6(ip.v6(), static_cast<uint32_t>(ifindex));
  return {ifindex, ip, flags};
}

std::vector<std::shared_ptr<const NetDevice>> build(const NetRecords& records,
                                                    const std::vector<std::string>& select = {}) {
  UverbsNumbers numbers;
  return build_net_devices(records, select, numbers);
}

std::vector<std::string> names(const std::vector<std::shared_ptr<const NetDevice>>& devices) {
  std::vector<std::string> result;
  for (const auto& device : devices) result.push_back(device->verbs_name);
  return result;
}

using Names = std::vector<std::string>;

TEST(NetRecords, EthernetFirstLoopbackLastOthersBetween) {
  const NetRecords records{{loopback_link(), link(2, "tun0", 0, kUp, ARPHRD_NONE),
                            link(3, "eth1", 2), link(4, "eth0", 1)},
                           {address(1, "127.0.0.1"), address(2, "10.9.0.1"), address(3, "10.1.0.1"),
                            address(4, "10.0.0.1")}};
  EXPECT_EQ(names(build(records)), (Names{"uwarp_eth1", "uwarp_eth0", "uwarp_tun0", "uwarp_lo"}));
}

TEST(NetRecords, LinksThatAreDownComeLast) {
  const NetRecords records{
      {loopback_link(), link(2, "docker0", 1, IFF_UP), link(3, "tun0", 0, kUp, ARPHRD_NONE)},
      {address(1, "127.0.0.1"), address(2, "10.1.0.1"), address(3, "10.9.0.1")}};
  EXPECT_EQ(names(build(records)), (Names{"uwarp_tun0", "uwarp_lo", "uwarp_docker0"}));
}

TEST(NetRecords, OnlyLinksWithAUsableAddressCount) {
  const NetRecords records{
      {loopback_link(), link(2, "eth0", 1), link(3, "eth1", 2), link(4, "eth2", 3)},
      // eth1: duplicate detection failed; eth2: still under way.
      {address(1, "127.0.0.1"), address(3, "2001:db8::1", IFA_F_DADFAILED | IFA_F_TENTATIVE),
       address(4, "fe80::1", IFA_F_TENTATIVE)}};
  EXPECT_EQ(names(build(records)), Names{"uwarp_lo"});
  EXPECT_TRUE(build(NetRecords{{loopback_link()}, {}}).empty());
}

TEST(NetRecords, OptimisticAddressesAreUsable) {
  const NetRecords records{{link(2, "eth0", 1)},
                           {address(2, "2001:db8::1", IFA_F_TENTATIVE | IFA_F_OPTIMISTIC)}};
  EXPECT_EQ(build(records).size(), 1u);
}

TEST(NetRecords, GidOrder) {
  const NetRecords records{
      {link(2, "eth0", 1)},
      {address(2, "fe80::1"), address(2, "2001:db8::1"), address(2, "10.0.0.2", IFA_F_SECONDARY),
       address(2, "10.0.0.1"), address(2, "fd00::1")}};
  const auto devices = build(records);
  ASSERT_EQ(devices.size(), 1u);
  Names gids;
  for (const auto& gid : devices[0]->gids) {
    gids.push_back(IpAddress::from_gid(gid.bytes().data()).to_string());
  }
  EXPECT_EQ(gids, (Names{"10.0.0.1", "10.0.0.2", "2001:db8::1", "fd00::1", "fe80::1"}));
  EXPECT_EQ(devices[0]->gids.back().scope_id(), 2u);
}

TEST(NetRecords, MoreAddressesThanTheTableHolds) {
  NetRecords records{{link(2, "eth0", 1)}, {address(2, "fe80::1")}};
  for (int i = 1; i <= 20; ++i) {
    records.addresses.push_back(address(2, "10.0.0." + std::to_string(i)));
  }
  const auto devices = build(records);
  ASSERT_EQ(devices[0]->gids.size(), kGidTableLength);
  EXPECT_EQ(devices[0]->gids.back(), *IpAddress::from_string("10.0.0.16"));
}

TEST(NetRecords, GuidsAreStableAndUnique) {
  // A VLAN has its link's MAC; tun0 and lo have none.
  const NetRecords records{{loopback_link(), link(2, "eth0", 1), link(3, "eth0.7", 1),
                            link(4, "tun0", 0, kUp, ARPHRD_NONE)},
                           {address(1, "127.0.0.1"), address(2, "10.0.0.1"), address(3, "10.7.0.1"),
                            address(4, "10.9.0.1")}};
  const auto devices = build(records);
  std::set<uint64_t> guids;
  for (const auto& device : devices) {
    EXPECT_NE(device->guid_be, 0u);
    guids.insert(device->guid_be);
  }
  EXPECT_EQ(guids.size(), 4u);
  // EUI-64 of 02:11:22:33:44:01.
  EXPECT_EQ(devices[0]->guid(), 0x001122fffe334401u);
  // A process that selects fewer netdevs gives them the same GUIDs.
  const auto fewer = build(records, {"eth0.7", "lo"});
  ASSERT_EQ(fewer.size(), 2u);
  EXPECT_EQ(fewer[0]->guid_be, devices[1]->guid_be);
  EXPECT_EQ(fewer[1]->guid_be, devices[3]->guid_be);
}

TEST(NetRecords, Selection) {
  EXPECT_TRUE(selected_netdev({}, "eth0"));
  EXPECT_TRUE(selected_netdev({"lo", "eth0"}, "eth0"));
  EXPECT_TRUE(selected_netdev({"eth*"}, "eth0"));
  EXPECT_FALSE(selected_netdev({"eth"}, "eth0"));
  EXPECT_FALSE(selected_netdev({"lo"}, "eth0"));
}

TEST(NetRecords, NumbersStayWithTheirName) {
  UverbsNumbers numbers;
  const NetRecords both{{link(2, "eth0", 1), link(3, "eth1", 2)},
                        {address(2, "10.0.0.1"), address(3, "10.1.0.1")}};
  auto devices = build_net_devices(both, {}, numbers);
  EXPECT_EQ(devices[0]->uverbs_name, "uverbs192");
  EXPECT_EQ(devices[1]->uverbs_name, "uverbs193");
  devices = build_net_devices(both, {"eth1"}, numbers);
  EXPECT_EQ(devices[0]->uverbs_name, "uverbs193");
}

TEST(NetRecords, LinkStateAndMtu) {
  const NetRecords records{{link(2, "eth0", 1, kUp), link(3, "eth1", 2, IFF_UP)},
                           {address(2, "10.0.0.1"), address(3, "10.1.0.1")}};
  const auto devices = build(records);
  EXPECT_TRUE(devices[0]->running);
  EXPECT_FALSE(devices[1]->running);
  EXPECT_EQ(devices[0]->mtu_bytes, 1500u);
}

TEST(NetDeviceTable, LookUps) {
  const NetRecords records{{loopback_link(), link(2, "eth0", 1), link(3, "eth1", 2)},
                           {address(1, "127.0.0.1"), address(2, "10.0.0.1"), address(2, "fe80::1"),
                            address(3, "10.1.0.1"), address(3, "fe80::1")}};
  const NetDeviceTable table(build(records));
  const auto owner = [&](const std::string& text) {
    const auto device = table.by_address(*IpAddress::from_string(text));
    return device ? device->name : std::string();
  };
  EXPECT_EQ(owner("10.1.0.1"), "eth1");
  EXPECT_EQ(owner("10.2.0.1"), "");
  // All of 127/8 is local, not only the configured address.
  EXPECT_EQ(owner("127.1.2.3"), "lo");
  EXPECT_EQ(owner("::1"), "lo");
  EXPECT_EQ(owner("fe80::1%3"), "eth1");
  EXPECT_EQ(owner("fe80::1"), "eth0");
  EXPECT_EQ(table.by_verbs_name("uwarp_eth1")->ifindex, 3);
  EXPECT_EQ(table.by_verbs_name("eth1"), nullptr);
  EXPECT_EQ(table.by_uverbs_name("uverbs194")->name, "lo");
  EXPECT_EQ(table.by_ifindex(2)->name, "eth0");
  EXPECT_EQ(table.by_guid(table.devices()[1]->guid_be)->name, "eth1");
}

TEST(NetDeviceTable, NetdevsThatAreNoDeviceExist) {
  const NetRecords records{{link(2, "eth0", 1)}, {address(2, "10.0.0.1")}};
  const NetDeviceTable table(build(records), {2, 3});
  EXPECT_TRUE(table.has_netdev(2));
  EXPECT_TRUE(table.has_netdev(3));
  EXPECT_FALSE(table.has_netdev(4));
}

TEST(NetRecords, DevicesWithNeighbours) {
  const NetRecords records{
      {loopback_link(), link(2, "eth0", 1, kUp), link(3, "tun0", 2, kUp | IFF_NOARP)},
      {address(1, "127.0.0.1"), address(2, "10.0.0.1"), address(3, "10.1.0.1")}};
  const NetDeviceTable table(build(records));
  EXPECT_FALSE(table.by_ifindex(1)->has_neighbours);
  EXPECT_TRUE(table.by_ifindex(2)->has_neighbours);
  EXPECT_FALSE(table.by_ifindex(3)->has_neighbours);
}

}  // namespace
}  // namespace uwarp
