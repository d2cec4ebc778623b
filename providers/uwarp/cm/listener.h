// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A bound TCP port and what comes in on it: accepts, reads MPA Requests (bounded in number and
// time), and hands complete ones up. RFC 5044 7.1, RFC 6581.
#pragma once

#include <sys/socket.h>

#include <memory>

#include "base/result.h"
#include "cm/connection.h"
#include "cm/connection_events.h"
#include "io/tcp_socket.h"

namespace uwarp {

class Engine;

struct BindOptions {
  bool reuse_address = false;
  bool v6_only = false;
  int tos = -1;  // -1: system default
};

/// Receives complete MPA Requests of one listener. Called from whichever thread progresses.
class ListenerOwner {
 public:
  virtual ~ListenerOwner() = default;
  /// `request` waits for accept() or reject(); dropping it rejects. Its request_parameters() hold
  /// the depths already swapped for direct use in accept (initiator_depth = peer's IRD,
  /// responder_resources = peer's ORD). Return false to refuse for lack of room (backlog).
  virtual bool connection_requested(std::shared_ptr<Connection> request) = 0;
};

/// Binds without listening: reserves the port (port 0: the kernel picks one, see local_address()).
/// SO_REUSEADDR is always set (host-abi 4.6 of the design notes: perftest listens again on a live port).
Result<TcpSocket> bind_port(const sockaddr_storage& address, const BindOptions& options);

class Listener {
 public:
  /// Starts listening on a bound socket. `backlog` <= 0 means the maximum.
  static Result<std::shared_ptr<Listener>> start(Engine& engine, TcpSocket bound, int backlog,
                                                 std::weak_ptr<ListenerOwner> owner);
  virtual ~Listener() = default;
  /// Stops; half-open connections are dropped. Idempotent. No owner call starts after it returned.
  virtual void close() = 0;
  virtual sockaddr_storage local_address() const = 0;
};

}  // namespace uwarp
