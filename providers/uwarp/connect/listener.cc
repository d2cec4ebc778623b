// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Accepting TCP connections up to their MPA Request.
#include "connect/listener.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "base/fact.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/settings.h"
#include "connect/connect_context.h"
#include "net/ip_address.h"
#include "os/clock.h"
#include "os/engine_fds.h"
#include "os/output_file.h"
#include "os/proc_text.h"

namespace uwarp {

// What the socket options mean here. SO_REUSEADDR is what a port needs on both sides so that old
// connections do not keep it from a new listener. Two sockets that have it may also be bound twice
// while neither listens, so a socket that only holds its port gives the option up again.
// SO_REUSEPORT is what both sockets of a shared port have; one that listens must not have it, or a
// second listener would get a part of its connections.

namespace {

/// Ports that are tried before the kernel is asked for one.
constexpr int kDraws = 32;

}  // namespace

PortRange any_ports() {
  static constinit Fact<uint32_t> known;
  const uint32_t both = known.get([]() -> uint32_t {
    const ProcText reserved("/proc/sys/net/ipv4/ip_local_reserved_ports");
    const ProcText range("/proc/sys/net/ipv4/ip_local_port_range");
    uint16_t low = 0, high = 0;
    const bool found = std::sscanf(range.text, "%hu %hu", &low, &high) == 2 && low <= high;
    return found && reserved.text[0] == '\n' ? uint32_t{low} << 16 | high : 0;
  });
  return {static_cast<uint16_t>(both >> 16), static_cast<uint16_t>(both)};
}

namespace {

// Asked for any port, the kernel looks at every second one of them in turn. Once half of them are
// taken, by connections that have ended a minute ago at most, that takes milliseconds.
int bind_any(TcpSocket& socket, const sockaddr_storage& address) {
  const PortRange range = any_ports();
  sockaddr_storage drawn = address;
  for (int i = 0; i < kDraws && !range.empty(); ++i) {
    set_port(drawn, drawn_port(range));
    const int error = socket.bind(drawn);
    if (error == 0) return 0;
    if (error != EADDRINUSE) break;  // a policy may forbid this port only
  }
  return socket.bind(address);
}

// The kernel itself never chooses a port that only old connections have, even if the socket would
// be allowed to bind it. So each port is tried.
int bind_any_beside_connections(TcpSocket& socket, const sockaddr_storage& address) {
  const PortRange range = any_ports();
  if (range.empty()) return socket.bind(address);
  sockaddr_storage drawn = address;
  return each_port(range, [&](uint16_t port) {
    set_port(drawn, port);
    return socket.bind(drawn);
  });
}

int bind_for(TcpSocket& socket, const sockaddr_storage& address, const BindOptions& options,
             bool beside_connections) {
  if (port_of(address) != 0 || options.datagram || options.shared) return socket.bind(address);
  return beside_connections ? bind_any_beside_connections(socket, address)
                            : bind_any(socket, address);
}

Result<TcpSocket> try_to_bind(const sockaddr_storage& address, const BindOptions& options,
                              bool beside_connections) {
  auto socket = options.datagram ? TcpSocket::open_datagram(address.ss_family)
                                 : TcpSocket::open(address.ss_family);
  if (!socket) return socket;
  if (address.ss_family == AF_INET6 && options.v6_only) socket->set_v6_only(*options.v6_only);
  socket->set_tos(options.tos);
  socket->set_reuse_port(options.shared);
  socket->set_reuse_address(beside_connections);
  if (const int error = bind_for(*socket, address, options, beside_connections))
    return Error{error};
  socket->set_reuse_address(false);
  return socket;
}

}  // namespace

Result<TcpSocket> bind_port(const sockaddr_storage& address, const BindOptions& options) {
  // First without SO_REUSEADDR: the kernel looks at every socket of a port only if the first one
  // that was bound to it did not have it.
  auto socket = try_to_bind(address, options, false);
  if (socket || socket.error() != EADDRINUSE) return socket;
  const bool any = port_of(address) == 0;
  if (!any || !options.to_connect) socket = try_to_bind(address, options, true);
  // The rdma_cm of a kernel says so if no port is left.
  if (any && !socket && socket.error() == EADDRINUSE) return Error{EADDRNOTAVAIL};
  return socket;
}

bool application_has_udp_port(uint16_t port) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return false;
  // Some milliseconds at most, and only for a port that is taken.
  constexpr rlim_t kMostChecked = 65'536;
  const int end = static_cast<int>(std::min(files.rlim_cur, kMostChecked));
  for (int fd = 0; fd < end; ++fd) {
    int type = 0;
    socklen_t length = sizeof type;
    if (syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0 ||
        type != SOCK_DGRAM || is_engine_fd(fd))
      continue;
    sockaddr_storage bound{};
    length = sizeof bound;
    if (syscall(SYS_getsockname, fd, &bound, &length) == 0 && port_of(bound) == port) return true;
  }
  return false;
}

