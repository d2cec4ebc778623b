// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The published device table and the change notifications of the kernel.
#include "net/net_device.h"

#include <fnmatch.h>
#include <linux/if_addr.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netlink/errno.h>
#include <netlink/route/addr.h>
#include <netlink/route/link.h>
#include <netlink/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>

#include "base/inherited.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/process_own.h"
#include "base/settings.h"
#include "net/datagram_socket.h"
#include "os/engine_fds.h"

namespace uwarp {

// Links and addresses by libnl-route, and the rules that make devices of them.

namespace {

struct FreeNlSocket {
  void operator()(nl_sock* socket) const { nl_socket_free(socket); }
};
struct FreeNlCache {
  void operator()(nl_cache* cache) const { nl_cache_free(cache); }
};
using NlSocket = std::unique_ptr<nl_sock, FreeNlSocket>;
using NlCache = std::unique_ptr<nl_cache, FreeNlCache>;

LinkRecord link_record(rtnl_link* link) {
  LinkRecord record;
  record.ifindex = rtnl_link_get_ifindex(link);
  if (const char* name = rtnl_link_get_name(link)) record.name = name;
  record.mtu_bytes = rtnl_link_get_mtu(link);
  record.flags = rtnl_link_get_flags(link);
  record.hardware_type = rtnl_link_get_arptype(link);
  nl_addr* mac = rtnl_link_get_addr(link);
  if (mac != nullptr && nl_addr_get_len(mac) == record.mac.size()) {
    std::memcpy(record.mac.data(), nl_addr_get_binary_addr(mac), record.mac.size());
  }
  return record;
}

std::optional<AddressRecord> address_record(rtnl_addr* entry) {
  nl_addr* local = rtnl_addr_get_local(entry);
  if (local == nullptr) return std::nullopt;
  AddressRecord record;
  record.ifindex = rtnl_addr_get_ifindex(entry);
  record.flags = rtnl_addr_get_flags(entry);
  const void* bytes = nl_addr_get_binary_addr(local);
  if (nl_addr_get_family(local) == AF_INET && nl_addr_get_len(local) == 4) {
    in_addr v4;
    std::memcpy(&v4, bytes, sizeof v4);
    record.address = IpAddress::from_v4(v4);
  } else if (nl_addr_get_family(local) == AF_INET6 && nl_addr_get_len(local) == 16) {
    in6_addr v6;
    std::memcpy(&v6, bytes, sizeof v6);
    record.address = IpAddress::from_v6(v6, static_cast<uint32_t>(record.ifindex));
  } else {
    return std::nullopt;
  }
  return record;
}

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

bool has_mac(const LinkRecord& link) {
  return std::any_of(link.mac.begin(), link.mac.end(), [](uint8_t byte) { return byte != 0; });
}

/// Bytes of a GUID in network order: EUI-64 of the MAC for the first link that has it. Others
/// (VLANs and bonds share the MAC of their link) carry a hash of their name where EUI-64 has
/// ff:fe, and links without a MAC a hash alone, marked as locally administered.
uint64_t guid_of(const LinkRecord& link, const NetRecords& records,
                 const std::vector<IpAddress>& gids) {
  std::array<uint8_t, 8> guid;
  if (has_mac(link)) {
    const bool first =
        std::none_of(records.links.begin(), records.links.end(), [&](const LinkRecord& other) {
          return other.ifindex < link.ifindex && other.mac == link.mac;
        });
    const uint64_t hash = fnv1a(link.name);
    guid = {static_cast<uint8_t>(link.mac[0] ^ 2),
            link.mac[1],
            link.mac[2],
            first ? uint8_t{0xff} : static_cast<uint8_t>(hash >> 8),
            first ? uint8_t{0xfe} : static_cast<uint8_t>(hash),
            link.mac[3],
            link.mac[4],
            link.mac[5]};
  } else {
    const uint64_t hash = fnv1a(link.name + ' ' + gids.front().to_string());
    std::memcpy(guid.data(), &hash, sizeof hash);
    guid[0] = static_cast<uint8_t>((guid[0] & 0xfc) | 0x02);
  }
  uint64_t guid_be;
  std::memcpy(&guid_be, guid.data(), sizeof guid_be);
  return guid_be;
}

int gid_rank(const AddressRecord& record) {
  if (record.address.is_v4()) return (record.flags & IFA_F_SECONDARY) ? 1 : 0;
  return record.address.is_link_local() ? 3 : 2;
}

/// A tentative address cannot be bound yet, one that failed duplicate detection never.
bool bindable(const AddressRecord& record) {
  if (record.flags & IFA_F_DADFAILED) return false;
  return !(record.flags & IFA_F_TENTATIVE) || (record.flags & IFA_F_OPTIMISTIC);
}

void log_left_out(const LinkRecord& link, const std::vector<AddressRecord>& addresses) {
  static constinit ProcessOwn<std::set<std::string>> said;
  if (!said.get().insert(link.name).second) return;
  std::string names;
  for (size_t i = kGidTableLength; i < addresses.size(); ++i) {
    names += ' ' + addresses[i].address.to_string();
  }
  log_event("%s: more than %zu addresses, left out:%s", link.name.c_str(), kGidTableLength,
            names.c_str());
}

std::vector<IpAddress> gids_of(const LinkRecord& link, const NetRecords& records) {
  std::vector<AddressRecord> mine;
  for (const AddressRecord& record : records.addresses) {
    if (record.ifindex == link.ifindex && bindable(record)) mine.push_back(record);
  }
  std::stable_sort(mine.begin(), mine.end(), [](const AddressRecord& a, const AddressRecord& b) {
    return gid_rank(a) < gid_rank(b);
  });
  if (mine.size() > kGidTableLength) log_left_out(link, mine);
  std::vector<IpAddress> gids;
  for (const AddressRecord& record : mine) {
    if (gids.size() == kGidTableLength) break;
    gids.push_back(record.address);
  }
  return gids;
}

bool is_running(const LinkRecord& link) {
  return (link.flags & IFF_UP) && (link.flags & IFF_RUNNING);
}

/// What a program gets that names no device: one that it can use, such as no bridge without
/// members. Ethernet, then anything else, then loopback; those that are down come last.
int link_rank(const LinkRecord& link) {
  const int down = is_running(link) ? 0 : 3;
  if (link.flags & IFF_LOOPBACK) return down + 2;
  return down + (link.hardware_type == ARPHRD_ETHER ? 0 : 1);
}

std::nullopt_t unreadable(int error) {
  log_event("links and addresses cannot be read: %s. uwarp-doctor says what is refused",
            nl_geterror(error));
  return std::nullopt;
}

}  // namespace

std::optional<NetRecords> read_net_records() {
  // libnl's socket() may go through a preloaded wrapper; those leave AF_NETLINK alone.
  const NlSocket socket(nl_socket_alloc());
  if (!socket) return unreadable(-NLE_NOMEM);
  if (const int error = nl_connect(socket.get(), NETLINK_ROUTE); error < 0)
    return unreadable(error);
  // The kernel answers before sendmsg() returns. Where a policy refuses that, libnl would wait for
  // ever.
  if (const int error = nl_socket_set_nonblocking(socket.get()); error < 0)
    return unreadable(error);
  nl_cache* raw = nullptr;
  if (const int error = rtnl_link_alloc_cache(socket.get(), AF_UNSPEC, &raw); error < 0)
    return unreadable(error);
  const NlCache links(raw);
  if (const int error = rtnl_addr_alloc_cache(socket.get(), &raw); error < 0)
    return unreadable(error);
  const NlCache addresses(raw);
  NetRecords records;
  for (nl_object* o = nl_cache_get_first(links.get()); o != nullptr; o = nl_cache_get_next(o)) {
    records.links.push_back(link_record(reinterpret_cast<rtnl_link*>(o)));
  }
  for (nl_object* o = nl_cache_get_first(addresses.get()); o != nullptr; o = nl_cache_get_next(o)) {
    if (auto record = address_record(reinterpret_cast<rtnl_addr*>(o))) {
      records.addresses.push_back(*record);
    }
  }
  return records;
}

bool selected_netdev(const std::vector<std::string>& selection, const std::string& name) {
  return selection.empty() ||
         std::any_of(selection.begin(), selection.end(), [&](const std::string& pattern) {
           return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
         });
}

std::vector<std::shared_ptr<const NetDevice>> build_net_devices(
    const NetRecords& records, const std::vector<std::string>& selection, UverbsNumbers& numbers) {
  std::vector<LinkRecord> links = records.links;
  std::sort(links.begin(), links.end(), [](const LinkRecord& a, const LinkRecord& b) {
    return std::pair(link_rank(a), a.ifindex) < std::pair(link_rank(b), b.ifindex);
  });
  std::vector<std::shared_ptr<const NetDevice>> devices;
  for (const LinkRecord& link : links) {
    if (!selected_netdev(selection, link.name)) continue;
    std::vector<IpAddress> gids = gids_of(link, records);
    if (gids.empty()) continue;
    auto device = std::make_shared<NetDevice>();
    device->name = link.name;
    device->verbs_name = "uwarp_" + link.name;
    device->ifindex = link.ifindex;
    device->mac = link.mac;
    device->mtu_bytes = link.mtu_bytes;
    device->running = is_running(link);
    device->loopback = link.flags & IFF_LOOPBACK;
    device->has_neighbours = !(link.flags & (IFF_LOOPBACK | IFF_NOARP));
    device->guid_be = guid_of(link, records, gids);
    device->gids = std::move(gids);
    const int next = kFirstUverbsNumber + static_cast<int>(numbers.size());
    device->uverbs_number = numbers.try_emplace(device->verbs_name, next).first->second;
    device->uverbs_name = "uverbs" + std::to_string(device->uverbs_number);
    devices.push_back(std::move(device));
  }
  return devices;
}

// find_route: the kernel itself chooses the source address, by connecting a datagram socket
// (nothing is sent).

namespace {

std::optional<IpAddress> source_towards(const IpAddress& destination,
                                        const std::optional<IpAddress>& source) {
  const DatagramSocket socket(destination.is_v4() ? AF_INET : AF_INET6);
  if (!socket.is_open()) return std::nullopt;
  if (source && !source->is_any() && !socket.bind(*source)) return std::nullopt;
  if (!socket.connect(destination)) return std::nullopt;
  return socket.local_address();
}

}  // namespace

std::optional<Route> find_route(const IpAddress& destination,
                                const std::optional<IpAddress>& source) {
  if (source && !source->is_any() && source->is_v4() != destination.is_v4()) {
    errno = EAFNOSUPPORT;
    return std::nullopt;
  }
  const auto local = source_towards(destination, source);
  if (!local) return std::nullopt;
  auto device = net_devices()->by_address(*local);
  if (!device) device = refresh_net_devices()->by_address(*local);
  if (!device) {
    errno = ENODEV;
    return std::nullopt;
  }
  return Route{*local, std::move(device)};
}

namespace {

using DevicePtr = std::shared_ptr<const NetDevice>;

template <typename Predicate>
DevicePtr find(const std::vector<DevicePtr>& devices, Predicate matches) {
  const auto it = std::find_if(devices.begin(), devices.end(),
                               [&](const DevicePtr& device) { return matches(*device); });
  return it == devices.end() ? nullptr : *it;
}

/// The one table of the process.
struct Published {
  Mutex lock;  ///< guards the numbers too; a leaf, nothing else is locked under it
  std::shared_ptr<const NetDeviceTable> table GUARDED_BY(lock);
  int changes_fd GUARDED_BY(lock) = -2;  ///< -2: not opened yet
};

constinit ProcessOwn<Published> published;
/// A child's application has lists of devices from before the fork.
constinit Inherited<UverbsNumbers> numbers;

/// False when the kernel cannot be asked: what was known stays, and nothing is made of nothing.
bool refresh_locked(Published& state) REQUIRES(state.lock) {
  const auto records = read_net_records();
  if (!records) return false;
  UverbsNumbers known = numbers.copy();
  const size_t known_before = known.size();
  auto devices = build_net_devices(*records, settings().netdevs, known);
  if (known.size() != known_before) numbers.replace(std::move(known));
  std::vector<int> netdevs;
  for (const LinkRecord& link : records->links) netdevs.push_back(link.ifindex);
  const auto same = [](const DevicePtr& a, const DevicePtr& b) { return *a == *b; };
  if (state.table && std::ranges::equal(state.table->devices(), devices, same) &&
      state.table->netdevs() == netdevs)
    return true;
  if (devices.empty())
    log_event("no usable network device: give one an address, or ip link set lo up");
  state.table = std::make_shared<const NetDeviceTable>(std::move(devices), std::move(netdevs));
  return true;
}

/// Not published: the next look may find more.
std::shared_ptr<const NetDeviceTable> known_locked(const Published& state) REQUIRES(state.lock) {
  if (state.table) return state.table;
  return std::make_shared<const NetDeviceTable>(std::vector<DevicePtr>());
}

}  // namespace

bool NetDevice::owns(const IpAddress& address) const {
  if (loopback && address.is_loopback()) return true;
  return std::any_of(gids.begin(), gids.end(), [&](const IpAddress& gid) {
    // A link-local address without its zone matches any device that has it.
    return gid.bytes() == address.bytes() &&
           (address.scope_id() == 0 || gid.scope_id() == address.scope_id());
  });
}

NetDeviceTable::NetDeviceTable(std::vector<DevicePtr> devices, std::vector<int> netdevs)
    : devices_(std::move(devices)), netdevs_(std::move(netdevs)) {}

DevicePtr NetDeviceTable::by_verbs_name(std::string_view verbs_name) const {
  return find(devices_, [&](const NetDevice& device) { return device.verbs_name == verbs_name; });
}

DevicePtr NetDeviceTable::by_uverbs_name(std::string_view uverbs_name) const {
  return find(devices_, [&](const NetDevice& device) { return device.uverbs_name == uverbs_name; });
}

DevicePtr NetDeviceTable::by_guid(uint64_t guid_be) const {
  return find(devices_, [&](const NetDevice& device) { return device.guid_be == guid_be; });
}

DevicePtr NetDeviceTable::by_ifindex(int ifindex) const {
  return find(devices_, [&](const NetDevice& device) { return device.ifindex == ifindex; });
}

DevicePtr NetDeviceTable::by_address(const IpAddress& address) const {
  return find(devices_, [&](const NetDevice& device) { return device.owns(address); });
}

bool NetDeviceTable::has_netdev(int ifindex) const {
  return by_ifindex(ifindex) != nullptr ||
         std::find(netdevs_.begin(), netdevs_.end(), ifindex) != netdevs_.end();
}

std::shared_ptr<const NetDeviceTable> net_devices() {
  Published& state = published.get();
  const Lock guard(state.lock);
  if (!state.table) refresh_locked(state);
  return known_locked(state);
}

std::shared_ptr<const NetDeviceTable> refresh_net_devices() {
  Published& state = published.get();
  const Lock guard(state.lock);
  refresh_locked(state);
  return known_locked(state);
}

std::shared_ptr<const NetDeviceTable> try_refresh_net_devices() {
  Published& state = published.get();
  const Lock guard(state.lock);
  return refresh_locked(state) ? state.table : nullptr;
}

int net_changes_fd() {
  Published& state = published.get();
  const Lock guard(state.lock);
  if (state.changes_fd == -2)
    state.changes_fd =
        adopt_engine_fd(open_netlink_socket(RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR));
  return state.changes_fd;
}

bool drain_net_changes() {
  const int fd = net_changes_fd();
  bool any = false;
  char buffer[8192];
  for (;;) {
    const long got =
        syscall(SYS_recvfrom, fd, buffer, sizeof buffer, MSG_DONTWAIT, nullptr, nullptr);
    // ENOBUFS: notifications were lost, which means there were some.
    if (got > 0 || (got < 0 && errno == ENOBUFS)) {
      any = true;
    } else if (got == 0 || errno != EINTR) {
      return any;
    }
  }
}

}  // namespace uwarp
