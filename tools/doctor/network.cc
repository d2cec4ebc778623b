// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Network devices, TCP ports, congestion control.
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/limits.h"
#include "carrier/tcp_socket.h"
#include "machine.h"
#include "net/net_device.h"

namespace doctor {
namespace {

using uwarp::LinkRecord;
using uwarp::NetDevice;
using Devices = std::vector<std::shared_ptr<const NetDevice>>;

/// Closed connections keep their ports for a minute: with fewer ports these run out.
constexpr uint32_t kFewPorts = 1024;

/// Empty when the kernel does not answer.
uwarp::NetRecords read_records() { return uwarp::read_net_records().value_or(uwarp::NetRecords()); }

std::string join(const std::vector<uwarp::IpAddress>& addresses) {
  std::string text;
  for (const auto& address : addresses) text += (text.empty() ? "" : ", ") + address.to_string();
  return text;
}

void report_device(Report& report, const NetDevice& device) {
  const std::string text = device.name + " becomes " + device.verbs_name + ": " +
                           join(device.gids) + "; MTU " + std::to_string(device.mtu_bytes);
  if (device.running) return report.ok("netdev", text);
  report.warning("netdev", text + "; the link is down",
                 "ip link set " + device.name + " up, or check its cable");
}

void report_other(Report& report, const LinkRecord& link, const uwarp::Settings& settings) {
  if (!uwarp::selected_netdev(settings.netdevs, link.name)) {
    report.ok("netdev", link.name + " is left out by UWARP_NETDEVS");
  } else {
    report.ok("netdev", link.name + " has no address, so it becomes no RDMA device");
  }
}

void report_unknown_names(Report& report, const uwarp::NetRecords& records,
                          const uwarp::Settings& settings) {
  for (const std::string& name : settings.netdevs) {
    const bool known = std::any_of(
        records.links.begin(), records.links.end(),
        [&](const LinkRecord& link) { return uwarp::selected_netdev({name}, link.name); });
    if (known) continue;
    report.warning("netdev", "UWARP_NETDEVS names " + name + ", which does not exist",
                   "ip link shows what exists");
  }
}

/// Whether a TCP port can be bound on every address; else the errno.
int try_port(const std::vector<uwarp::IpAddress>& addresses, uint16_t port) {
  for (const uwarp::IpAddress& address : addresses) {
    sockaddr_storage where{};
    const socklen_t length = address.to_sockaddr(where, port);
    const int fd = socket(where.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return errno;
    const int on = 1;
    if (where.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    const int error = bind(fd, reinterpret_cast<sockaddr*>(&where), length) == 0 ? 0 : errno;
    close(fd);
    if (error != 0 && error != EADDRNOTAVAIL) return error;
  }
  return 0;
}

void check_port_range(Report& report, uwarp::PortRange range) {
  uwarp::UverbsNumbers numbers;
  std::vector<uwarp::IpAddress> addresses;
  for (const auto& device : uwarp::build_net_devices(read_records(), {}, numbers))
    addresses.insert(addresses.end(), device->gids.begin(), device->gids.end());
  const uint32_t all = static_cast<uint32_t>(range.high - range.low) + 1;
  uint32_t free = 0, forbidden = 0;
  for (uint32_t port = range.low; port <= range.high; ++port) {
    const int error = try_port(addresses, static_cast<uint16_t>(port));
    free += error == 0;
    forbidden += error == EACCES;
  }
  const std::string name = "UWARP_PORT_RANGE " + std::to_string(range.low) + "-" +
                           std::to_string(range.high) + ": " + std::to_string(free) + " of " +
                           std::to_string(all) + " ports are free";
  if (free != 0) {
    report.ok("ports", name + ", room for " + std::to_string(free * uwarp::kQpsPerPort) +
                           " queue pairs without rdma_cm");
  } else if (forbidden != 0) {
    report.problem("ports", name + ", and " + std::to_string(forbidden) + " need privileges",
                   "Choose ports from net.ipv4.ip_unprivileged_port_start on");
  } else {
    report.problem("ports", name, "Choose a range that no other program uses");
  }
}

void check_system_range(Report& report) {
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  uint32_t low = 0, high = 0;
  if (!(file >> low >> high) || high < low) return;
  const std::string text = "the system chooses ports " + std::to_string(low) + "-" +
                           std::to_string(high) + " for outgoing connections";
  if (high - low + 1 >= kFewPorts) return report.ok("ports", text);
  report.warning("ports", text + ": these are few",
                 "Widen net.ipv4.ip_local_port_range if connections fail with EADDRNOTAVAIL");
}

std::string current_congestion_control(int fd) {
  char name[64] = {};
  socklen_t length = sizeof name - 1;
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0) return "unknown";
  return name;
}

}  // namespace

void check_devices(Report& report, const uwarp::Settings& settings) {
  const uwarp::NetRecords records = read_records();
  uwarp::UverbsNumbers numbers;
  const Devices devices = uwarp::build_net_devices(records, settings.netdevs, numbers);
  for (const auto& device : devices) report_device(report, *device);
  for (const LinkRecord& link : records.links) {
    const auto same = [&](const auto& device) { return device->ifindex == link.ifindex; };
    if (std::none_of(devices.begin(), devices.end(), same)) report_other(report, link, settings);
  }
  report_unknown_names(report, records, settings);
  if (records.links.empty()) {
    report.problem("devices", "the kernel does not list its network devices (netlink)",
                   "Allow sockets of the family AF_NETLINK (systemd: RestrictAddressFamilies)");
  } else if (devices.empty()) {
    report.problem("devices", "no network device can be used",
                   "Give one an address, or bring lo up: ip link set lo up");
  } else if (devices.size() == 1 && devices.front()->loopback) {
    report.warning("devices", "there is only loopback, so programs cannot reach other machines",
                   "To reach other machines, give a network device an address");
  }
}

void check_ports(Report& report, const uwarp::Settings& settings) {
  if (!settings.port_range.empty()) check_port_range(report, settings.port_range);
  check_system_range(report);
}

void check_congestion_control(Report& report, const uwarp::Settings& settings) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    const std::string why = std::strerror(errno);
    report.problem("tcp", "no TCP socket can be made: " + why, "Allow AF_INET and SOCK_STREAM");
    return;
  }
  const std::string system = current_congestion_control(fd);
  const std::string& wanted = settings.congestion;
  const bool taken = wanted.empty() || setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, wanted.data(),
                                                  static_cast<socklen_t>(wanted.size())) == 0;
  close(fd);
  if (taken) {
    const bool near_ones_too = uwarp::is_pacing(system) && !wanted.empty();
    report.ok("tcp", "congestion control " + system + " between machines, " +
                         (wanted.empty() ? system : wanted) + " within this one" +
                         (near_ones_too ? " and to machines nearby" : ""));
  } else {
    report.warning("tcp",
                   "congestion control " + wanted + " (UWARP_CONGESTION) is not available, so " +
                       system + " is used within this machine too",
                   "Choose one of net.ipv4.tcp_available_congestion_control");
  }
}

}  // namespace doctor