void share_port(TcpSocket& bound) { bound.set_reuse_port(true); }

void use_port(TcpSocket& bound) {
  bound.set_reuse_port(false);
  bound.set_reuse_address(true);
}

namespace {

/// Connections accepted per turn, so that a flood does not keep other sources waiting.
constexpr int kAcceptsPerPass = 16;

/// Pause after accept() has failed for want of something.
constexpr uint64_t kRetryNs = 100 * kNsPerMs;

/// An owner that has no memory for a request cannot take it, and the peer is told.
bool taken(ListenerOwner& owner, const std::shared_ptr<Connection>& request) {
  try {
    return owner.connection_requested(request);
  } catch (const std::bad_alloc&) {
    log_event("listener: no memory for a request, which is rejected");
    return false;
  }
}

}  // namespace

Listener::Listener(ConnectContext& context, const TcpSocket& bound,
                   std::weak_ptr<ListenerOwner> owner)
    : context_(context), local_(bound.local_address()), owner_(std::move(owner)) {}

Listener::~Listener() { close(); }

Result<std::shared_ptr<Listener>> Listener::start(ConnectContext& context, TcpSocket& bound,
                                                  std::weak_ptr<ListenerOwner> owner) {
  // An application that waits for a connection may make no calls until there is one.
  if (int error = context.progress.start_helper()) return Error{error};
  std::shared_ptr<Listener> listener(new Listener(context, bound, std::move(owner)));
  const Lock guard(listener->mutex_);
  use_port(bound);
  bound.set_keepalive(Connection::usual_peer_timeout_ms());  // what is accepted takes it over
  // What the application's backlog refuses is refused by the owner, with an answer. The kernel's
  // queue is as long as it can be: while it is full the kernel ignores SYNs, and a peer repeats its
  // own after a second.
  if (int error = bound.listen(kMaxBacklog)) return Error{error};
  auto registration = context.progress.add(*listener, bound.fd(), EPOLLIN | EPOLLET);
  if (!registration) return Error{registration.error()};
  listener->registration_ = *registration;
  listener->socket_ = std::move(bound);
  return listener;
}

void Listener::close() {
  decltype(half_open_.clear()) dropped;
  {
    const Lock guard(mutex_);
    context_.progress.remove(std::exchange(registration_, 0));
    socket_.close();
    owner_.reset();
    dropped = half_open_.clear();
  }
  for (const auto& place : dropped) place.holder->abort();
}

bool Listener::accept_one() {
  std::shared_ptr<Connection> displaced;  // ended after the lock
  {
    const Lock guard(mutex_);
    if (!socket_) return false;
    sockaddr_storage peer;
    auto accepted = socket_.accept(peer);
    if (!accepted) return accept_failed_locked(accepted.error());
    if (!settings().allow.allows(ip_of(peer).bytes())) {
      static CollapsedLog log;
      log.event("listener: %s is not in UWARP_ALLOW", ip_of(peer).to_string().c_str());
      accepted->reset();
      return true;
    }
    displaced = accepted_locked(std::move(*accepted), peer);
  }
  if (displaced != nullptr) displaced->drop_half_open();
  return true;
}

bool Listener::accept_failed_locked(int error) {
  // The connection died in the queue: the next one may be well.
  if (error == ECONNABORTED || error == EPROTO) return true;
  if (error != EAGAIN) {
    static CollapsedLog log;
    log.event("listener: accept failed: %s", std::strerror(error));
    context_.progress.set_deadline(*this, now_ns() + kRetryNs);  // out of fds or memory
  }
  return false;
}

// The caller is the thread that progresses, which could not handle an exception.
std::shared_ptr<Connection> Listener::accepted_locked(TcpSocket socket,
                                                      const sockaddr_storage& peer) {
  try {
    auto connection = Connection::incoming(context_, std::move(socket), peer,
                                           std::static_pointer_cast<Listener>(shared_from_this()));
    if (connection == nullptr) return nullptr;
    return half_open_.enter(std::move(connection), ip_of(peer), kMaxHalfOpen).value_or(nullptr);
  } catch (const std::bad_alloc&) {
    log_event("listener: no memory for a connection, which is closed");
    return nullptr;
  }
}

bool Listener::ready(uint32_t /*events*/) {
  for (int i = 0; i < kAcceptsPerPass; ++i)
    if (!accept_one()) return false;
  return true;
}

void Listener::deadline_passed() { context_.progress.revisit(*this); }

void Listener::half_open_done(const std::shared_ptr<Connection>& connection, bool complete) {
  std::shared_ptr<ListenerOwner> owner;
  {
    const Lock guard(mutex_);
    half_open_.leave(connection);
    owner = owner_.lock();
  }
  if (complete && (owner == nullptr || !taken(*owner, connection))) (void)connection->reject({});
}

}  // namespace uwarp
