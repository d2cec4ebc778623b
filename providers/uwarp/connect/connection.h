// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One TCP connection from MPA start-up to its end. The only meeting point of a socket and a queue
// pair: carries the start-up handshake, then lets the Stream of an Endpoint pump, and settles how
// it ends. RFC 5044 7, RFC 6581, RFC 5040 5.4.
//
// connection_startup.cc has what comes before FPDU mode, connection.cc the life in it,
// connection_end.cc the rest.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "base/result.h"
#include "base/spinlock.h"
#include "carrier/tcp_socket.h"
#include "connect/connection_deadlines.h"
#include "connect/connection_events.h"
#include "connect/startup_mode_cache.h"
#include "observe/capture.h"
#include "progress/progress.h"
#include "protocol/mpa/handshake.h"
#include "stream/stream.h"

namespace uwarp {

class Endpoint;
struct ConnectContext;
class Listener;

/// Public face for host/ (rdma_cm ids) and the rendezvous. All calls from any thread.
class Connection final : public Source, public StreamOwner {
 public:
  struct ConnectOptions {
    std::optional<TcpSocket> bound;  // socket of an earlier bind, moved in
    sockaddr_storage local{};        // used when not bound; family AF_UNSPEC: kernel's choice
    sockaddr_storage remote{};
    int tos = -1;
    uint32_t timeout_ms = 0;  // 0: settings
    bool rendezvous = false;  // made without rdma_cm: no fall-back, FIN is silent
  };
  /// Starts connecting `endpoint` (may not be connected yet). Errors at once: EINVAL (endpoint in a
  /// wrong state, private data too long), EADDRNOTAVAIL, ENOMEM, EMFILE... ; all later ones come
  /// through `owner`, possibly before this returns. The handshake falls back from P2P to plain to
  /// revision 1 by itself, and begins where the last one with this peer got its Reply.
  static Result<std::shared_ptr<Connection>> connect(ConnectContext& context,
                                                     std::shared_ptr<Endpoint> endpoint,
                                                     ConnectOptions options,
                                                     ConnectParameters parameters,
                                                     std::weak_ptr<ConnectionOwner> owner);
  /// A queue pair connected to itself: what it sends comes back to it. Errors: EINVAL, EMFILE...
  static Result<std::shared_ptr<Connection>> connect_to_itself(
      ConnectContext& context, std::shared_ptr<Endpoint> endpoint, uint16_t depth,
      std::weak_ptr<ConnectionOwner> owner);
  ~Connection() override;

  /// Passive: what the peer asked for (depths swapped for direct use in accept). Does not change.
  const ConnectParameters& request_parameters() const { return request_parameters_; }
  /// Passive: binds `endpoint` to the connection and sends the Reply. Errors: EINVAL (wrong state),
  /// ECONNRESET (the peer has gone meanwhile). ESTABLISHED comes through `owner`. An initiator
  /// depth of kDepthNotNegotiated leaves our ORD open (see Endpoint).
  int accept(std::shared_ptr<Endpoint> endpoint, ConnectParameters parameters,
             std::weak_ptr<ConnectionOwner> owner, bool rendezvous = false);
  /// Passive: Reply with R=1 and private data, then close. Errors: EINVAL.
  int reject(std::span<const std::byte> private_data);
  /// Orderly end: what was posted goes out, then FIN (RFC 5044 7.2); the queue pair goes to ERR
  /// with flushes; connection_ended follows. 0 also if it has ended already; EINVAL if never
  /// established.
  int disconnect();
  /// Ends at once (RST), in any state, without owner calls after it returned (but one under way).
  void abort();
  /// Active: ends the attempt, as abort() does, unless our Request has gone out already (false).
  bool abandon_before_request();
  /// No owner calls any more (but one under way); the connection itself goes on.
  void drop_owner();

  sockaddr_storage local_address() const {
    const Lock lock(mutex_);
    return local_;
  }
  sockaddr_storage remote_address() const { return remote_; }

  // ---- For Endpoint.
  /// Inside open_stream(), which this connection calls.
  const sockaddr_storage& local_address_locked() const { return local_; }
  /// The queue pair left for ERR, RESET or is destroyed: the TCP connection ends, orderly where
  /// nothing was half sent. On return the queue pair is not touched any more.
  void endpoint_gone();

