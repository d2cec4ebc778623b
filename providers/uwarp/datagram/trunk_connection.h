// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One connection of a trunk, from its call to its end: a queue pair of our own that carries frames
// of datagrams both ways. What comes is handed to the queue pairs that it names. A call is a
// connection too, which carries no frames: it asks the peer to call back (docs/wire.md).
#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/spinlock.h"
#include "connect/connection_events.h"
#include "connect/endpoint.h"
#include "connect/rendezvous.h"
#include "datagram/datagram_endpoint.h"
#include "datagram/frame_pool.h"
#include "net/ip_address.h"
#include "net/net_device.h"
#include "progress/source.h"
#include "protocol/wire/global_route_header.h"
#include "qp/completion_queue.h"
#include "qp/datagram_queue_pair.h"
#include "qp/qp_config.h"

namespace uwarp {

// What tells one trunk from another: an address and a port at each end.

/// The ports are those of queue pair numbers. A process has one for each 256 queue pairs of a
/// device, and a trunk for each of them, so that all datagrams on a connection come from one port.
struct TrunkKey {
  IpAddress own;
  uint16_t own_port = 0;
  IpAddress peer;
  uint16_t port = 0;  // of the peer
  /// The peer is this process.
  bool to_itself() const { return own == peer && own_port == port; }
  friend auto operator<=>(const TrunkKey&, const TrunkKey&) = default;
};

// What two processes say to each other before there is a trunk: the call, the call back that proves
// the caller's port, and the answer. Layout: docs/wire.md, "Datagrams". Encode and decode only.

/// Of calls, and of what goes over a trunk. A receiver refuses others with kUnknownVersion.
inline constexpr uint32_t kTrunkVersion = 2;

/// A random number that only the process which drew it and the one that it has called know. 0:
/// none.
using TrunkNonce = uint64_t;
/// A new one, of the kernel's random numbers.
TrunkNonce draw_nonce();

struct TrunkCall {
  /// That one call back can repeat. A queue pair number's port has one process, so more than one
  /// call from it is rare; the room is for callers that have no right to the port.
  static constexpr size_t kMostNonces = 32;

  TrunkKey key;  // as the caller sees it
  bool call_back = false;
  /// Of a call: the caller's own, one. Of a call back: those of the calls that it answers.
  std::vector<TrunkNonce> nonces{};

