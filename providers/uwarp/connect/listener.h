// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A bound TCP port and what comes in on it: accepts, reads MPA Requests (bounded in number and
// time; a slow one delays no other), and hands complete ones up. RFC 5044-7.1.2-f.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "base/random.h"
#include "base/result.h"
#include "base/settings.h"
#include "carrier/tcp_socket.h"
#include "connect/connection.h"
#include "connect/connection_events.h"
#include "connect/network_places.h"
#include "net/ip_address.h"
#include "progress/progress.h"

namespace uwarp {

// A port that an rdma_cm id has bound and does not use yet. The bound socket is its entry in the
// host's table of ports, as the kernel's rdma_cm keeps one for all processes of a network
// namespace.
struct BindOptions {
  bool shared = false;          ///< others that are shared too may bind the same port
  std::optional<bool> v6_only;  ///< nullopt: net.ipv6.bindv6only
  bool datagram = false;        ///< a UDP port
  uint16_t port_space = 0;      ///< rdma_ucm_port_space, which requests for a UDP port name
  int tos = -1;                 ///< -1: system default
  /// The port is for one connection. Port 0 then never leads to one that old connections have: one
  /// of them may go to the same peer, which only TCP finds out.
  bool to_connect = false;
};

/// net.ipv4.ip_local_port_range, as it was when the process first asked. Empty if some ports of the
/// system are reserved, or it is not known.
PortRange any_ports();

inline uint16_t drawn_port(PortRange range) {
  return static_cast<uint16_t>(range.low + random_word() % (range.high - range.low + 1u));
}

/// Calls `bind` for each port, from one drawn at random on, until one is not in use and not denied.
/// Its errno.
template <typename Bind>
int each_port(PortRange range, Bind bind) {
  const uint32_t count = static_cast<uint32_t>(range.high - range.low) + 1;
  const uint32_t start = drawn_port(range) - range.low;
  int error = EADDRINUSE;
  for (uint32_t i = 0; i < count; ++i) {
    error = bind(static_cast<uint16_t>(range.low + (start + i) % count));
    if (error != EADDRINUSE && error != EACCES) break;
  }
  return error;
}

/// Binds without listening (port 0: any of ip_local_port_range, see local_address()). Until
/// use_port() no other bind_port() of this host takes the same address and port, nor a wildcard and
/// that port, unless both are shared. Connections that an earlier user of the port has left do not
/// count. Errors: EADDRINUSE, EADDRNOTAVAIL (also if port 0 finds none), EACCES, EAFNOSUPPORT,
/// EMFILE.
Result<TcpSocket> bind_port(const sockaddr_storage& address, const BindOptions& options);

/// True if a UDP socket of the application's own, in this process, has the port. The rdma_cm of a
/// kernel has ports of its own, and rsockets bind an id of datagrams to the port that their UDP
/// socket has.
bool application_has_udp_port(uint16_t port);

/// From now on other sockets that are shared too may bind the port.
void share_port(TcpSocket& bound);

/// To be called before the socket listens or connects, so that its connections do not keep a later
/// socket from binding the port.
void use_port(TcpSocket& bound);

struct ConnectContext;

/// Receives complete MPA Requests of one listener. Called by the thread that progresses.
class ListenerOwner {
 public:
  virtual ~ListenerOwner() = default;
  /// `request` waits for accept() or reject(); dropping it rejects. Its request_parameters() hold
  /// the depths already swapped for direct use in accept (initiator_depth = peer's IRD,
  /// responder_resources = peer's ORD). Return false to refuse for lack of room (backlog).
  virtual bool connection_requested(std::shared_ptr<Connection> request) = 0;
};

class Listener final : public Source, public CmListener {
 public:
  /// Connections of one listener whose Request is not complete, each for UWARP_MPA_TIMEOUT_MS at
  /// most. A quarter of the 1,024 descriptors that a process usually has. One more takes the place
  /// of another, see NetworkPlaces.
  static constexpr size_t kMaxHalfOpen = 256;

  /// Starts listening on a bound socket, which is taken if that succeeds.
  static Result<std::shared_ptr<Listener>> start(ConnectContext& context, TcpSocket& bound,
                                                 std::weak_ptr<ListenerOwner> owner);
  ~Listener() override;
  /// Half-open connections are dropped.
  void close() override;
  sockaddr_storage local_address() const { return local_; }

  /// For Connection: its Request is complete, or it has ended before.
  void half_open_done(const std::shared_ptr<Connection>& connection, bool complete);

  bool ready(uint32_t events) override;
  void deadline_passed() override;
  /// Connections that wait in the socket make no new edge.
  void out_of_memory() override { deadline_passed(); }

 private:
  Listener(ConnectContext& context, const TcpSocket& bound, std::weak_ptr<ListenerOwner> owner);
  /// One accept(). False: no connection waits, or the process lacks memory or descriptors.
  bool accept_one();
  /// Whether the next accept() may succeed.
  bool accept_failed_locked(int error) REQUIRES(mutex_);
  /// The connection that has lost its place to this one, if any.
  std::shared_ptr<Connection> accepted_locked(TcpSocket socket, const sockaddr_storage& peer)
      REQUIRES(mutex_);

  ConnectContext& context_;
  sockaddr_storage local_{};
  Mutex mutex_;
  TcpSocket socket_ GUARDED_BY(mutex_);  // empty after close()
  Progress::Registration registration_ GUARDED_BY(mutex_) = 0;
  std::weak_ptr<ListenerOwner> owner_ GUARDED_BY(mutex_);
  NetworkPlaces<std::shared_ptr<Connection>> half_open_ GUARDED_BY(mutex_);
};

}  // namespace uwarp
