// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Accepting TCP connections up to their MPA Request.
#include "connect/listener.h"

#include <sys/epoll.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "base/limits.h"
#include "base/log.h"
#include "base/settings.h"
#include "connect/connect_context.h"
#include "os/clock.h"
#include "os/collapsed_log.h"

namespace uwarp {
namespace {

/// Connections accepted per turn, so that a flood does not keep other sources waiting.
constexpr int kAcceptsPerTurn = 16;

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
  const std::lock_guard guard(listener->mutex_);
  use_port(bound);
  bound.set_keepalive(Connection::usual_peer_timeout_ms());  // what is accepted takes it over
  // What the application's backlog refuses is refused by the owner, with an answer. The kernel's
  // queue is as long as it can be: while it is full the kernel ignores SYNs, and a peer repeats its
  // own after a second.
  if (int error = bound.listen(kMaxBacklog)) return Error{error};
  auto ticket = context.progress.add(*listener, bound.fd(), EPOLLIN | EPOLLET);
  if (!ticket) return Error{ticket.error()};
  listener->ticket_ = *ticket;
  listener->socket_ = std::move(bound);
  return listener;
}

void Listener::close() {
  decltype(half_open_.clear()) dropped;
  {
    const std::lock_guard guard(mutex_);
    context_.progress.remove(std::exchange(ticket_, 0));
    socket_.close();
    owner_.reset();
    dropped = half_open_.clear();
  }
  for (const auto& place : dropped) place.holder->abort();
}

bool Listener::accept_one() {
  std::shared_ptr<Connection> displaced;  // ended after the lock
  {
    const std::lock_guard guard(mutex_);
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
    try_again_later_locked();  // out of fds or memory
  }
  return false;
}

// The caller is the thread that progresses, which could not handle an exception.
std::shared_ptr<Connection> Listener::accepted_locked(TcpSocket socket,
                                                      const sockaddr_storage& peer) {
  try {
    auto connection = Connection::incoming(context_, std::move(socket), peer, weak_listener());
    if (connection == nullptr) return nullptr;
    return half_open_.enter(std::move(connection), ip_of(peer), kMaxHalfOpen).value_or(nullptr);
  } catch (const std::bad_alloc&) {
    log_event("listener: no memory for a connection, which is closed");
    return nullptr;
  }
}

void Listener::try_again_later_locked() {
  context_.progress.set_deadline(*this, now_ns() + kRetryNs);
}

bool Listener::ready(uint32_t /*events*/) {
  for (int i = 0; i < kAcceptsPerTurn; ++i)
    if (!accept_one()) return false;
  return true;
}

void Listener::deadline_passed() { context_.progress.revisit(*this); }

void Listener::half_open_done(const std::shared_ptr<Connection>& connection, bool complete) {
  std::shared_ptr<ListenerOwner> owner;
  {
    const std::lock_guard guard(mutex_);
    half_open_.leave(connection);
    owner = owner_.lock();
  }
  if (complete && (owner == nullptr || !taken(*owner, connection))) (void)connection->reject({});
}

}  // namespace uwarp
