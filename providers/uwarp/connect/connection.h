// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One TCP connection from MPA start-up to its end, where a socket and a queue pair meet. Its state
// decides, without IO, what happens: ActiveStartup or PassiveStartup, ConnectedState, Draining,
// Closed. The connection holds the mutex, the socket and its owner's calls, gives events to the
// state, and does what that decides. RFC 5044 7, RFC 6581, RFC 5040 5.4.
//
// connection_startup.cc acts for start-ups, up to the stream; connection.cc does the rest.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "base/log.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/spinlock.h"
#include "carrier/peer_memory.h"
#include "carrier/tcp_socket.h"
#include "carrier/wakeup_socket.h"
#include "connect/connected_state.h"
#include "connect/connection_events.h"
#include "connect/connection_socket.h"
#include "connect/mailbox.h"
#include "connect/startup.h"
#include "progress/progress.h"
#include "stream/stream.h"

namespace uwarp {

// What a connection has to tell its owner: that it is established, and how it ended. Each is told
// once, in that order, and at most one at a time.

/// Under the connection's mutex, but for due(). Noting a call takes no memory.
class OwnerCalls {
 public:
  /// In the order in which they are made.
  enum Call : uint8_t { kEstablished = 1, kRejected = 2, kFailed = 4, kEnded = 8 };

  explicit OwnerCalls(std::weak_ptr<ConnectionOwner> owner) : owner_(std::move(owner)) {}

  void set_owner(std::weak_ptr<ConnectionOwner> owner) { owner_ = std::move(owner); }
  /// No call begins any more.
  void drop_owner() {
    owner_.reset();
    due_.store(0);
  }
  /// Notes the first call, or kEnded after kEstablished; nothing else.
  void notify(Call call, int status = 0, ConnectParameters peer = {}) {
    if (noted_ != (call == kEnded ? kEstablished : 0)) return;
    noted_ |= call;
    if (call != kEnded) {
      status_ = status;
      peer_ = std::move(peer);
    }
    if (!owner_.expired()) due_.fetch_or(call);
  }
  void notify_end() { notify(was_established() ? kEnded : kFailed, -ECONNRESET); }
  bool was_established() const { return (noted_ & kEstablished) != 0; }
  /// Something is to be told. Also without the mutex, for a look.
  bool due() const { return due_.load() != 0; }

  /// Makes the calls that are due, unless another thread makes them. `lock` is the connection's
  /// mutex, given up during each call; `local` is its address.
  void make(Lock<Mutex>& lock, const std::shared_ptr<Connection>& connection,
            const sockaddr_storage local) NO_THREAD_SAFETY_ANALYSIS {
    while (!calling_ && due()) {
      const std::shared_ptr<ConnectionOwner> owner = owner_.lock();
      const uint8_t due = due_.load();
      const auto call = static_cast<Call>(due & -due);  // the lowest bit
      due_.fetch_xor(call);
      if (owner == nullptr) continue;
      const ConnectParameters peer = call != kEnded ? std::move(peer_) : ConnectParameters();
      calling_ = true;
      lock.unlock();
      try {
        if (call == kEstablished) owner->connection_established(connection, local, peer);
        if (call == kRejected) owner->connection_rejected(connection, status_, peer.private_data);
        if (call == kFailed) owner->connection_failed(connection, status_);
        if (call == kEnded) owner->connection_ended(connection);
      } catch (const std::bad_alloc&) {
        log_event("connection: its owner had no memory for an event, which is lost");
      }
      lock.lock();
      calling_ = false;
    }
  }

