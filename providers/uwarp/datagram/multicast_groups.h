// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The multicast groups of the process: those that queue pairs are attached to, each a UDP socket on
// UWARP_MULTICAST_PORT, and the ways to those that are sent to. Any host of the link can send any
// bytes to a group.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "carrier/udp_socket.h"
#include "datagram/frame_pool.h"
#include "datagram/multicast_way.h"
#include "net/net_device.h"
#include "progress/progress.h"

namespace uwarp {

struct ConnectContext;
class DatagramEndpoint;

/// A group that is joined through one device, and the queue pairs that take what is sent to it.
class MulticastGroup final : public Source {
 public:
  /// Errors: ENODEV, EADDRINUSE (the port is taken), ENOBUFS (the kernel's limit), EMFILE.
  static Result<std::shared_ptr<MulticastGroup>> join(ConnectContext& context,
                                                      const NetDevice& device,
                                                      const IpAddress& group);
  ~MulticastGroup() override;

  /// False: it is attached already.
  bool attach(std::shared_ptr<DatagramEndpoint> endpoint);
  /// False: it is not attached.
  bool detach(const DatagramEndpoint& endpoint);
  bool has(const DatagramEndpoint& endpoint) const;
  size_t attached() const;

  bool ready(uint32_t events) override;

 private:
  MulticastGroup(ConnectContext& context, UdpSocket socket, const IpAddress& group)
      : context_(context), group_(group), socket_(std::move(socket)) {}
  void received(std::span<const std::byte> bytes, const UdpPath& path);

  ConnectContext& context_;
  const IpAddress group_;
  /// One thread at a time reads, so that datagrams stay in order.
  mutable std::mutex mutex_;
  UdpSocket socket_;
  Progress::Ticket ticket_ = 0;
  std::vector<std::shared_ptr<DatagramEndpoint>> endpoints_;
};

/// Any thread.
class MulticastGroups {
 public:
  /// As many groups may be joined, and as many queue pairs be attached to one.
  static constexpr size_t kMostGroups = 1024;
  static constexpr size_t kMostAttached = 256;

  MulticastGroups(ConnectContext& context, FramePool& frames)
      : context_(context), frames_(frames) {}

  /// 0 also if it is attached already. ENOMEM: beyond the limits; those of MulticastGroup::join().
  int attach(const std::shared_ptr<DatagramEndpoint>& endpoint, const IpAddress& group);
  /// EINVAL: it is not attached.
  int detach(const DatagramEndpoint& endpoint, const IpAddress& group);
  bool has(const DatagramEndpoint& endpoint) const;
  void leave_all(const DatagramEndpoint& endpoint);

  /// The way from `device` to a group. Errors: see MulticastWay::open().
  Result<std::shared_ptr<MulticastWay>> way_to(const NetDevice& device,
                                               const MulticastWay::Key& key);
  /// 0, or an errno: the device cannot join this group, or send to it.
  int check(const NetDevice& device, const MulticastWay::Key& key);

 private:
  using GroupKey = std::pair<int, IpAddress>;  // interface, group
  static GroupKey key_of(const DatagramEndpoint& endpoint, const IpAddress& group);

  ConnectContext& context_;
  FramePool& frames_;
  mutable std::mutex mutex_;
  std::map<GroupKey, std::shared_ptr<MulticastGroup>> groups_;
  std::map<MulticastWay::Key, std::weak_ptr<MulticastWay>> ways_;
};

}  // namespace uwarp
