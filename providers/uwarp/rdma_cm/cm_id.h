// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One rdma_cm id as the kernel keeps it: addresses, state, and the listener or connection that
// belongs to it. Commands come from application threads, connection events from the thread that
// progresses. Must not know the command format.
#pragma once

#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_cm.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/settings.h"
#include "connect/listener.h"
#include "connect/sidr_listener.h"
#include "net/net_device.h"
#include "progress/source.h"
#include "rdma_cm/cm_event_queue.h"
#include "rdma_cm/cm_transport.h"

namespace uwarp {

// All rdma_cm ids of the process by number. librdmacm indexes a table of its own with the number,
// over all channels, so it is unique per process and has 16 bits.
class CmId;

class CmIdTable {
 public:
  static constexpr uint32_t kMaxNumber = 65535;

  /// `make` is given the number; null when all are in use. Numbers are reused as late as possible.
  std::shared_ptr<CmId> create(const std::function<std::shared_ptr<CmId>(uint32_t)>& make);
  /// Null when there is none.
  std::shared_ptr<CmId> find(uint32_t number) const;
  /// Takes it out; null when it was out already. Of two callers one gets it.
  std::shared_ptr<CmId> remove(uint32_t number);
  std::vector<std::shared_ptr<CmId>> all() const;
  /// A name for a multicast group that an id joins; not used twice.
  uint32_t name_group() { return next_group_.fetch_add(1, std::memory_order_relaxed); }

 private:
  mutable Mutex lock_;  ///< before the lock of the event queues
  std::vector<std::shared_ptr<CmId>> ids_ GUARDED_BY(lock_);  ///< by number, grows on demand
  uint32_t next_ GUARDED_BY(lock_) = 1;
  std::atomic<uint32_t> next_group_{1};
};

/// Outstanding Reads and atomics, as the application sees them.
struct CmDepths {
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
};

/// What an id is for: its port space (rdma_ucm_port_space), and whether queue pairs of datagrams
/// (UD) belong to it.
struct CmService {
  uint16_t port_space = RDMA_PS_TCP;
  bool datagram = false;

