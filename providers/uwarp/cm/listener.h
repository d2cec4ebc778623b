// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A bound TCP port and what comes in on it: accepts, reads MPA Requests (bounded in number and
// time), and hands complete ones up. RFC 5044 7.1, RFC 6581.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "base/result.h"
#include "cm/connection.h"
#include "cm/connection_events.h"
#include "io/progress.h"
#include "io/tcp_socket.h"

namespace uwarp {

class Engine;

struct BindOptions {
  bool reuse_address = false;  // SO_REUSEADDR is set in any case, see bind_port()
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
/// SO_REUSEADDR is always set: applications listen again on the port of a live connection.
/// Errors: EADDRINUSE, EADDRNOTAVAIL, EACCES, EAFNOSUPPORT, EMFILE.
Result<TcpSocket> bind_port(const sockaddr_storage& address, const BindOptions& options);

class Listener final : public Source {
 public:
  /// Connections of one listener whose Request is not complete. More wait in the kernel's backlog:
  /// peers that say nothing hold this many for UWARP_MPA_TIMEOUT_MS at most.
  static constexpr size_t kMaxHalfOpen = 256;

  /// Starts listening on a bound socket. `backlog` <= 0 means the maximum.
  static Result<std::shared_ptr<Listener>> start(Engine& engine, TcpSocket bound, int backlog,
                                                 std::weak_ptr<ListenerOwner> owner);
  ~Listener() override;
  /// Stops; half-open connections are dropped. Idempotent. No owner call starts after it returned.
  void close();
  sockaddr_storage local_address() const { return local_; }

  /// For Connection: its Request is complete, or it has ended before.
  void half_open_done(std::shared_ptr<Connection> connection, bool complete);

  bool ready(uint32_t events) override;
  void deadline_passed() override;

 private:
  Listener(Engine& engine, TcpSocket bound, std::weak_ptr<ListenerOwner> owner);
  std::weak_ptr<Listener> weak_listener() {
    return std::static_pointer_cast<Listener>(shared_from_this());
  }
  /// One accept(). False: nothing there, or no room for it now.
  bool accept_one();

  Engine& engine_;
  sockaddr_storage local_{};
  std::mutex mutex_;
  TcpSocket socket_;  // empty after close()
  Progress::Ticket ticket_ = 0;
  std::weak_ptr<ListenerOwner> owner_;
  std::unordered_set<std::shared_ptr<Connection>> half_open_;
  bool starved_ = false;  // a connection may wait in the backlog for room in half_open_
};

}  // namespace uwarp
