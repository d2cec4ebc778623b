// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One TCP port of this process that up to 256 queue pairs share: reserved on every address of a
// device when the first number is given out, listening from the first INIT on.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"
#include "base/mutex.h"
#include "base/result.h"
#include "carrier/tcp_socket.h"
#include "connect/listener.h"
#include "net/net_device.h"
#include "observe/stat_page.h"
#include "qp/qp_config.h"

namespace uwarp {

// The rendezvous ports of this process, from which queue pairs have their numbers.
class RendezvousPort;
struct ConnectContext;

/// Any thread. Its lock goes before that of a port.
class RendezvousPorts {
 public:
  struct Place {
    std::shared_ptr<RendezvousPort> port;
    Qpn number;
  };
  /// A free number on `device`. Errors: EADDRINUSE (no port in UWARP_PORT_RANGE), EMFILE, ENOMEM.
  Result<Place> reserve(ConnectContext& context, const NetDevice& device);
  void give_back(const Place& place);
  /// The port with this number on the device, while a queue pair has a number on it; else null.
  std::shared_ptr<RendezvousPort> find(int ifindex, uint16_t port);

 private:
  Mutex mutex_;
  std::vector<std::shared_ptr<RendezvousPort>> ports_ GUARDED_BY(mutex_);
};

// The place of a queue pair of any type among those of the process: its number, the port to which
// this number leads peers, and the slot in which uwarp-stat sees it.

/// Move-only. The slot is given back at its end; what it refers to outlives it.
class QpNumberLease {
 public:
  /// Errors: EADDRINUSE (no port), EMFILE, ENOMEM. Throws std::bad_alloc.
  static Result<QpNumberLease> reserve(ConnectContext& context, const NetDevice& device);
  QpNumberLease(QpNumberLease&& other) noexcept;
  ~QpNumberLease();

  Qpn number() const { return port_.number; }
  QueuePairSlot& slot() { return *slot_; }
  /// `config` with the number, the slot and the trace.
  QpConfig complete(QpConfig config) const;
  /// Shows a queue pair of this `config`, without completion queues.
  void show(const QpConfig& config, const NetDevice& device);
  /// The slots of its completion queues in the page of counters. One thread at a time.
  void name_queues(uint32_t send_queue, uint32_t receive_queue);
  /// From now on peers can call. 0 or an errno.
  int become_callable();
  /// Number and port; once. Another thread may be in become_callable().
  void give_back();

 private:
  QpNumberLease(ConnectContext& context, RendezvousPorts::Place port)
      : context_(context), port_(std::move(port)) {}

  ConnectContext& context_;
  RendezvousPorts::Place port_;
  bool has_port_ = true;
  SlotLease<QueuePairSlot> slot_;
};

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
  Mutex mutex_;
  std::vector<TcpSocket> bound_ GUARDED_BY(mutex_);  // until they listen
  std::vector<std::shared_ptr<Listener>> listeners_ GUARDED_BY(mutex_);
  std::bitset<kQpsPerPort> used_ GUARDED_BY(mutex_);
  // Numbers are given out in turn, so that one is not used again soon.
  uint32_t next_index_ GUARDED_BY(mutex_) = 0;
};

}  // namespace uwarp
