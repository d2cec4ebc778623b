// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// What the sysfs files of one device say.
#include <cstdio>

#include "host/sysfs_tree.h"

namespace uwarp {
namespace {

std::string guid_text(uint64_t guid) {
  char text[32];
  snprintf(text, sizeof text, "%04x:%04x:%04x:%04x\n", static_cast<unsigned>(guid >> 48 & 0xffff),
           static_cast<unsigned>(guid >> 32 & 0xffff), static_cast<unsigned>(guid >> 16 & 0xffff),
           static_cast<unsigned>(guid & 0xffff));
  return text;
}

std::string gid_text(const IpAddress& gid) {
  std::string text;
  for (size_t i = 0; i < IpAddress::kBytes; i += 2) {
    char group[8];
    snprintf(group, sizeof group, "%s%02x%02x", i == 0 ? "" : ":", gid.bytes()[i],
             gid.bytes()[i + 1]);
    text += group;
  }
  return text + '\n';
}

constexpr const char* kCounters[] = {"port_xmit_data",
                                     "port_rcv_data",
                                     "port_xmit_packets",
                                     "port_rcv_packets",
                                     "unicast_xmit_packets",
                                     "unicast_rcv_packets",
                                     "multicast_xmit_packets",
                                     "multicast_rcv_packets",
                                     "port_xmit_discards",
                                     "port_rcv_errors",
                                     "port_xmit_wait",
                                     "symbol_error",
                                     "link_downed",
                                     "link_error_recovery"};

constexpr std::string_view kCounterFolder = "/ports/1/counters/";

}  // namespace

std::map<std::string, std::string> device_files(const NetDevice& device, bool roce) {
  std::map<std::string, std::string> files = {
      // RNIC or channel adapter; libibverbs reads the number.
      {"node_type", roce ? "1: CA\n" : "4: RNIC\n"},
      {"node_guid", guid_text(device.guid())},
      {"sys_image_guid", guid_text(device.guid())},
      {"node_desc", device.verbs_name + '\n'},
      {"fw_ver", UWARP_VERSION "\n"},
      {"hw_rev", "0\n"},
      {"hca_type", "uwarp\n"},
      {"board_id", "uwarp\n"},
      // The plugin takes only devices with this file, so that no foreign one of our name is its.
      {"uwarp", device.name + '\n'},
      // As adapters have it: which netdev belongs to the device.
      {"device/net/" + device.name + "/ifindex", std::to_string(device.ifindex) + '\n'},
      {"ports/1/link_layer", "Ethernet\n"},
      {"ports/1/state", device.running ? "4: ACTIVE\n" : "1: DOWN\n"},
      {"ports/1/phys_state", device.running ? "5: LinkUp\n" : "3: Disabled\n"},
      {"ports/1/rate", "40 Gb/sec (4X QDR)\n"},
      {"ports/1/lid", "0x0\n"},
      {"ports/1/sm_lid", "0x0\n"},
      {"ports/1/sm_sl", "0\n"},
      {"ports/1/lid_mask_count", "0\n"},
      {"ports/1/cap_mask", "0x00010000\n"},  // CM supported
      {"ports/1/pkeys/0", "0xffff\n"},
  };
  for (size_t i = 0; i < kGidTableLength; ++i) {
    const std::string index = std::to_string(i);
    const IpAddress gid = i < device.gids.size() ? device.gids[i] : IpAddress();
    files["ports/1/gids/" + index] = gid_text(gid);
    // No file in gid_attrs/ndevs: a name unknown to the reader's namespace fails its whole query.
    files["ports/1/gid_attrs/types/" + index] = "RoCE v2\n";
  }
  for (const char* counter : kCounters) files[std::string("ports/1/counters/") + counter] = "0\n";
  return files;
}

std::map<std::string, std::string> uverbs_files(const NetDevice& device) {
  return {
      {"ibdev", device.verbs_name + '\n'},
      {"dev", "1:7\n"},  // of /dev/full, which stands in for the node
      {"abi_version", "1\n"},
  };
}

CounterFile counter_file(std::string_view path) {
  constexpr std::string_view prefix = "class/infiniband/";
  if (!path.starts_with(prefix)) return {};
  path.remove_prefix(prefix.size());
  const size_t folder = path.find(kCounterFolder);
  if (folder == std::string_view::npos || path.find('/') != folder) return {};
  const std::string_view name = path.substr(folder + kCounterFolder.size());
  for (const char* counter : kCounters) {
    if (name == counter) return {std::string(path.substr(0, folder)), std::string(name)};
  }
  return {};
}

// The engine keeps no counters per device yet: all of them read as zero.
uint64_t counter_value(const NetDevice&, std::string_view) { return 0; }

}  // namespace uwarp
