// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Accepting TCP connections up to their MPA Request.
#include "cm/listener.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "base/limits.h"
#include "base/log.h"
#include "cm/engine.h"
#include "io/clock.h"

namespace uwarp {
namespace {

/// Connections accepted per turn, so that a flood does not keep other sources waiting.
constexpr int kAcceptsPerTurn = 16;

/// Pause after accept() has failed for want of something.
constexpr uint64_t kRetryNs = 100 * kNsPerMs;

}  // namespace

Result<TcpSocket> bind_port(const sockaddr_storage& address, const BindOptions& options) {
  auto socket = TcpSocket::open(address.ss_family);
  if (!socket) return socket;
  socket->set_reuse_address(true);
  if (address.ss_family == AF_INET6) socket->set_v6_only(options.v6_only);
  socket->set_tos(options.tos);
  if (int error = socket->bind(address)) return Error{error};
  return socket;
}

Listener::Listener(Engine& engine, TcpSocket bound, std::weak_ptr<ListenerOwner> owner)
    : engine_(engine),
      local_(bound.local_address()),
      socket_(std::move(bound)),
      owner_(std::move(owner)) {}

Listener::~Listener() { close(); }

Result<std::shared_ptr<Listener>> Listener::start(Engine& engine, TcpSocket bound, int backlog,
                                                  std::weak_ptr<ListenerOwner> owner) {
  constexpr int kMost = kMaxBacklog;
  engine.ensure_helper_thread();
  std::shared_ptr<Listener> listener(new Listener(engine, std::move(bound), std::move(owner)));
  const std::lock_guard guard(listener->mutex_);
  TcpSocket& socket = listener->socket_;
  // The kernel's queue is only a waiting room: who is refused for a full backlog is decided above.
  if (int error = socket.listen(backlog <= 0 ? kMost : std::clamp(backlog, 16, kMost)))
    return Error{error};
  auto ticket = engine.progress().add(*listener, socket.fd(), EPOLLIN | EPOLLET);
  if (!ticket) return Error{ticket.error()};
  listener->ticket_ = *ticket;
  return listener;
}

void Listener::close() {
  std::unordered_set<std::shared_ptr<Connection>> dropped;
  {
    const std::lock_guard guard(mutex_);
    engine_.progress().remove(std::exchange(ticket_, 0));
    socket_.close();
    owner_.reset();
    dropped.swap(half_open_);
  }
  for (const auto& connection : dropped) connection->abort();
}

bool Listener::accept_one() {
  const std::lock_guard guard(mutex_);
  if (!socket_) return false;
  starved_ = half_open_.size() >= kMaxHalfOpen;
  if (starved_) return false;
  auto accepted = socket_.accept();
  if (!accepted) {
    const int error = accepted.error();
    // The connection died in the queue: the next one may be well.
    if (error == ECONNABORTED || error == EPROTO) return true;
    if (error != EAGAIN) {
      log_event("listener: accept failed, errno %d", error);
      engine_.progress().set_deadline(*this, now_ns() + kRetryNs);  // out of fds or memory
    }
    return false;
  }
  if (auto connection = Connection::incoming(engine_, std::move(*accepted), weak_listener()))
    half_open_.insert(std::move(connection));
  return true;
}

bool Listener::ready(uint32_t /*events*/) {
  for (int i = 0; i < kAcceptsPerTurn; ++i)
    if (!accept_one()) return false;
  return true;
}

void Listener::deadline_passed() { engine_.progress().revisit(*this); }

void Listener::half_open_done(std::shared_ptr<Connection> connection, bool complete) {
  std::shared_ptr<ListenerOwner> owner;
  bool starved;
  {
    const std::lock_guard guard(mutex_);
    half_open_.erase(connection);
    owner = owner_.lock();
    starved = starved_;
  }
  if (complete && (owner == nullptr || !owner->connection_requested(connection)))
    (void)connection->reject({});
  if (starved) engine_.progress().revisit(*this);
}

}  // namespace uwarp