 private:
  std::weak_ptr<ConnectionOwner> owner_;
  ConnectParameters peer_;  // for kEstablished or kRejected, until that call is made
  int status_ = 0;
  uint8_t noted_ = 0;  // of Call
  bool calling_ = false;
  std::atomic<uint8_t> due_{0};  // of Call
};

class Endpoint;
struct ConnectContext;
class Listener;

/// Made by connect() and connect_to_itself(), or by a Listener with incoming(). Its states are
/// those of State: a start-up, FPDU mode (Connected, with its endpoint), Draining behind our FIN,
/// Closed. Held by its endpoint until it leaves FPDU mode, by its listener until the Request is
/// whole, by its owner, and by the engine while it drains. Ends by itself, by its owner's
/// disconnect() or abort(), and with its queue pair. Closed, it has neither socket nor endpoint;
/// the memory goes with the last reference. For rdma_cm ids and the rendezvous. All calls from any
/// thread.
class Connection final : public Source,
                         public CmConnection,
                         public StreamOwner,
                         public Mailbox::Owner {
 public:
  using ConnectOptions = ActiveStartup::Options;
  /// Starts connecting `endpoint` (may not be connected yet). Errors at once: EINVAL (endpoint in a
  /// wrong state, private data too long), EADDRNOTAVAIL, ENOMEM, EMFILE... ; all later ones come
  /// through `owner`, possibly before this returns. The handshake falls back from P2P to plain to
  /// revision 1 by itself, and begins where the last one with this peer got its Reply.
  static Result<std::shared_ptr<Connection>> connect(ConnectContext& context,
                                                     std::shared_ptr<Endpoint> endpoint,
                                                     ConnectOptions options,
                                                     ConnectParameters parameters,
                                                     std::weak_ptr<ConnectionOwner> owner);
  /// Connects a queue pair to itself: it receives what it sends. Errors: EINVAL, EMFILE...
  static Result<std::shared_ptr<Connection>> connect_to_itself(
      ConnectContext& context, std::shared_ptr<Endpoint> endpoint, uint16_t depth,
      std::weak_ptr<ConnectionOwner> owner);
  ~Connection() override;

  /// Passive: what the peer asked for (depths swapped for direct use in accept). Does not change.
  const ConnectParameters& request_parameters() const { return request_parameters_; }
  /// Passive: binds `endpoint` to the connection and sends the Reply. Errors: EINVAL (wrong state),
  /// ECONNRESET (the peer has gone meanwhile). ESTABLISHED comes through `owner`. An initiator
  /// depth of kDepthNotNegotiated leaves our ORD open (see Endpoint).
  int accept(std::shared_ptr<Endpoint> endpoint, const ConnectParameters& parameters,
             std::weak_ptr<ConnectionOwner> owner) override {
    return accept(std::move(endpoint), parameters, std::move(owner), false);
  }
  int accept(std::shared_ptr<Endpoint> endpoint, const ConnectParameters& parameters,
             std::weak_ptr<ConnectionOwner> owner, bool rendezvous);
  /// Passive: Reply with R=1 and private data, then close. Errors: EINVAL.
  int reject(std::span<const std::byte> private_data) override;
  /// Orderly end: sends what was posted, then FIN. The queue pair goes to ERR with
  /// flushes; connection_ended follows. 0 also if it has ended already; EINVAL if never
  /// established.
  int disconnect() override;
  /// Ends at once (RST), in any state. No owner call begins after it returned; one may still run.
  void abort() override;
  /// Active: ends the attempt, as abort() does, unless our Request has gone out already (false).
  bool abandon_before_request();
  /// Passive: without an answer by then it is reset, as after abort().
  void answer_within_ms(uint32_t wait_ms);
  /// Active, not ended: the peer's system has taken the TCP connection.
  bool has_reached_peer();
  /// No owner call begins any more; one may still run. The connection itself goes on.
  void drop_owner();

  sockaddr_storage local_address() const {
    const Lock lock(mutex_);
    return local_;
  }
  sockaddr_storage remote_address() const { return remote_; }

  // ---- For Endpoint.
  /// Inside open_stream(), which this connection calls.
  const sockaddr_storage& local_address_locked() const NO_THREAD_SAFETY_ANALYSIS { return local_; }
  /// Likewise: who the peer has proved to be by TLS; empty without TLS.
  std::string peer_identity_locked() NO_THREAD_SAFETY_ANALYSIS { return socket_.peer_identity(); }
  /// The queue pair has gone to ERR or RESET, or is destroyed: ends the TCP connection, in order
  /// unless an FPDU is half sent. On return the queue pair is not touched any more.
  void endpoint_gone();

  std::shared_ptr<Connection> shared() {
    return std::static_pointer_cast<Connection>(shared_from_this());
  }

  // ---- For the stream.
  void on_events(const StreamEvents& notice) override;
  std::shared_ptr<StreamOwner> shared_owner() override { return shared(); }
  void schedule() override;
  bool request_mute() override;
  void transmit_before_long() override;

  // ---- For the mailbox.
  void mail_arrived(Mailbox& mailbox, Mail& mail) override;

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
  bool poll() override;
  int waker_core() override;
  void unmute() override;
  bool polled_since() override;
  void deadline_passed() override;
  void out_of_memory() override;

 private:
  using Connected = ConnectedState<Endpoint, TcpSocket>;
  struct Closed {
    bool peer_left;  // before it was accepted
    static Deadline deadline() { return {}; }
  };
  // Start-ups are on the heap, as they hold whole frames.
  using State = std::variant<Closed, std::unique_ptr<ActiveStartup>,
                             std::unique_ptr<PassiveStartup>, Connected, Draining>;

  /// The mutex, and what must not be done under it: that is due when the mutex is given up.
  struct SCOPED_CAPABILITY Turn {
    explicit Turn(Connection& connection) ACQUIRE(connection.mutex_) : lock(connection.mutex_) {}
    ~Turn() RELEASE() = default;
    void give_up() RELEASE() NO_THREAD_SAFETY_ANALYSIS { lock.unlock(); }
    void take_again() ACQUIRE() NO_THREAD_SAFETY_ANALYSIS { lock.lock(); }
    bool pump = false;
    std::shared_ptr<Listener> listener;     // to tell that no Request is awaited any more
    std::shared_ptr<Connection> displaced;  // has lost its place to this one, which drains
    Lock<Mutex> lock;                       // last: given up before these go
  };
  /// kLater: called by the owner or by verbs, which may hold locks of their own. The thread that
  /// progresses then pumps and calls the owner.
  enum class Calls : uint8_t { kNow, kLater };
  /// Ends the turn.
  void finish(Turn& turn, Calls when = Calls::kNow) RELEASE(mutex_);

  Connection(ConnectContext& context, std::weak_ptr<ConnectionOwner> owner);

  ActiveStartup* active() REQUIRES(mutex_) { return present<ActiveStartup>(); }
  PassiveStartup* passive() REQUIRES(mutex_) { return present<PassiveStartup>(); }
  Connected* connected() REQUIRES(mutex_) { return std::get_if<Connected>(&state_); }
  template <class Startup>
  Startup* present() REQUIRES(mutex_) {
    auto* const held = std::get_if<std::unique_ptr<Startup>>(&state_);
    return held != nullptr ? held->get() : nullptr;
  }
  void update_deadline(Turn& turn) REQUIRES(mutex_);

  /// Runs `start`, the last step of a call that has claimed the endpoint. Unless it succeeds (0),
  /// the connection is closed and the endpoint free again; std::bad_alloc becomes ENOMEM.
  template <typename Start>
  int start_or_close(Turn& turn, Start start) REQUIRES(mutex_) {
    int error;
    try {
      error = start();
    } catch (const std::bad_alloc&) {
      error = ENOMEM;
    }
    if (error != 0) close(turn, CloseMode::kReset);
    return error;
  }

  // Start-up, active (connection_startup.cc).
  int dial(Turn& turn, ActiveStartup& startup) REQUIRES(mutex_);
  void check_tcp(Turn& turn, ActiveStartup& startup) REQUIRES(mutex_);
  void shake_hands(Turn& turn, ActiveStartup& startup) REQUIRES(mutex_);
  void send_request(Turn& turn, ActiveStartup& startup) REQUIRES(mutex_);
  void read_reply(Turn& turn) REQUIRES(mutex_);
  void reply_accepted(Turn& turn, ActiveStartup& startup) REQUIRES(mutex_);
  void follow(Turn& turn, ActiveStartup& startup, ActiveStartup::Next next) REQUIRES(mutex_);
  void edge(Turn& turn, ActiveStartup& startup, uint32_t events) REQUIRES(mutex_);
  // TLS, which comes before the Request.
  /// 0, or an errno of our own.
  int begin_tls(bool active) REQUIRES(mutex_);
  /// 0: the peer is proved. EAGAIN: at the next edge. Another errno: refused.
  int secure() REQUIRES(mutex_);
  void log_tls_failure() REQUIRES(mutex_);
  // Start-up, passive.
  void read_request(Turn& turn) REQUIRES(mutex_);
  void refuse_request(Turn& turn, PassiveStartup& startup, MpaFailure why) REQUIRES(mutex_);
  void watch_requested(PassiveStartup& startup) REQUIRES(mutex_);
  int send_reply(std::span<const std::byte> reply) REQUIRES(mutex_);
  int answer_and_open(Turn& turn, PassiveStartup& startup, const ConnectParameters& parameters,
                      bool rendezvous) REQUIRES(mutex_);
  // The hand-over.
  struct Agreed {
    MpaNegotiated negotiated;
    bool peer_wants_crc;
    uint16_t initiator_depth;  // that our application asked for
    bool rendezvous;
    bool initiator;  // we are
  };
  StreamConfig stream_config(const Agreed& agreed) REQUIRES(mutex_);
  int open_stream(Turn& turn, const Agreed& agreed) REQUIRES(mutex_);
  int enter_fpdu_mode(Turn& turn, const StreamConfig& config, const Connected::Terms& terms)
      REQUIRES(mutex_);
  void established(ConnectParameters peer) REQUIRES(mutex_);
  // Leaving TCP.
  void log_carrier() const REQUIRES(mutex_);
  void follow_carrier(Turn& turn, const StreamEvents& notice) REQUIRES(mutex_);
  void compare_personas() REQUIRES(mutex_);
  void offer_carrier(Turn& turn) REQUIRES(mutex_);
  void take_offer() REQUIRES(mutex_);
  bool open_mailbox(uint64_t number) REQUIRES(mutex_);
  /// What the peer is to be given beside the memory.
  struct Carrier {
    std::unique_ptr<RingCarrier> ring;
    WakeupSocket peer_wakeup;
    PeerMemory::Place secret;
  };
  static Result<Carrier> make_carrier(Errands& errands, const Mail& mail,
                                      std::shared_ptr<PeerMemory> peer);
  static Result<Carrier> adopt_carrier(Errands& errands, Mail& mail,
                                       std::shared_ptr<PeerMemory> peer);
  RingCarrier* join_carrier(std::unique_ptr<RingCarrier> carrier) REQUIRES(mutex_);
  // What follows in FPDU mode and after.
  void follow(Turn& turn, const Connected::Next& next) REQUIRES(mutex_);
  void drain(Turn& turn) REQUIRES(mutex_);
  void read_away(Turn& turn) REQUIRES(mutex_);
  void leave_endpoint(Turn& turn) REQUIRES(mutex_);
  void close(Turn& turn, CloseMode mode) REQUIRES(mutex_);
  std::shared_ptr<Endpoint> open_endpoint() const;
  /// A look without the mutex.
  bool calls_due() const NO_THREAD_SAFETY_ANALYSIS { return calls_.due(); }
  /// QpConfig::acknowledged of the endpoint, which there must be.
  bool acknowledged() const REQUIRES(mutex_);

  ConnectContext& context_;
  sockaddr_storage remote_{};             // set before the object is shared
  ConnectParameters request_parameters_;  // set before it is handed up

  mutable Mutex mutex_;
  sockaddr_storage local_ GUARDED_BY(mutex_){};
  ConnectionSocket socket_ GUARDED_BY(mutex_);
  OwnerCalls calls_ GUARDED_BY(mutex_);
  State state_ GUARDED_BY(mutex_);
  uint64_t deadline_ns_ GUARDED_BY(mutex_) = 0;  // as Progress knows it
  bool dialed_ GUARDED_BY(mutex_) = false;       // of a stream: we did
  bool was_busy_ GUARDED_BY(mutex_) = false;     // the stream, once
  // Of this end; null: shared memory was never spoken of.
  std::shared_ptr<Mailbox> mailbox_ GUARDED_BY(mutex_);
  std::shared_ptr<PeerMemory> peer_memory_ GUARDED_BY(mutex_);  // until the letter has come

  // An open endpoint is found by open_endpoint() under this lock alone, so that a sleeping target
  // pays no mutex per message. So it is opened and taken away under both.
  mutable SpinLock endpoint_lock_;  // leaf
  std::shared_ptr<Endpoint> endpoint_ GUARDED_BY(mutex_);
  bool open_ GUARDED_BY(mutex_) = false;  // state_ is Connected
};

}  // namespace uwarp
