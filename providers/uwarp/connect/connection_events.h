// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a connection tells its owner (an rdma_cm id, or the rendezvous), what an rdma_cm id asks of
// a connection, and what the two say to each other about depths and private data.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/limits.h"
#include "base/settings.h"
#include "protocol/wire/mpa_start_frame.h"

namespace uwarp {

/// Connection parameters as rdma_cm names them, from the point of view of the side that uses them.
struct ConnectParameters {
  uint16_t responder_resources = 0;       // Reads and atomics that we take (IRD)
  uint16_t initiator_depth = 0;           // Reads and atomics that we issue (ORD)
  std::vector<std::byte> private_data{};  // the application's bytes, without the enhanced word
  // Of the passive side, for an id of datagrams: where they go.
  uint32_t qp_number = 0;
  uint32_t qkey = 0;
};

/// The depth that the peer is told. With acknowledged completions (of the queue pair, QpConfig) it
/// is one more than the application uses, for the Reads that acknowledge.
inline uint16_t with_reserve(uint16_t depth, bool acknowledged) {
  return acknowledged && depth < kDepthNotNegotiated ? depth + 1 : depth;
}
inline uint16_t without_reserve(uint16_t depth, bool acknowledged) {
  return acknowledged && depth > 0 ? depth - 1 : depth;
}
/// Depth as rdma_cm can carry it, when the peer has named none or more than `most`, which is what
/// we have. A peer that keeps no reserve (an adapter, or a uwarp of the iwarp persona) may name 1:
/// then the application has it, and Reads that acknowledge take turns with its Reads.
inline uint16_t offered_depth(bool on_wire, uint16_t depth, uint32_t most) {
  const auto limit = static_cast<uint16_t>(most);
  if (!on_wire) return limit;
  return std::min(without_reserve(depth, settings().acknowledged() && depth > 1), limit);
}

class Connection;
class Endpoint;

/// Owner of a connection. Calls come from the thread that progresses, one at a time per connection,
/// with no engine lock held; the owner may call back. After the owner called Connection::abort() or
/// drop_owner() at most the call under way still arrives. An owner of one connection needs not to
/// know which it is: in tests there may be none.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  /// Active: the Reply was accepted. Passive: the stream is open in both directions (RTR seen where
  /// one is due). The queue pair is in RTS already. `local` is its address, `peer` holds the
  /// negotiated depths as ESTABLISHED reports them and (active side) the Reply's private data.
  virtual void connection_established(const std::shared_ptr<Connection>& connection,
                                      const sockaddr_storage& local,
                                      const ConnectParameters& peer) = 0;
  /// Active: the peer has rejected, with private data, or has refused or reset TCP (`status`
  /// -ECONNREFUSED, -ECONNRESET): REJECTED.
  virtual void connection_rejected(const std::shared_ptr<Connection>& connection, int status,
                                   std::span<const std::byte> private_data) = 0;
  /// The connection was never established: `status` is -ETIMEDOUT (UNREACHABLE) or another negative
  /// errno (CONNECT_ERROR).
  virtual void connection_failed(const std::shared_ptr<Connection>& connection, int status) = 0;
  /// An established connection has ended, for any reason. Once.
  virtual void connection_ended(const std::shared_ptr<Connection>& connection) = 0;
};

/// What an rdma_cm id has: a Connection, or a question of service ID resolution (SidrQuery,
/// SidrCall), which is like a connection that is accepted at once. Any thread. 0 or an errno. To
/// let go of an open Connection does not end it; to let go of a request rejects it.
class CmConnection {
 public:
  virtual ~CmConnection() = default;
  // Of the passive side.
  /// EINVAL: a queue pair in a wrong state. ECONNRESET: the peer has gone.
  // NOLINTBEGIN(performance-unnecessary-value-param): a Connection keeps them
  virtual int accept(std::shared_ptr<Endpoint> /*endpoint*/,
                     const ConnectParameters& /*parameters*/,
                     std::weak_ptr<ConnectionOwner> /*owner*/) {
    return EINVAL;
  }
  // NOLINTEND(performance-unnecessary-value-param)
  virtual int reject(std::span<const std::byte> /*private_data*/) { return EINVAL; }
  // Of both.
  virtual int disconnect() = 0;
  virtual void abort() = 0;
};

/// What brings an rdma_cm id its requests: a Listener or a SidrListener.
class CmListener {
 public:
  virtual ~CmListener() = default;
  /// Stops. Idempotent. No owner call starts after it returned.
  virtual void close() = 0;
};

}  // namespace uwarp
