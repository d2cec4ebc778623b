// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Accepting TCP connections up to their MPA Request.
#include "cm/listener.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <tuple>

#include "base/limits.h"
#include "base/log.h"
#include "base/settings.h"
#include "cm/engine.h"
#include "io/clock.h"

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
    log_event("listener: no memory for a request");
    return false;
  }
}

}  // namespace

Listener::Listener(Engine& engine, const TcpSocket& bound, std::weak_ptr<ListenerOwner> owner)
    : engine_(engine), local_(bound.local_address()), owner_(std::move(owner)) {}

Listener::~Listener() { close(); }

Result<std::shared_ptr<Listener>> Listener::start(Engine& engine, TcpSocket& bound, int backlog,
                                                  std::weak_ptr<ListenerOwner> owner) {
  constexpr int kMost = kMaxBacklog;
  // Who waits for a connection may not look before there is one.
  if (int error = engine.ensure_helper_thread()) return Error{error};
  std::shared_ptr<Listener> listener(new Listener(engine, bound, std::move(owner)));
  const std::lock_guard guard(listener->mutex_);
  use_port(bound);
  bound.set_keepalive(Connection::usual_peer_timeout_ms());  // what is accepted takes it over
  // The kernel's queue is only a waiting room: who is refused for a full backlog is decided above.
  if (int error = bound.listen(backlog <= 0 ? kMost : std::clamp(backlog, 16, kMost)))
    return Error{error};
  auto ticket = engine.progress().add(*listener, bound.fd(), EPOLLIN | EPOLLET);
  if (!ticket) return Error{ticket.error()};
  listener->ticket_ = *ticket;
  listener->socket_ = std::move(bound);
  return listener;
}

void Listener::close() {
  std::unordered_map<std::shared_ptr<Connection>, HalfOpen> dropped;
  {
    const std::lock_guard guard(mutex_);
    engine_.progress().remove(std::exchange(ticket_, 0));
    socket_.close();
    owner_.reset();
    dropped.swap(half_open_);
  }
  for (const auto& [connection, half_open] : dropped) connection->abort();
}

bool Listener::accept_one() {
  std::shared_ptr<Connection> crowding;  // ended after the lock
  {
    const std::lock_guard guard(mutex_);
    if (!socket_) return false;
    starved_ = half_open_.size() >= kMaxHalfOpen;
    if (starved_ && (crowding = crowding_locked()) == nullptr) {
      engine_.progress().set_deadline(*this, now_ns() + kCrowdingNs);
      return false;
    }
    sockaddr_storage peer;
    auto accepted = socket_.accept(peer);
    if (!accepted) return accept_failed_locked(accepted.error());
    if (!settings().allow.allows(ip_of(peer).bytes())) {
      log_event("listener: a peer that is not in UWARP_ALLOW");
      accepted->reset();
      return true;
    }
    if (crowding != nullptr) half_open_.erase(crowding);
    starved_ = false;
    accepted_locked(std::move(*accepted), peer);
  }
  if (crowding != nullptr) crowding->drop_half_open();
  return true;
}

bool Listener::accept_failed_locked(int error) {
  // The connection died in the queue: the next one may be well.
  if (error == ECONNABORTED || error == EPROTO) return true;
  if (error != EAGAIN) {
    log_event("listener: accept failed, errno %d", error);
    try_again_later_locked();  // out of fds or memory
  }
  return false;
}

// The caller is whichever thread progresses: nobody there could do anything about an exception.
void Listener::accepted_locked(TcpSocket socket, const sockaddr_storage& peer) {
  try {
    if (auto connection = Connection::incoming(engine_, std::move(socket), peer, weak_listener()))
      half_open_.emplace(std::move(connection), HalfOpen{ip_of(peer), now_ns()});
  } catch (const std::bad_alloc&) {
    log_event("listener: no memory for a connection");
  }
}

std::shared_ptr<Connection> Listener::crowding_locked() const {
  using Place = decltype(half_open_)::const_pointer;
  std::array<Place, kMaxHalfOpen> places;
  const auto end = std::transform(half_open_.begin(), half_open_.end(), places.begin(),
                                  [](const auto& place) { return &place; });
  std::sort(places.begin(), end, [](Place a, Place b) {
    return std::tie(a->second.from, a->second.since_ns) <
           std::tie(b->second.from, b->second.since_ns);
  });
  // Each run is one address, the longest silence first.
  auto longest = places.begin(), run = places.begin();
  std::ptrdiff_t most = 0;
  for (auto it = places.begin(); it != end; ++it) {
    if ((*it)->second.from != (*run)->second.from) run = it;
    if (it - run + 1 <= most) continue;
    most = it - run + 1;
    longest = run;
  }
  return now_ns() - (*longest)->second.since_ns < kCrowdingNs ? nullptr : (*longest)->first;
}

void Listener::try_again_later_locked() {
  engine_.progress().set_deadline(*this, now_ns() + kRetryNs);
}

bool Listener::ready(uint32_t /*events*/) {
  for (int i = 0; i < kAcceptsPerTurn; ++i)
    if (!accept_one()) return false;
  return true;
}

void Listener::deadline_passed() { engine_.progress().revisit(*this); }

void Listener::half_open_done(const std::shared_ptr<Connection>& connection, bool complete) {
  std::shared_ptr<ListenerOwner> owner;
  bool starved;
  {
    const std::lock_guard guard(mutex_);
    half_open_.erase(connection);
    owner = owner_.lock();
    starved = starved_;
  }
  if (complete && (owner == nullptr || !taken(*owner, connection))) (void)connection->reject({});
  if (starved) engine_.progress().revisit(*this);
}

}  // namespace uwarp