  std::shared_ptr<Connection> shared() {
    return std::static_pointer_cast<Connection>(shared_from_this());
  }

  // ---- For the stream.
  void on_events(const StreamEvents& notice) override;
  std::shared_ptr<StreamOwner> hold_owner() override { return shared(); }
  void request_turn() override;
  bool request_quiet() override;
  void transmit_before_long() override;

  // ---- For Listener.
  /// Silence after which a peer is lost, unless its queue pair has a timeout of its own.
  static uint32_t usual_peer_timeout_ms();
  /// An accepted socket: reads the Request, then tells the listener.
  static std::shared_ptr<Connection> incoming(ConnectContext& context, TcpSocket socket,
                                              const sockaddr_storage& remote,
                                              std::weak_ptr<Listener> listener);

  /// Ends it with a reset, unless its whole Request has come.
  void drop_half_open();

  /// Ends it with a reset if it drains.
  void stop_draining();

  // Source.
  bool ready(uint32_t events) override;
  bool look() override;
  void end_quiet() override;
  bool looked_at() override;
  void deadline_passed() override;
  void out_of_memory() override;

 private:
  enum class Phase : uint8_t {
    kConnecting,      // TCP is being established
    kAwaitingReply,   // our Request is out
    kReadingRequest,  // accepted from a listener
    kRequested,       // a whole Request waits for accept() or reject()
    kOpen,            // FPDU mode: endpoint_ and its stream are ours
    kDraining,        // our FIN is out, the queue pair is free: reads away until the peer's FIN
    kClosed,
  };
  struct OwnerCall {
    enum Kind : uint8_t { kEstablished, kRejected, kFailed, kEnded } kind;
    int status = 0;
    ConnectParameters peer;
  };
  using Lock = std::unique_lock<std::mutex>;
  /// How long we read away what a peer still sends after our FIN, so that no RST destroys a
  /// Terminate on its way; and how long disconnect() waits for a peer that takes nothing.
  static constexpr uint64_t kCloseWaitNs = 5'000'000'000;
  /// For how long our FIN may wait for a peer to make room, where completions are acknowledged.
  static constexpr uint64_t kNoRoomWaitNs = 250'000'000;
  /// siw as responder sees what came before it was ready only when more comes (docs/siw.md): when
  /// the peer has sent nothing after this time, and after each eightfold of it, we send more.
  static constexpr uint64_t kFirstNudgeNs = 5'000'000;
  static constexpr uint64_t kLastNudgeNs = 512 * kFirstNudgeNs;

  Connection(ConnectContext& context, std::weak_ptr<ConnectionOwner> owner);

  // Octets of the start-up, also into the capture.
  ssize_t send_frame_locked(std::span<const std::byte> octets);
  ssize_t receive_frame_locked(std::span<std::byte> room);
  void begin_capture_locked();
  // Start-up, active (connection_startup.cc). All `_locked` functions need mutex_.
  int start_attempt_locked(std::optional<TcpSocket> bound);
  Result<TcpSocket> make_socket_locked(std::optional<TcpSocket> bound) const;
  void continue_connect_locked();
  void send_request_locked();
  void read_reply_locked();
  void judge_reply_locked(const MpaInitiator::Verdict& verdict);
  void start_up_locked(uint32_t events);
  /// Takes a refusal as too early a try: true if another one follows.
  bool redial_later_locked(int error);
  void redial_locked();
  void connect_failed_locked(int error);
  void choose_startup_mode_locked();
  bool fall_back_locked(const MpaInitiator::Verdict& verdict);
  void remember_startup_mode_locked();
  void forget_startup_mode_locked();
  // Start-up, passive.
  void read_request_locked();
  void watch_requested_locked();
  void request_complete_locked();
  int send_reply_locked(std::span<const std::byte> reply);
  int answer_and_open_locked();
  // FPDU mode.
  int open_stream_locked(const MpaNegotiated& negotiated, bool initiator);
  Stream::Ends ends() { return {*this, socket_, loop_ ? loop_ : socket_, captured_.get()}; }
  StreamConfig stream_config(const MpaNegotiated& negotiated, bool initiator) const;
  void set_peer_timeout_locked();
  void watch_peer_locked();
  void look_after_peer_locked();
  void established_locked();
  void stream_failed_locked();
  void stream_ended_locked(StreamEnd end);
  bool still_silent_locked(StreamEnd end);
  void nudge_locked();
  bool first_nudge_due_locked() const;
  bool send_the_rest_locked(StreamEnd end);
  void finish_fpdu_locked();
  bool apply_faults_locked(FaultScript& script);
  void send_before_end_locked();
  void hung_up_locked(uint32_t events);
  void check_transmit_locked();
  // The end.
  // kDone: both have sent their FIN, and no reset is due when the fd is closed.
  enum class CloseMode : uint8_t { kDone, kGentle, kReset };
  void leave_endpoint_locked();
  void drain_locked();
  void look_for_room_locked();
  void read_away_locked();
  void close_locked(CloseMode farewell);
  void unregister_locked();
  void tell_locked(OwnerCall::Kind kind, int status = 0, ConnectParameters peer = {});
  void tell_end_locked();
  /// What mutex_ has kept from being done: pumping, and the owner's calls, one at a time. Call
  /// last; gives the lock up.
  void finish(Lock& lock);
  void tell(ConnectionOwner& owner, const OwnerCall& call);
  /// The same on behalf of the owner or of verbs, who may hold locks of their own: the calls are
  /// left to whoever progresses.
  void finish_later(Lock& lock);
  void update_deadline_locked();
  std::shared_ptr<Endpoint> open_endpoint() const;

