// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What an rdma_cm id needs of the engine, as interfaces: so ids are tested without sockets and
// queue pairs. Calls and their errors are those of connect/connection.h and connect/listener.h.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "base/result.h"
#include "carrier/tcp_socket.h"
#include "connect/connection_events.h"
#include "connect/listener.h"
#include "connect/qp_attributes.h"
#include "net/neighbour.h"
#include "net/net_device.h"
#include "progress/source.h"

namespace uwarp {

class CmId;
class SilentQueuePair;

/// A port that is held, see connect/listener.h.
struct BoundPort {
  TcpSocket socket;  ///< empty: the application has the port itself, and nothing can listen on it
  sockaddr_storage address{};
};

/// The queue pair that an id names when it connects or accepts.
struct CmQueuePair {
  uint32_t number = 0;
  RetryAttributes retries;
  /// roce: InfiniBand's connection manager takes any number. If there is no such queue pair, a
  /// silent one on this device stands for it. Null: there must be one.
  std::shared_ptr<const NetDevice> device;
};

/// ... and what there is. The connection of a silent one ends with it.
struct CmEndpoint {
  std::shared_ptr<Endpoint> endpoint;
  std::shared_ptr<SilentQueuePair> silent;  ///< null, or whose endpoint it is
};

class CmTransport {
 public:
  struct ConnectRequest {
    std::optional<BoundPort> bound;
    sockaddr_storage local{};  ///< without `bound`: AF_UNSPEC leaves it to the kernel
    sockaddr_storage remote{};
    BindOptions options;
    std::shared_ptr<Endpoint> endpoint;  ///< null for datagrams
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
  /// EINVAL: there is no such queue pair, and there must be one.
  virtual Result<CmEndpoint> find_queue_pair(const CmQueuePair& wanted) = 0;
  virtual Result<BoundPort> bind(const sockaddr_storage& address, const BindOptions& options) = 0;
  virtual Result<std::shared_ptr<CmListener>> listen(BoundPort bound, const BindOptions& options,
                                                     std::weak_ptr<CmId> owner) = 0;
  /// EINVAL: the queue pair is in a wrong state. The owner may be called before this returns.
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

}  // namespace uwarp
