// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A bound TCP port and what comes in on it: accepts, reads MPA Requests (bounded in number and
// time), and hands complete ones up. RFC 5044 7.1, RFC 6581.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <memory>
#include <mutex>

#include "base/result.h"
#include "carrier/tcp_socket.h"
#include "connect/bound_port.h"
#include "connect/connection.h"
#include "connect/connection_events.h"
#include "connect/network_places.h"
#include "net/ip_address.h"
#include "progress/progress.h"

namespace uwarp {

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

class Listener final : public Source {
 public:
  /// Connections of one listener whose Request is not complete, each for UWARP_MPA_TIMEOUT_MS at
  /// most. A quarter of the 1,024 descriptors that a process usually has. One more takes the place
  /// of another, see NetworkPlaces.
  static constexpr size_t kMaxHalfOpen = 256;

  /// Starts listening on a bound socket, which is taken if that succeeds.
  static Result<std::shared_ptr<Listener>> start(ConnectContext& context, TcpSocket& bound,
                                                 std::weak_ptr<ListenerOwner> owner);
  ~Listener() override;
  /// Stops; half-open connections are dropped. Idempotent. No owner call starts after it returned.
  void close();
  sockaddr_storage local_address() const { return local_; }

  /// For Connection: its Request is complete, or it has ended before.
  void half_open_done(const std::shared_ptr<Connection>& connection, bool complete);

  bool ready(uint32_t events) override;
  void deadline_passed() override;
  /// Connections that wait in the socket make no new edge.
  void out_of_memory() override { deadline_passed(); }

 private:
  Listener(ConnectContext& context, const TcpSocket& bound, std::weak_ptr<ListenerOwner> owner);
  std::weak_ptr<Listener> weak_listener() {
    return std::static_pointer_cast<Listener>(shared_from_this());
  }
  /// One accept(). False: no connection waits, or the process lacks memory or descriptors.
  bool accept_one();
  /// Whether the next accept() may succeed.
  bool accept_failed_locked(int error);
  /// The connection that has lost its place to this one, if any.
  std::shared_ptr<Connection> accepted_locked(TcpSocket socket, const sockaddr_storage& peer);
  void try_again_later_locked();

  ConnectContext& context_;
  sockaddr_storage local_{};
  std::mutex mutex_;
  TcpSocket socket_;  // empty after close()
  Progress::Ticket ticket_ = 0;
  std::weak_ptr<ListenerOwner> owner_;
  NetworkPlaces<std::shared_ptr<Connection>> half_open_;
};

}  // namespace uwarp
