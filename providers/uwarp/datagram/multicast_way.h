// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The way to a multicast group: each datagram is one of UDP. All handles of one group share it.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "base/result.h"
#include "base/spinlock.h"
#include "carrier/udp_socket.h"
#include "datagram/frame_pool.h"
#include "net/ip_address.h"
#include "net/net_device.h"
#include "qp/datagram_queue_pair.h"

namespace uwarp {

/// 224.0.0.0/4, ff00::/8.
bool is_multicast(const IpAddress& address);

class MulticastWay final : public DatagramWay {
 public:
  struct Key {
    IpAddress own;  ///< of `device`: what receivers see as the source
    IpAddress group;
    uint8_t hop_limit = 0;
    uint8_t traffic_class = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  /// Errors: ENETUNREACH and the like (no multicast route), EMFILE.
  static Result<std::shared_ptr<MulticastWay>> open(FramePool& frames, const NetDevice& device,
                                                    const Key& key);
  ~MulticastWay() override;

  // DatagramWay. Where the device takes nothing for kMostPatienceMs, what waits is dropped.
  Taken append(const DatagramHeader& header, BufferList& payload) override;
  bool wait_for_room(std::shared_ptr<DatagramWaiter>) override;
  void flush() override;
  void flush_soon() override { flush(); }  // wakes no thread

  MulticastWay(FramePool& frames, UdpSocket socket) : frames_(frames), socket_(std::move(socket)) {}

 private:
  /// Frames that are filled and wait for flush().
  static constexpr size_t kMostFrames = 16;
  static constexpr int kMostPatienceMs = 20;

  bool take_frame_locked();
  /// What is to go out, in order; empty: nothing.
  FrameQueue take_filled();
  bool send(const Frame& frame);
  bool send(std::span<const iovec> datagrams);

  FramePool& frames_;
  std::mutex sending_;  // before `lock_`; keeps the datagrams of a queue pair in order
  UdpSocket socket_;
  SpinLock lock_;
  Frame* filling_ = nullptr;
  FrameQueue ready_;
};

}  // namespace uwarp
