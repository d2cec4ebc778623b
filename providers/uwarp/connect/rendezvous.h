// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Connecting a queue pair without rdma_cm: both sides know address and number of the other, move
// through RTR and RTS at any time relative to each other, and end up with one connection.
// Answers from RTR on, dials from RTS on; of two calls that cross, the one of the lower (GID,
// number) is kept. Wire: docs/wire.md, "Rendezvous".
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/ids.h"
#include "base/rate_limit.h"
#include "connect/connection.h"
#include "connect/connection_events.h"
#include "connect/held_call.h"
#include "connect/rendezvous_message.h"
#include "net/ip_address.h"
#include "progress/source.h"
#include "qp/qp_config.h"

namespace uwarp {

class Endpoint;
struct ConnectContext;

/// What the application has said about both sides, by its modify_qp calls.
struct RendezvousTerms {
  IpAddress own_address;
  IpAddress peer_address;
  Qpn own;
  Qpn peer;
  Transport transport = Transport::kRc;
  uint32_t sq_psn = 0;
  uint32_t rq_psn = 0;
  uint16_t ord = 0;  // from RTS on
  uint16_t ird = 0;
  uint64_t timeout_ns = 0;  // how long a request waits for the connection; 0: for ever
  int traffic_class = -1;
};

/// All calls from any thread. Locks: its mutex, then the connection's.
class Rendezvous final : public Source, public ConnectionOwner {
 public:
  /// An attacker at the peer's address has to guess the PSN. After this many calls with a wrong
  /// number or PSN, one call per interval from there is looked at: all 2^24 values would take 48
  /// days. Only wrong calls count, so that an honest peer waits no longer than for a reply, unless
  /// another process at its address guesses.
  static constexpr uint32_t kWrongCalls = 8;
  static constexpr uint64_t kWrongCallNs = 250'000'000;

  Rendezvous(ConnectContext& context, std::weak_ptr<Endpoint> endpoint,
             const RendezvousTerms& terms);

  /// RTS: complete terms are known; dials unless a call has been answered already.
  void dial(const RendezvousTerms& terms);
  /// A peer's call for this queue pair.
  void answer(std::shared_ptr<Connection> request, const RendezvousCall& call);
  /// A request waits for the connection: the queue pair's timeout starts to run.
  void work_waiting();
  /// Ends dialling and answering. A connection that is established is left alone.
  void stop();

  // Source.
  bool ready(uint32_t events) override;
  void deadline_passed() override;
  // ConnectionOwner.
  void connection_established(const std::shared_ptr<Connection>& connection,
                              const sockaddr_storage& local,
                              const ConnectParameters& peer) override;
  void connection_rejected(const std::shared_ptr<Connection>& connection, int status,
                           std::span<const std::byte> private_data) override;
  void connection_failed(const std::shared_ptr<Connection>& connection, int status) override;
  void connection_ended(const std::shared_ptr<Connection>& connection) override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  bool must_wait_locked() const;
  RendezvousVerdict judge_locked(const RendezvousCall& call) const;
  bool is_own_call_kept() const;
  /// False: too many are held, or there is no memory for it.
  bool hold_locked(HeldCall call);
  void take_call(Lock& lock, const HeldCall& held);
  void take_held_calls(Lock& lock);
  void start_dial(Lock& lock);
  Result<std::shared_ptr<Connection>> place_call(const RendezvousTerms& terms,
                                                 const std::shared_ptr<Endpoint>& endpoint);
  void dial_over_locked(const std::shared_ptr<Connection>& connection);
  void retry_locked();
  void work_waiting_locked();
  uint64_t patience_ns_locked() const;
  void give_up(Lock& lock);
  void update_deadline_locked();
  std::weak_ptr<ConnectionOwner> as_owner() {
    return std::static_pointer_cast<Rendezvous>(shared_from_this());
  }

  ConnectContext& context_;
  const std::weak_ptr<Endpoint> endpoint_;

  std::mutex mutex_;
  RendezvousTerms terms_;
  bool dialing_ = false;  // RTS was reached
  bool stopped_ = false;
  bool starting_ = false;                // place_call() is under way without the mutex
  const Connection* settled_ = nullptr;  // the call being placed is over before it was known here
  std::shared_ptr<Connection> dial_;     // our call
  std::shared_ptr<Connection> kept_;     // the connection: accepted, or our call answered
  bool connected_ = false;               // ... and established
  RateLimit wrong_calls_{kWrongCalls, kWrongCallNs};
  std::vector<HeldCall> held_;  // came while starting_, or after too many wrong ones
  uint64_t retry_ns_ = 0;       // when to dial again; 0: not
  uint64_t give_up_ns_ = 0;     // when waiting requests fail, or are lost; 0: none waits
  bool gave_up_ = false;        // requests have been lost: later ones do not wait
  uint64_t pause_ns_ = 0;       // length of the last pause between two calls
};

}  // namespace uwarp