  std::vector<std::byte> encode() const;
  /// The nonces behind the call in the private data of a Request, kMostNonces at most.
  static std::vector<TrunkNonce> nonces_of(std::span<const std::byte> private_data);
};

/// The Reply that accepts a call back names the nonce that was right.
std::vector<std::byte> encode_accepted(TrunkNonce nonce);
/// 0 if it names none.
TrunkNonce accepted_nonce(std::span<const std::byte> private_data);

class Trunk;
class Trunks;

/// Made by call(), call_back() or answer(); held by Trunks to the end of its connection, and by its
/// Trunk while that sends over it. A call waits for the call back (kCallBackNs) and carries
/// nothing, and the connection that answers it holds it until that is open; a connection is open
/// once it is established. close() ends it in order, give_up() at once, and it ends with its
/// connection: then frames are given back, its Trunk knows, and no thread uses its queue pair.
/// A process that sends to itself has both ends of a connection: it sends over the answer. The call
/// back only receives, and ends with the answer.
class TrunkConnection final : public Source,
                              public ConnectionOwner,
                              public PendingDatagram,
                              private MessageSink,
                              private CompletionNotifier {
  enum class Role : uint8_t { kCall, kCallBack, kAnswer };

  Trunks& trunks_;
  const int ifindex_;
  // Memory of its frames is sent from here: it stays until the end of both. The trunk lets go of a
  // connection that is over.
  const std::shared_ptr<Trunk> trunk_;
  CompletionQueue completions_{kDepth, this};
  std::shared_ptr<Endpoint> endpoint_;
  const Role role_;
  bool replaces_ = false;
  bool known_ = false;  // to its trunk, under the trunk's lock
  std::atomic<TrunkNonce> nonce_{0};
  std::atomic<bool> claimed_{false};
  std::atomic<bool> open_{false};         // it was established
  std::atomic<bool> over_{false};         // it has ended, or was given up
  std::atomic<bool> used_{true};          // since the last look
  std::shared_ptr<RendezvousPort> port_;  // of a call: where the peer calls back
  SpinLock lock_;
  std::shared_ptr<Connection> connection_ GUARDED_BY(lock_);
  // Of an answer, until it is open or has failed.
  std::shared_ptr<TrunkConnection> call_ GUARDED_BY(lock_);
  FrameQueue kept_ GUARDED_BY(lock_);
  bool done_ GUARDED_BY(lock_) = false;  // no frame is sent from any more

  // Under the receive side of the endpoint.
  GlobalRouteHeader route_;
  RecentEndpoints recent_;
  Frame* buffer_ = nullptr;         // for what comes; from the first message on
  size_t filled_ = 0;               // bytes of the message in it ...
  size_t next_ = 0;                 // ... of which these have been delivered or dropped
  uint64_t patience_until_ns_ = 0;  // a datagram waits for a receive; 0: none does
  std::shared_ptr<DatagramEndpoint> rnr_blocked_at_;  // receive_came() will be called by this one
  Qpn first_;                                         // that has been served
  bool several_ = false;                              // others have, too
  uint64_t idle_at_ns_ = ~uint64_t{0};                // when to look whether it was used
  bool retired_ = false;                              // it ends then, used or not

 public:
  /// Frames that may be posted at a time: all that a trunk has, so that none is left behind when
  /// the connection is closed.
  static constexpr uint32_t kDepth = 64;

  /// How long an answer to a call back may take, and how long a caller waits for one.
  static constexpr uint64_t kCallBackNs = 5'000'000'000;

  /// Asks the peer of `trunk` to call back. It carries no frames, and ends with the call back or
  /// without; what becomes of it is told to `trunk`. Until then our port takes calls, also if the
  /// queue pair that has sent is gone. Errors: EMFILE, ENOMEM, EADDRNOTAVAIL...
  static Result<std::shared_ptr<TrunkConnection>> call(Trunks& trunks, std::shared_ptr<Trunk> trunk,
                                                       TrunkNonce nonce, bool replaces);
  /// Calls a peer that has called; the connection that comes of it is proved. Errors: as above.
  static Result<std::shared_ptr<TrunkConnection>> call_back(Trunks& trunks,
                                                            std::shared_ptr<Trunk> trunk,
                                                            std::vector<TrunkNonce> nonces,
                                                            bool replaces);
  /// Takes `request`, a call back for `call`, whose nonce it has shown. Errors: as above.
  static Result<std::shared_ptr<TrunkConnection>> answer(Trunks& trunks,
                                                         const std::shared_ptr<Connection>& request,
                                                         std::shared_ptr<TrunkConnection> call);
  ~TrunkConnection() override;

  const std::shared_ptr<Trunk>& trunk() const { return trunk_; }
  /// Both ends know it: of the call that this connection came of. Of a call, its own.
  TrunkNonce nonce() const { return nonce_.load(std::memory_order_relaxed); }
  /// If its trunk has a connection already, this one is used instead.
  bool replaces() const { return replaces_; }
  /// A peer has called us, and is called back: the connection takes a place.
  bool takes_place() const { return role_ == Role::kCallBack; }
  /// It is a call, not a connection.
  bool is_call() const { return role_ == Role::kCall; }
  /// The trunk sends over the other end, which is in this process too.
  bool only_receives() const;
  /// Of a call: true once. There is at most one answer to it.
  bool claim() { return !claimed_.exchange(true); }
  /// Nothing has gone over it for some time.
  bool idle() const { return !used_.load(std::memory_order_relaxed); }

  /// Ends it in order, if its trunk knows it by now. What was sent before goes out.
  void close();
  /// Ends it at once. `status`: 0 or a negative errno, for the trunk.
  void give_up(int status);
  /// The trunk uses another one: what is on its way may arrive, for a second.
  void retire();
  /// Nothing of queue pairs that have gone is kept on return.
  void forget_endpoints();

  // ---- For its trunk, under the trunk's lock.
  /// The trunk was told that it is open. Never, if it only receives.
  bool known() const { return known_; }
  void set_known() { known_ = true; }
  /// UWARP_FAULT orders a wire to the peer, and its queue has no room.
  bool wire_is_full() const;
  /// False: no room in its queue, or the connection has failed.
  bool post(const Frame& frame);
  /// How many posted frames are done with since the last call, oldest first.
  size_t take_done();
  /// These are posted; they are given back when it is over.
  void keep_frames(FrameQueue frames);
  /// An event is wanted as soon as there is something to take. False: there is something already.
  bool ask_for_done() { return !completions_.arm(false); }

  // ---- Without locks.
  /// Sends what was posted.
  void pump(uint32_t frames, uint64_t bytes);

  // Source.
  bool ready(uint32_t events) override;
  void deadline_passed() override;
  void receive_came() override { go_on(true); }
  // ConnectionOwner.
  void connection_established(const std::shared_ptr<Connection>& connection,
                              const sockaddr_storage& local,
                              const ConnectParameters& peer) override;
  void connection_rejected(const std::shared_ptr<Connection>& connection, int status,
                           std::span<const std::byte> private_data) override;
  void connection_failed(const std::shared_ptr<Connection>& connection, int status) override;
  void connection_ended(const std::shared_ptr<Connection>& connection) override;

 private:
  TrunkConnection(Trunks& trunks, std::shared_ptr<Trunk> trunk, Role role);
  std::shared_ptr<TrunkConnection> shared() {
    return std::static_pointer_cast<TrunkConnection>(shared_from_this());
  }
  void set_connection(std::shared_ptr<Connection> connection) {
    const Lock lock(lock_);
    connection_.swap(connection);
  }
  int make_endpoint();
  /// Dials the peer with this call. 0 or an errno.
  int dial(const TrunkCall& call);
  // MessageSink and CompletionNotifier.
  std::span<std::byte> space() override;
  void arrived(size_t bytes) override;
  void completion_event() override;
  void completion_overrun() override {}
  void deliver();
  void give_back_buffer();
  void go_on(bool notified);
  bool wait_for_receive(DatagramQueuePair& qp);
  bool wait_for_receive(DatagramEndpoint& endpoint);
  void end_rnr_block();
  bool deliver_one(const DatagramHeader& header, const std::byte* payload);
  void set_alarm();
  void give_back_kept();
  std::shared_ptr<Connection> connection() {
    const Lock lock(lock_);
    return connection_;
  }
  void over(int status);
  std::shared_ptr<TrunkConnection> take_call() {
    const Lock lock(lock_);
    return std::exchange(call_, nullptr);
  }
};

}  // namespace uwarp
