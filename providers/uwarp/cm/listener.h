// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A bound TCP port and what comes in on it: accepts, reads MPA Requests (bounded in number and
// time), and hands complete ones up. RFC 5044 7.1, RFC 6581.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/result.h"
#include "cm/bound_port.h"
#include "cm/connection.h"
#include "cm/connection_events.h"
#include "io/progress.h"
#include "io/tcp_socket.h"
#include "net/ip_address.h"

namespace uwarp {

class Engine;

/// Receives complete MPA Requests of one listener. Called from whichever thread progresses.
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
  /// Connections of one listener whose Request is not complete. More wait in the kernel's backlog:
  /// peers that say nothing hold this many for UWARP_MPA_TIMEOUT_MS at most.
  static constexpr size_t kMaxHalfOpen = 256;
  /// So that one address cannot keep the others out: while all places are taken, who comes gets
  /// the oldest one of the address that has most, if that has been silent for so long.
  static constexpr uint64_t kCrowdingNs = 2'000'000'000;

  /// Starts listening on a bound socket, which is taken if that succeeds. `backlog` <= 0 means the
  /// maximum.
  static Result<std::shared_ptr<Listener>> start(Engine& engine, TcpSocket& bound, int backlog,
                                                 std::weak_ptr<ListenerOwner> owner);
  ~Listener() override;
  /// Stops; half-open connections are dropped. Idempotent. No owner call starts after it returned.
  void close();
  sockaddr_storage local_address() const { return local_; }

  /// For Connection: its Request is complete, or it has ended before.
  void half_open_done(const std::shared_ptr<Connection>& connection, bool complete);

  bool ready(uint32_t events) override;
  void deadline_passed() override;

 private:
  struct HalfOpen {
    IpAddress from;
    uint64_t since_ns;
  };

  Listener(Engine& engine, const TcpSocket& bound, std::weak_ptr<ListenerOwner> owner);
  std::weak_ptr<Listener> weak_listener() {
    return std::static_pointer_cast<Listener>(shared_from_this());
  }
  /// One accept(). False: nothing there, or no room for it now.
  bool accept_one();
  /// Whether another one may be well.
  bool accept_failed_locked(int error);
  void accepted_locked(TcpSocket socket, const sockaddr_storage& peer);
  /// The one that has to make room for others; null if there is none.
  std::shared_ptr<Connection> crowding_locked() const;
  void try_again_later_locked();

  Engine& engine_;
  sockaddr_storage local_{};
  std::mutex mutex_;
  TcpSocket socket_;  // empty after close()
  Progress::Ticket ticket_ = 0;
  std::weak_ptr<ListenerOwner> owner_;
  std::unordered_map<std::shared_ptr<Connection>, HalfOpen> half_open_;
  bool starved_ = false;  // a connection may wait in the backlog for room in half_open_
};

}  // namespace uwarp