  ConnectContext& context_;
  sockaddr_storage remote_{};             // set before the object is shared
  ConnectParameters request_parameters_;  // set before it is handed up

  mutable std::mutex mutex_;
  sockaddr_storage local_{};
  Phase phase_ = Phase::kClosed;
  bool active_ = false;
  bool rendezvous_ = false;
  bool established_ = false;  // the owner has been told
  bool end_told_ = false;
  bool disconnecting_ = false;  // disconnect(): waiting until all that was posted has gone
  bool failing_ = false;        // flushed; waiting until the Terminate has gone
  bool peer_finished_ = false;  // its FIN has come; waiting until what can be sent has gone
  bool peer_to_peer_ = false;   // passive: ESTABLISHED waits for the RTR
  bool first_fpdu_seen_ = false;
  bool peer_left_ = false;  // kRequested: FIN, RST or octets out of turn
  int peer_left_error_ = 0;
  std::unique_ptr<CapturedConnection> captured_;
  TcpSocket socket_;
  TcpSocket loop_;  // connected to itself: where we send
  Progress::Ticket ticket_ = 0;
  Progress::Ticket loop_ticket_ = 0;
  ConnectOptions options_;
  ConnectParameters parameters_;
  StartupMode startup_mode_ = StartupMode::kPeerToPeer;
  bool startup_mode_remembered_ =
      false;  // startup_mode_ comes from memory and has not been tried out yet
  ConnectionDeadlines deadlines_;
  std::optional<StreamEnd> silent_end_;  // how a peer went that had no way to say so
  uint32_t peer_timeout_ms_ = 0;
  uint32_t peer_looks_ = 0;  // at which it owed something, in a row
  uint64_t nudge_wait_ns_ = kFirstNudgeNs;
  uint32_t redials_ = 0;
  // Until the connection is established: they hold whole frames.
  std::unique_ptr<MpaInitiator> initiator_;
  std::unique_ptr<MpaResponder> responder_;
  size_t request_bytes_sent_ = 0;
  std::weak_ptr<Listener> listener_;  // told once, when the Request is complete or the peer gone
  std::weak_ptr<ConnectionOwner> owner_;
  std::deque<OwnerCall> calls_;
  bool calling_ = false;
  std::shared_ptr<Connection> displaced_;  // has lost its place to this one, which drains
  bool pump_due_ = false;
  std::atomic<bool> calls_due_{false};  // calls_ is not empty; for a look without mutex_

  // Read without mutex_ on every edge, so that a sleeping target pays no mutex per message.
  mutable SpinLock endpoint_lock_;  // leaf
  std::shared_ptr<Endpoint> endpoint_;
  bool open_ = false;  // phase_ is kOpen
};

}  // namespace uwarp
