// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One TCP port of this process that up to 256 queue pairs share: reserved on every address of a
// device when the first number is given out, listening from the first INIT on.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "base/result.h"
#include "carrier/tcp_socket.h"
#include "connect/listener.h"
#include "net/net_device.h"

namespace uwarp {

struct ConnectContext;

constexpr uint16_t port_of_number(Qpn number) { return static_cast<uint16_t>(number.value >> 8); }

class RendezvousPort final : public ListenerOwner,
                             public std::enable_shared_from_this<RendezvousPort> {
 public:
  /// Binds a port on all addresses of `device`. Errors: EADDRINUSE, EADDRNOTAVAIL, EMFILE...
  static Result<std::shared_ptr<RendezvousPort>> reserve(ConnectContext& context,
                                                         const NetDevice& device);

  int ifindex() const { return ifindex_; }
  uint16_t port() const { return port_; }

  /// A number that is not in use; none if all 256 are.
  std::optional<Qpn> take_number();
  /// True if it was the last one in use.
  bool give_back(Qpn number);
  /// No number is in use, and it has never listened.
  bool spare();

  /// Starts listening, if it does not yet. Errors: EADDRINUSE, ENOMEM...
  int listen();

  bool connection_requested(std::shared_ptr<Connection> request) override;

 private:
  RendezvousPort(ConnectContext& context, int ifindex, uint16_t port,
                 std::vector<TcpSocket> sockets)
      : context_(context), ifindex_(ifindex), port_(port), bound_(std::move(sockets)) {}

  ConnectContext& context_;
  const int ifindex_;
  const uint16_t port_;
  std::mutex mutex_;
  std::vector<TcpSocket> bound_;  // until they listen
  std::vector<std::shared_ptr<Listener>> listeners_;
  std::bitset<kQpsPerPort> used_;
  // Numbers are given out in turn, so that one is not used again soon.
  uint32_t next_index_ = 0;
};

}  // namespace uwarp
