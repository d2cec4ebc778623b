// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The published device table and the change notifications of the kernel.
#include "net/net_device.h"

#include <linux/rtnetlink.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "base/inherited.h"
#include "base/log.h"
#include "base/process_own.h"
#include "base/settings.h"
#include "net/net_records.h"
#include "net/netlink_socket.h"
#include "os/engine_fds.h"

namespace uwarp {
namespace {

using DevicePtr = std::shared_ptr<const NetDevice>;

template <typename Predicate>
DevicePtr find(const std::vector<DevicePtr>& devices, Predicate matches) {
  const auto it = std::find_if(devices.begin(), devices.end(),
                               [&](const DevicePtr& device) { return matches(*device); });
  return it == devices.end() ? nullptr : *it;
}

bool same_device(const NetDevice& a, const NetDevice& b) {
  return a.name == b.name && a.ifindex == b.ifindex && a.mac == b.mac &&
         a.mtu_bytes == b.mtu_bytes && a.running == b.running &&
         a.has_neighbours == b.has_neighbours && a.guid_be == b.guid_be && a.gids == b.gids;
}

bool same_tables(const std::vector<DevicePtr>& a, const std::vector<DevicePtr>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const DevicePtr& x, const DevicePtr& y) { return same_device(*x, *y); });
}

/// The one table of the process.
struct Published {
  std::mutex lock;  ///< guards all below, and the numbers; a leaf, nothing else is locked under it
  std::shared_ptr<const NetDeviceTable> table;
  int changes_fd = -2;  ///< -2: not opened yet
};

constinit ProcessOwn<Published> published;
/// A child's application has lists of devices from before the fork.
constinit Inherited<UverbsNumbers> numbers;

/// False when the kernel cannot be asked: what was known stays, and nothing is made of nothing.
bool refresh_locked(Published& state) {
  const auto records = read_net_records();
  if (!records) return false;
  UverbsNumbers known = numbers.copy();
  const size_t known_before = known.size();
  auto devices = build_net_devices(*records, settings().netdevs, known);
  if (known.size() != known_before) numbers.replace(std::move(known));
  std::vector<int> netdevs;
  for (const LinkRecord& link : records->links) netdevs.push_back(link.ifindex);
  if (state.table && same_tables(state.table->devices(), devices) &&
      state.table->netdevs() == netdevs)
    return true;
  if (devices.empty()) log_event("no usable network device");
  state.table = std::make_shared<const NetDeviceTable>(std::move(devices), std::move(netdevs));
  return true;
}

/// Not published: the next look may find more.
std::shared_ptr<const NetDeviceTable> known_locked(const Published& state) {
  if (state.table) return state.table;
  return std::make_shared<const NetDeviceTable>(std::vector<DevicePtr>());
}

int open_changes_fd() {
  const int fd = open_netlink_socket(RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR);
  return fd < 0 ? fd : adopt_engine_fd(fd);
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
  const std::lock_guard guard(state.lock);
  if (!state.table) refresh_locked(state);
  return known_locked(state);
}

std::shared_ptr<const NetDeviceTable> refresh_net_devices() {
  Published& state = published.get();
  const std::lock_guard guard(state.lock);
  refresh_locked(state);
  return known_locked(state);
}

std::shared_ptr<const NetDeviceTable> try_refresh_net_devices() {
  Published& state = published.get();
  const std::lock_guard guard(state.lock);
  return refresh_locked(state) ? state.table : nullptr;
}

int net_changes_fd() {
  Published& state = published.get();
  const std::lock_guard guard(state.lock);
  if (state.changes_fd == -2) state.changes_fd = open_changes_fd();
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
