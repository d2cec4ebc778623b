// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What an rdma_cm id needs of the engine, as interfaces: so ids are tested without sockets and
// queue pairs. Calls and their errors are those of connect/connection.h and connect/listener.h.
#pragma once

#include <sys/socket.h>

#include <memory>
#include <span>

#include "base/result.h"
#include "connect/connection_events.h"
#include "connect/listener.h"
#include "connect/qp_attributes.h"
#include "net/neighbour.h"
#include "net/net_device.h"
#include "progress/source.h"

namespace uwarp {

/// A port that is held, see connect/listener.h; freed by the destructor.
class BoundPort {
 public:
  virtual ~BoundPort() = default;
  /// From now on other sockets that are shared may bind it too.
  virtual void share() = 0;
  virtual sockaddr_storage local_address() const = 0;
};

/// The queue pair that an id names when it connects or accepts.
struct CmQueuePair {
  uint32_t number = 0;
  RetryAttributes retries;
  /// roce: InfiniBand's connection manager takes any number. If there is no such queue pair, a
  /// silent one on this device stands for it. Null: there must be one.
  std::shared_ptr<const NetDevice> device;
};

/// To release an open one does not end the connection, unless its queue pair is a silent one, which
/// ends with it.
class CmConnection {
 public:
  virtual ~CmConnection() = default;
  virtual const ConnectParameters& request_parameters() const = 0;
  virtual sockaddr_storage local_address() const = 0;
  virtual sockaddr_storage remote_address() const = 0;
  /// 0 or an errno. EINVAL: no such queue pair, or one in a wrong state. ECONNRESET: peer gone.
  virtual int accept(const CmQueuePair& queue_pair, ConnectParameters parameters,
                     std::weak_ptr<ConnectionOwner> owner) = 0;
  virtual int reject(std::span<const std::byte> private_data) = 0;
  virtual int disconnect() = 0;
  virtual void abort() = 0;
};

class CmListenerOwner {
 public:
  virtual ~CmListenerOwner() = default;
  /// False: refused for lack of room.
  virtual bool connection_requested(std::shared_ptr<CmConnection> request) = 0;
};

class CmListener {
 public:
  virtual ~CmListener() = default;
  virtual void close() = 0;
};

class CmTransport {
 public:
  struct ConnectRequest {
    std::unique_ptr<BoundPort> bound;  ///< may be null
    sockaddr_storage local{};          ///< without `bound`: AF_UNSPEC leaves it to the kernel
    sockaddr_storage remote{};
    BindOptions options;
    CmQueuePair queue_pair;
    ConnectParameters parameters;
  };

  virtual ~CmTransport() = default;
  // Of ports of datagrams (BindOptions) come listeners and connections that stand for service ID
  // resolution. Their ConnectParameters have private data, qp_number and qkey;
  // connection_rejected() then brings an ib_cm_sidr_status, and there is no connection that ends.

  /// True if the listener will be told, after `timeout_ms` at the latest, whether the neighbour on
  /// the way answers; it may be told before this returns. False if there is nothing to wait for.
  virtual bool wait_for_neighbour(const IpAddress& destination, const Route& route,
                                  uint32_t timeout_ms,
                                  std::weak_ptr<NeighbourListener> listener) = 0;
  /// 0, or an errno: this device cannot join the group, or send to it from its address `own`.
  virtual int check_group(const NetDevice& device, const IpAddress& own,
                          const IpAddress& group) = 0;
  virtual Result<std::unique_ptr<BoundPort>> bind(const sockaddr_storage& address,
                                                  const BindOptions& options) = 0;
  virtual Result<std::shared_ptr<CmListener>> listen(std::unique_ptr<BoundPort> bound,
                                                     std::weak_ptr<CmListenerOwner> owner) = 0;
  /// EINVAL: no such queue pair, or one in a wrong state. The owner may be called before this
  /// returns.
  virtual Result<std::shared_ptr<CmConnection>> connect(ConnectRequest request,
                                                        std::weak_ptr<ConnectionOwner> owner) = 0;
  /// Calls `source.deadline_passed()` after this time, unless the source is gone by then.
  virtual void call_after(Source& source, uint64_t delay_ms) = 0;
};

/// The real one, on top of the process's Engine.
CmTransport& engine_transport();

// Counts the rdma_cm listeners of this process. They stay in it when it forks, so a program that
// listens and then becomes a daemon loses them; the user is told before stderr is gone.

/// One listener, from its start to its end.
class OpenListener {
 public:
  OpenListener();
  ~OpenListener();
  OpenListener(const OpenListener&) = delete;
  OpenListener& operator=(const OpenListener&) = delete;
};

/// The application calls daemon(): its listeners end with this process. One line on stderr and in
/// the log if there are any.
void say_daemon_loses_listeners();
/// A forked child becomes the leader of a session, as daemons do and as others do before they
/// execute a program: one line in the log.
void say_session_without_listeners();
/// A forked child uses a channel of its parent's: one line on stderr and in the log.
void say_channel_without_listeners();

// The half of engine_transport() that serves ids of datagrams.

Result<std::shared_ptr<CmListener>> listen_for_sidr(TcpSocket bound, uint16_t port_space,
                                                    std::weak_ptr<CmListenerOwner> owner);
/// `bound` may be empty; see CmTransport::connect().
Result<std::shared_ptr<CmConnection>> query_by_sidr(TcpSocket bound,
                                                    CmTransport::ConnectRequest request,
                                                    std::weak_ptr<ConnectionOwner> owner);

}  // namespace uwarp
