// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The network devices that become verbs devices, read from the kernel by libnl: names, addresses
// (the GID table), MTU, link state; and the two look-ups everything else needs: which device owns
// a local address, and which source address and device lead to a destination.
// Must not know verbs structs or connections.
#pragma once

#include <linux/netlink.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "net/ip_address.h"

namespace uwarp {

// A non-blocking rtnetlink socket. Raw system calls: a preloaded socket() wrapper must not see the
// engine's own sockets.

/// `groups`: RTMGRP_* bits of the notifications it receives. The fd, or -1 and errno.
inline int open_netlink_socket(uint32_t groups) {
  const int fd = static_cast<int>(
      syscall(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
  if (fd < 0) return -1;
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = groups;
  if (syscall(SYS_bind, fd, &address, sizeof address) == 0) return fd;
  const int error = errno;
  syscall(SYS_close, fd);
  errno = error;
  return -1;
}

/// Entries of a device's GID table. Fixed, because libibverbs reads that many files.
inline constexpr size_t kGidTableLength = 16;

struct NetDevice {
  std::string name;        ///< of the netdev, "eth0"
  std::string verbs_name;  ///< "uwarp_eth0"
  int ifindex = 0;
  std::array<uint8_t, 6> mac{};  ///< zero when the netdev has none
  uint32_t mtu_bytes = 0;
  bool running = false;  ///< administratively up and carrier present
  bool loopback = false;
  bool has_neighbours = false;  ///< finds their hardware addresses, by ARP or NDP
  /// Node GUID as libibverbs hands it out (network order in memory). Nonzero, unique per table,
  /// the same in every process and after a restart.
  uint64_t guid_be = 0;
  /// Index 0 the primary IPv4 address, then further IPv4, global IPv6, link-local IPv6;
  /// at most kGidTableLength.
  std::vector<IpAddress> gids;
  int uverbs_number = 0;    ///< N of uverbsN, from kFirstUverbsNumber on
  std::string uverbs_name;  ///< "uverbs192"

  bool owns(const IpAddress& address) const;
  /// Node GUID in host order.
  uint64_t guid() const { return __builtin_bswap64(guid_be); }
  friend bool operator==(const NetDevice&, const NetDevice&) = default;
};

/// Real devices of the host count from 0: ours stay clear of them.
inline constexpr int kFirstUverbsNumber = 192;

/// How a destination is reached.
struct Route {
  IpAddress source;
  std::shared_ptr<const NetDevice> device;  ///< never null
};

/// One immutable snapshot of all usable devices: Ethernet first, loopback last.
class NetDeviceTable {
 public:
  /// `netdevs`: the interface indexes of all netdevs, also of those that are no verbs device.
  explicit NetDeviceTable(std::vector<std::shared_ptr<const NetDevice>> devices,
                          std::vector<int> netdevs = {});

  const std::vector<std::shared_ptr<const NetDevice>>& devices() const { return devices_; }
  bool empty() const { return devices_.empty(); }

  /// These return null when there is none.
  std::shared_ptr<const NetDevice> by_verbs_name(std::string_view verbs_name) const;
  std::shared_ptr<const NetDevice> by_uverbs_name(std::string_view uverbs_name) const;
  std::shared_ptr<const NetDevice> by_guid(uint64_t guid_be) const;
  std::shared_ptr<const NetDevice> by_ifindex(int ifindex) const;
  /// The device that owns a local address. Any 127/8 address belongs to the loopback device.
  std::shared_ptr<const NetDevice> by_address(const IpAddress& address) const;

  /// A netdev that has lost its addresses exists, although it is no device then. One that was
  /// deleted and made again has another index.
  bool has_netdev(int ifindex) const;
  const std::vector<int>& netdevs() const { return netdevs_; }

 private:
  std::vector<std::shared_ptr<const NetDevice>> devices_;
  std::vector<int> netdevs_;
};

/// The current snapshot, read from the kernel at the first call. Never null; empty as long as the
/// kernel could not be asked. Thread-safe.
std::shared_ptr<const NetDeviceTable> net_devices();

/// Reads the kernel's tables again and publishes a new snapshot if anything changed; returns the
/// current one, which is the old one when the kernel cannot be asked. uverbs numbers of devices
/// that stay are kept. Thread-safe.
std::shared_ptr<const NetDeviceTable> refresh_net_devices();
/// The same, but null when the kernel cannot be asked (no more open files, no memory).
std::shared_ptr<const NetDeviceTable> try_refresh_net_devices();

/// The source address and device by which `destination` is reached, as the kernel would choose;
/// `source` (not the wildcard) fixes the source address. Destinations that are local addresses
/// stay on the device that owns them (the kernel would say lo), so that a GID works towards its
/// own device. On failure nullopt and errno: ENETUNREACH, EHOSTUNREACH, ENODEV (route leads
/// through a netdev that is no verbs device), EADDRNOTAVAIL (source is not local).
std::optional<Route> find_route(const IpAddress& destination,
                                const std::optional<IpAddress>& source = std::nullopt);

/// A netlink fd that becomes readable when links or addresses change; poll it, then call
/// drain_net_changes() and try_refresh_net_devices(). -1 when netlink is not available. Owned here.
int net_changes_fd();
/// Reads all queued notifications; true if there were any.
bool drain_net_changes();

// What the kernel says about links and addresses, as plain records, and the rules that turn them
// into devices. Reading (libnl) and rules are apart so that the rules can be tested with made-up
// records.
struct LinkRecord {
  int ifindex = 0;
  std::string name;
  std::array<uint8_t, 6> mac{};  ///< zero when there is none, or not 6 bytes
  uint32_t mtu_bytes = 0;
  unsigned flags = 0;          ///< IFF_*
  unsigned hardware_type = 0;  ///< ARPHRD_*
};

struct AddressRecord {
  int ifindex = 0;
  IpAddress address;
  unsigned flags = 0;  ///< IFA_F_*
};

/// Both lists in the kernel's order.
struct NetRecords {
  std::vector<LinkRecord> links;
  std::vector<AddressRecord> addresses;
};

/// Reads links and addresses of the calling thread's network namespace. Nullopt when the kernel
/// cannot be asked, at the limit of open files for one: that says nothing about what there is.
std::optional<NetRecords> read_net_records();

/// Whether a netdev may become a device: `selection` holds names or shell patterns; empty means
/// all.
bool selected_netdev(const std::vector<std::string>& selection, const std::string& name);

/// uverbs numbers by device name; a number once given stays with its name.
using UverbsNumbers = std::map<std::string, int>;

/// The rules: at least one usable address; Ethernet first, loopback last, else by index; names,
/// GUIDs, GID order. Says once per process and device when addresses are left out.
std::vector<std::shared_ptr<const NetDevice>> build_net_devices(
    const NetRecords& records, const std::vector<std::string>& selection, UverbsNumbers& numbers);

}  // namespace uwarp
