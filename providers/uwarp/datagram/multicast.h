// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The multicast groups of the process: those that queue pairs are attached to, each a UDP socket on
// UWARP_MULTICAST_PORT, and the ways to those that are sent to. Any host of the link can send any
// bytes to a group.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/spinlock.h"
#include "carrier/udp_socket.h"
#include "datagram/frame_pool.h"
#include "net/ip_address.h"
#include "net/net_device.h"
#include "progress/progress.h"
#include "qp/datagram_queue_pair.h"

namespace uwarp {

// The path to a multicast group: each datagram is one of UDP. All handles of one group share it.

/// 224.0.0.0/4, ff00::/8.
bool is_multicast(const IpAddress& address);

class MulticastPath final : public DatagramPath {
 public:
  struct Key {
    IpAddress own;  ///< of `device`: what receivers see as the source
    IpAddress group;
    uint8_t hop_limit = 0;
    uint8_t traffic_class = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  /// Errors: ENETUNREACH and the like (no multicast route), EMFILE.
  static Result<std::shared_ptr<MulticastPath>> open(FramePool& frames, const NetDevice& device,
                                                     const Key& key);
  ~MulticastPath() override;

  // DatagramPath. Where the device takes nothing for kMostPatienceMs, what waits is dropped.
  Taken append(const DatagramHeader& header, BufferList& payload) override;
  bool wait_for_space(std::shared_ptr<DatagramWaiter>) override;
  void flush() override;
  void flush_soon() override { flush(); }  // wakes no thread

  MulticastPath(FramePool& frames, UdpSocket socket)
      : frames_(frames), socket_(std::move(socket)) {}

 private:
  /// Frames that are filled and wait for flush().
  static constexpr size_t kMostFrames = 16;
  static constexpr int kMostPatienceMs = 20;

  /// What is to go out, in order; empty: nothing.
  FrameQueue take_filled();
  bool send(const Frame& frame) REQUIRES(sending_);
  bool send(std::span<const iovec> datagrams) REQUIRES(sending_);

  FramePool& frames_;
  Mutex sending_;  // before `lock_`; keeps the datagrams of a queue pair in order
  UdpSocket socket_ GUARDED_BY(sending_);
  SpinLock lock_;
  Frame* filling_ GUARDED_BY(lock_) = nullptr;
  FrameQueue ready_ GUARDED_BY(lock_);
};

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
  void received(std::span<const std::byte> bytes, const UdpPath& path) REQUIRES(mutex_);

  ConnectContext& context_;
  const IpAddress group_;
  /// One thread at a time reads, so that datagrams stay in order.
  mutable Mutex mutex_;
  UdpSocket socket_ GUARDED_BY(mutex_);
  Progress::Registration registration_ GUARDED_BY(mutex_) = 0;
  std::vector<std::shared_ptr<DatagramEndpoint>> endpoints_ GUARDED_BY(mutex_);
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

  /// The path from `device` to a group. Errors: see MulticastPath::open().
  Result<std::shared_ptr<MulticastPath>> path_to(const NetDevice& device,
                                                 const MulticastPath::Key& key);
  /// 0, or an errno: the device cannot join this group, or send to it.
  int check(const NetDevice& device, const MulticastPath::Key& key);

 private:
  using GroupKey = std::pair<int, IpAddress>;  // interface, group

  ConnectContext& context_;
  FramePool& frames_;
  mutable Mutex mutex_;
  std::map<GroupKey, std::shared_ptr<MulticastGroup>> groups_ GUARDED_BY(mutex_);
  std::map<MulticastPath::Key, std::weak_ptr<MulticastPath>> paths_ GUARDED_BY(mutex_);
};

}  // namespace uwarp