  /// In port space IB the application says by a queue pair type (ib_qp_type) what it is for.
  /// Nullopt: no such port space.
  static constexpr std::optional<CmService> of(uint16_t port_space, uint8_t qp_type) {
    constexpr uint8_t kUnreliableDatagram = 4;
    switch (port_space) {
      case RDMA_PS_TCP:
        return CmService{port_space, false};
      case RDMA_PS_UDP:
      case RDMA_PS_IPOIB:
        return CmService{port_space, true};
      case RDMA_PS_IB:
        return CmService{port_space, qp_type == kUnreliableDatagram};
      default:
        return std::nullopt;
    }
  }
};

/// The Q_Key of queue pairs of rdma_cm, unless an application names another one (RDMA_UDP_QKEY).
inline constexpr uint32_t kCmQkey = 0x01234567;

/// How far an id has come: a state that was reached, not one that was asked for.
enum class CmIdState : uint8_t {
  kIdle,
  kBound,
  kListening,
  kAddressAsked,  ///< a neighbour has been asked for, ADDR_RESOLVED or ADDR_ERROR is outstanding
  kAddressResolved,
  kRouteResolved,
  kConnecting,  ///< CONNECT done, ESTABLISHED or a failure is outstanding
  kRequest,     ///< came in by a listener, ACCEPT or REJECT is outstanding
  kAccepting,   ///< ACCEPT done, ESTABLISHED is outstanding
  kAnswered,    ///< roce: CONNECT_RESPONSE given, the application's ACCEPT is outstanding
  kEstablished,
  kDisconnecting,  ///< DISCONNECT done, DISCONNECTED is outstanding
  kClosed,         ///< there was, or nearly was, a connection
  kRemoved,        ///< its netdev is gone: the id can only be destroyed
  kDestroyed,
};

/// Made by CREATE_ID, or by a request that came in at a listening id; held by CmIdTable. Its state
/// is a CmIdState. In kListening it has a listener, from kConnecting or kRequest on a connection,
/// until that is over (kClosed). Ended by destroy(), for DESTROY_ID or the last close of its
/// channel: then it has neither, no event of it follows, and a late call of the engine finds
/// kDestroyed.
class CmId : public Source,
             public ConnectionOwner,
             public ListenerOwner,
             public SidrListenerOwner,
             public NeighbourListener {
  /// A multicast group that was joined.
  struct Group {
    uint32_t number;
    std::shared_ptr<uint32_t> reported;
  };

  CmIdTable& table_;
  CmTransport& transport_;
  const uint32_t number_;
  const CmService service_;
  const Persona persona_;
  const std::shared_ptr<CmEventSource> events_;

  /// Not held while the engine is called: its threads call us.
  mutable Mutex lock_;
  uint64_t uid_ GUARDED_BY(lock_);
  CmIdState state_ GUARDED_BY(lock_) = CmIdState::kIdle;
  /// While the neighbour is asked: the state before.
  CmIdState asked_from_ GUARDED_BY(lock_) = CmIdState::kIdle;
  bool was_established_ GUARDED_BY(lock_) = false;
  bool disconnected_ GUARDED_BY(lock_) = false;  ///< by DISCONNECT; the peer may have come first
  sockaddr_storage local_ GUARDED_BY(lock_){};
  sockaddr_storage remote_ GUARDED_BY(lock_){};
  /// The application has named the source address, so it is part of a connect.
  bool source_fixed_ GUARDED_BY(lock_) = false;
  std::shared_ptr<const NetDevice> device_ GUARDED_BY(lock_);
  BindOptions options_ GUARDED_BY(lock_);
  uint32_t qkey_ GUARDED_BY(lock_) = 0;  ///< of datagrams; 0: not settled yet
  // For the queue pair's attributes.
  CmDepths depths_ GUARDED_BY(lock_);  ///< roce
  RetryAttributes retries_ GUARDED_BY(lock_);
  size_t backlog_ GUARDED_BY(lock_) = 0;
  std::optional<BoundPort> bound_ GUARDED_BY(lock_);
  std::shared_ptr<CmListener> listener_ GUARDED_BY(lock_);
  std::optional<OpenListener> counted_ GUARDED_BY(lock_);  ///< while there is a listener
  std::shared_ptr<CmConnection> connection_ GUARDED_BY(lock_);
  /// On which the connection runs, or null.
  std::shared_ptr<SilentQueuePair> silent_ GUARDED_BY(lock_);
  std::vector<Group> groups_ GUARDED_BY(lock_);
  /// For events of the neighbour or the connection that are still to come.
  CmEventReservation reservation_ GUARDED_BY(lock_);

 public:
  /// `persona`: the rules that librdmacm follows.
  CmId(CmIdTable& table, CmTransport& transport, uint32_t number, uint64_t uid, CmService service,
       Persona persona = settings().persona);

  uint32_t number() const { return number_; }
  const std::shared_ptr<CmEventSource>& events() const { return events_; }

  // Commands. 0 or an errno; EINVAL when the state does not allow it.

  /// Errors: EADDRNOTAVAIL (not a local address), ENODEV (of no device), EADDRINUSE, EACCES,
  /// EAFNOSUPPORT.
  int bind(const sockaddr_storage& address);
  /// An idle id listens on the IPv4 wildcard and any port. `backlog` <= 0: the maximum.
  int listen(int backlog);
  /// `source` of family AF_UNSPEC: the kernel's choice. Success queues ADDR_RESOLVED as soon as the
  /// neighbour on the way is known; or ADDR_ERROR when it does not answer within `timeout_ms`, or
  /// when the way leads through a netdev that is no device.
  int resolve_address(const sockaddr_storage& source, const sockaddr_storage& destination,
                      uint32_t timeout_ms);
  int resolve_route();
  int connect(const rdma_ucm_conn_param& parameters);
  /// `uid` is the application's name for the id from now on. Without parameters: the application
  /// confirms a CONNECT_RESPONSE.
  int accept(uint64_t uid, const rdma_ucm_conn_param& parameters);
  int reject(std::span<const std::byte> private_data);
  /// Without a connection to end: 0 for a request and after an attempt, EINVAL otherwise.
  int disconnect();
  /// `event` is an ibv_event_type. There is nothing to do: to InfiniBand's connection manager it
  /// stands for a lost message of the peer. EISCONN: not lost.
  int notify(uint32_t event) const;
  int set_option(uint32_t level, uint32_t name, std::span<const std::byte> value);
  /// Queues an event that the application has written; GET_EVENT returns it with this argument.
  int write_event(CmEventType type, uint32_t status, uint64_t argument);
  /// Joins a multicast group (bound to a device or address resolved; an rdma_ucm join flag). `uid`
  /// names it in its event, MULTICAST_JOIN or MULTICAST_ERROR; `number` in leave_group().
  /// ENOSYS: iWARP has none.
  int join_group(const IpAddress& group, uint64_t uid, uint16_t flags, uint32_t& number);
  /// How many events of the group were delivered; none follows. Nullopt: not joined.
  std::optional<uint32_t> leave_group(uint32_t number);
  /// Attributes with which the application moves its queue pair to `qp_state`.
  int qp_attributes(uint32_t qp_state, ib_uverbs_qp_attr& out);

  struct Addresses {
    sockaddr_storage local{};  ///< AF_UNSPEC when there is none yet
    sockaddr_storage remote{};
    std::shared_ptr<const NetDevice> device;  ///< null for a wildcard or loopback that is bound
    bool has_path = false;                    ///< roce: the route is known, as a path record
    uint8_t traffic_class = 0;
  };
  Addresses addresses() const;
  CmIdState state() const;

  /// Ends what the id has: a listener with its unanswered requests, a connection. Returns how many
  /// events were delivered; none follows. Idempotent. The caller takes the id out of the table.
  uint32_t destroy();

  // Network side.

  /// If the id's netdev is gone from `devices`: ends what the id has, with DEVICE_REMOVAL as its
  /// last event. Nothing happens to an id without a device, as a listener on a wildcard. `devices`
  /// is the published table: since a device is looked up under the id's lock, no id keeps one that
  /// was gone before. Throws std::bad_alloc, and has done nothing then.
  void netdevs_changed(const NetDeviceTable& devices);

  // Engine side.
  bool ready(uint32_t) override { return false; }
  /// The time to wait after a connection is over.
  void deadline_passed() override;
  void neighbour_known(int status) override;
  void connection_established(const std::shared_ptr<Connection>&, const sockaddr_storage& local,
                              const ConnectParameters& peer) override;
  void connection_rejected(const std::shared_ptr<Connection>&, int status,
                           std::span<const std::byte> private_data) override;
  void connection_failed(const std::shared_ptr<Connection>&, int status) override;
  void connection_ended(const std::shared_ptr<Connection>&) override;
  bool connection_requested(std::shared_ptr<Connection> request) override;
  bool sidr_requested(std::shared_ptr<SidrCall> call) override;
  /// What both do. `peer` is what the peer asks for.
  bool requested(std::shared_ptr<CmConnection> request, const ConnectParameters& peer,
                 const sockaddr_storage& local, const sockaddr_storage& remote);

 private:
  std::shared_ptr<CmId> shared() { return std::static_pointer_cast<CmId>(shared_from_this()); }
  bool is_roce() const { return persona_ == Persona::kRoce; }
  /// iWARP has no datagrams: EOPNOTSUPP for an id of them, and a line of the log.
  int datagrams_refused() const;
  Addresses addresses_locked() const REQUIRES(lock_);
  int bind_locked(const sockaddr_storage& address) REQUIRES(lock_);
  int bind_ib_locked(const sockaddr_storage& address) REQUIRES(lock_);
  int reserve_port_locked(const sockaddr_storage& address, bool to_connect = false) REQUIRES(lock_);
  /// The port once more, with a socket that is as the options want it now.
  int rebind_locked() REQUIRES(lock_);
  int resolve_locked(const sockaddr_storage& source, const sockaddr_storage& destination)
      REQUIRES(lock_);
  bool waits_for_neighbour(const IpAddress& destination, const Route& route, uint32_t timeout_ms);
  void unresolve_locked() REQUIRES(lock_);
  /// CONNECT's or ACCEPT's parameters that belong to the queue pair.
  void note_parameters_locked(const rdma_ucm_conn_param& parameters) REQUIRES(lock_);
  /// That of `number`, as the id's connection is to have it.
  CmQueuePair queue_pair_locked(uint32_t number) const REQUIRES(lock_);
  void end_unheard(CmConnection& connection);
  bool connect_fails(Lock<Mutex>& guard) REQUIRES(lock_) NO_THREAD_SAFETY_ANALYSIS;
  // Of datagrams, which have no connection: one question, one answer.
  int accept_datagram(uint64_t uid, const rdma_ucm_conn_param& parameters);
  bool settle_qkey_locked(uint32_t qkey) REQUIRES(lock_);
  void datagram_established(const ConnectParameters& peer);
  /// Becomes the id of a request that came in. Throws std::bad_alloc, and is still idle then.
  void become_request(std::shared_ptr<CmConnection> request, const sockaddr_storage& local,
                      const sockaddr_storage& remote);
  void wait_for_late_packets();
  /// The end of a connection, or of the attempt; queues `type` unless the id is past it.
  void finish(CmEventType type, int status, std::span<const std::byte> private_data);
  rdma_ucm_event_resp event_locked(CmEventType type, int status) const REQUIRES(lock_);
  void push(const rdma_ucm_event_resp& event, CmEventReservation reservation);
  /// Room for the next event of the neighbour or the connection.
  CmEventReservation take_reservation_locked() REQUIRES(lock_);
  /// Listener and connection of an id, taken out of it to be ended without its lock.
  struct Ending {
    CmIdState state;  ///< until then
    std::shared_ptr<CmListener> listener;
    std::shared_ptr<CmConnection> connection;
    std::shared_ptr<SilentQueuePair> silent;
    std::optional<BoundPort> bound;
  };
  Ending end_locked(CmIdState state) REQUIRES(lock_);
  static void end_connection(CmConnection& connection, CmIdState state);
};

}  // namespace uwarp
