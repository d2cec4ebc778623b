// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// What the kernel says about links and addresses, as plain records, and the rules that turn them
// into devices. Reading (libnl) and rules are apart so that the rules can be tested with made-up
// records.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "net/net_device.h"

namespace uwarp {

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
