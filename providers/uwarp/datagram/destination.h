// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Where the datagrams of an address handle go: the addresses of both hosts, and traffic class and
// hop limit. Each queue pair number names the process on that host.
#pragma once

#include <cstdint>
#include <memory>

#include "base/spinlock.h"
#include "net/ip_address.h"
#include "qp/datagram_queue_pair.h"

namespace uwarp {

class Trunk;

/// Made and destroyed with its address handle; any thread.
class Destination {
 public:
  Destination(const IpAddress& own, const IpAddress& peer) : own(own), peer(peer) {}

  const IpAddress own;
  const IpAddress peer;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 0;
  std::shared_ptr<DatagramWay> group;  ///< of a multicast group, the one way there is

  /// What was remembered for this port of ours and `port`; null if it was another pair.
  std::shared_ptr<Trunk> recent(uint16_t own_port, uint16_t port) {
    const std::lock_guard guard(lock_);
    return port == port_ && own_port == own_port_ ? trunk_ : nullptr;
  }
  void remember(uint16_t own_port, uint16_t port, std::shared_ptr<Trunk> trunk) {
    const std::lock_guard guard(lock_);
    own_port_ = own_port;
    port_ = port;
    trunk_.swap(trunk);
  }

 private:
  SpinLock lock_;
  uint16_t own_port_ = 0;  // of the queue pair that has sent
  uint16_t port_ = 0;      // of a process; 0: none yet
  std::shared_ptr<Trunk> trunk_;
};

}  // namespace uwarp
