// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Connecting a queue pair without rdma_cm: both sides know address and number of the other, move
// through RTR and RTS at any time relative to each other, and end up with one connection.
// Answers from RTR on, dials from RTS on; of two calls that cross, the one of the lower (GID,
// number) is kept. Wire: docs/wire.md, "Rendezvous".
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/mutex.h"
#include "base/rate_limit.h"
#include "connect/connection.h"
#include "connect/connection_events.h"
#include "net/ip_address.h"
#include "progress/source.h"
#include "qp/qp_config.h"

namespace uwarp {

// What two uwarps say to each other in the MPA private data of a connection made without rdma_cm.
// Layout: docs/wire.md, "Rendezvous". Decode and encode only.

/// Version of the format. A receiver refuses others with kUnknownVersion.
inline constexpr uint8_t kRendezvousVersion = 1;

/// The dialer's call, in the Request.
struct RendezvousCall {
  static constexpr size_t kWireSize = 24;

  Qpn source;
  Qpn target;
  Transport transport = Transport::kRc;
  uint32_t psn = 0;           // the dialer's sq_psn: the answerer must have it as rq_psn
  uint32_t capabilities = 0;  // unknown bits are ignored
  /// The caller wants no queue pair but a trunk to the process of `target`; `psn` is the version of
  /// what goes over it. More follows behind the call: datagram/trunk_connection.h.
  static constexpr uint32_t kTrunk = 1;
  /// With kTrunk: the answerer has called before, and is called back at the port that it named.
  static constexpr uint32_t kCallBack = 2;

  std::vector<std::byte> encode() const;
  /// Nothing if it is no call at all, or one of a version that is not known.
  static std::optional<RendezvousCall> decode(std::span<const std::byte> bytes);
};

/// Why a call was answered, or not.
enum class RendezvousVerdict : uint8_t {
  kAccepted = 0,
  kUnknownVersion = 1,
  kNoSuchQp = 2,     // also: a queue pair that rdma_cm uses, or one in ERR
  kNotExpected = 3,  // address, number, transport or PSN is not what the target was told to expect
  kBusy = 4,         // connected already
  kCollision = 5,    // the target's own call is the one to be kept
  kTooMany = 6,      // more calls are held than there is room for
  kCallsBack = 7,    // the target calls the port that the caller has named, which proves it
  kHeld = 8,         // the trunk that the caller asks about is there, and still this process's
};
inline constexpr size_t kRendezvousVerdicts = 9;

/// The answerer's word, in the Reply.
struct RendezvousAnswer {
  static constexpr size_t kWireSize = 12;

  RendezvousVerdict verdict = RendezvousVerdict::kAccepted;
  uint32_t capabilities = 0;

  std::vector<std::byte> encode() const;
  static std::optional<RendezvousAnswer> decode(std::span<const std::byte> bytes);
};

const char* describe(RendezvousVerdict verdict);

// A peer's call to a queue pair that cannot be answered yet, and how a call is refused.
struct PendingCall {
  std::shared_ptr<Connection> request;
  RendezvousCall call;
};

/// Calls that one queue pair holds at most: its one peer makes one, and perhaps another after a
/// time-out. No other peer is expected to dial.
inline constexpr size_t kMaxPendingCalls = 4;

/// Tells the peer why its call is not answered; without memory for that it sees a reset. The log is
/// told too, but not of kCallsBack and kHeld, which are what the caller of a trunk has come for.
/// Without locks.
void refuse(Connection& request, RendezvousVerdict verdict);

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

/// Made by its Endpoint at RTR, and answers from then on; dials from dial(), at RTS. It has no
/// connection, a call under way (dial_), or the one connection that it keeps (kept_). It is over
/// when that ends, or by stop(), at ERR, RESET or destroy: then it neither dials nor answers any
/// more. A connection that is established outlives stop(). All calls from any thread. Locks: its
/// mutex, then the connection's.
class Rendezvous final : public Source, public ConnectionOwner {
  ConnectContext& context_;
  const std::weak_ptr<Endpoint> endpoint_;

  Mutex mutex_;
  RendezvousTerms terms_ GUARDED_BY(mutex_);
  bool dialing_ GUARDED_BY(mutex_) = false;  // RTS was reached
  bool stopped_ GUARDED_BY(mutex_) = false;
  bool starting_ GUARDED_BY(mutex_) = false;  // place_call() is under way without the mutex
  // The call being placed is over before it was known here.
  const Connection* settled_ GUARDED_BY(mutex_) = nullptr;
  std::shared_ptr<Connection> dial_ GUARDED_BY(mutex_);  // our call
  // The connection: accepted, or our call answered.
  std::shared_ptr<Connection> kept_ GUARDED_BY(mutex_);
  bool connected_ GUARDED_BY(mutex_) = false;  // ... and established
  RateLimit wrong_calls_ GUARDED_BY(mutex_){kWrongCalls, kWrongCallNs};
  // Came while starting_, or after too many wrong ones.
  std::vector<PendingCall> held_ GUARDED_BY(mutex_);
  uint64_t retry_ns_ GUARDED_BY(mutex_) = 0;  // when to dial again; 0: not
  // When waiting requests fail, or are lost; 0: none waits.
  uint64_t give_up_ns_ GUARDED_BY(mutex_) = 0;
  // Patience is over, but not for the call that TCP has brought to the peer.
  bool outstayed_ GUARDED_BY(mutex_) = false;
  bool gave_up_ GUARDED_BY(mutex_) = false;   // requests have been lost: later ones do not wait
  uint64_t pause_ns_ GUARDED_BY(mutex_) = 0;  // length of the last pause between two calls

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
  bool must_wait_locked() const REQUIRES(mutex_);
  RendezvousVerdict judge_locked(const RendezvousCall& call) const REQUIRES(mutex_);
  /// False: too many are held, or there is no memory for it.
  bool add_pending_locked(PendingCall call) REQUIRES(mutex_);
  void take_call(Lock<Mutex>& lock, const PendingCall& held)
      REQUIRES(mutex_) NO_THREAD_SAFETY_ANALYSIS;
  void take_pending_calls(Lock<Mutex>& lock) REQUIRES(mutex_) NO_THREAD_SAFETY_ANALYSIS;
  void start_dial(Lock<Mutex>& lock) REQUIRES(mutex_) NO_THREAD_SAFETY_ANALYSIS;
  Result<std::shared_ptr<Connection>> place_call(const RendezvousTerms& terms,
                                                 const std::shared_ptr<Endpoint>& endpoint);
  void dial_over_locked(const std::shared_ptr<Connection>& connection) REQUIRES(mutex_);
  void retry_locked() REQUIRES(mutex_);
  void work_waiting_locked() REQUIRES(mutex_);
  uint64_t patience_ns_locked() const REQUIRES(mutex_);
  bool call_stands_locked() const REQUIRES(mutex_);
  void give_up(Lock<Mutex>& lock) REQUIRES(mutex_) NO_THREAD_SAFETY_ANALYSIS;
  void update_deadline_locked() REQUIRES(mutex_);
  std::weak_ptr<ConnectionOwner> as_owner() {
    return std::static_pointer_cast<Rendezvous>(shared_from_this());
  }
};

}  // namespace uwarp
