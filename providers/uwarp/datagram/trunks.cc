// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "datagram/trunks.h"

#include <sys/resource.h>

#include <array>
#include <cerrno>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "connect/connection.h"
#include "connect/rendezvous.h"
#include "connect/rendezvous_port.h"
#include "datagram/datagram_endpoint.h"
#include "datagram/trunk.h"
#include "os/output_file.h"

namespace uwarp {

namespace {

/// As of now: the application may change its limit.
TrunkPlaces trunk_places() {
  rlimit open_files{};
  (void)getrlimit(RLIMIT_NOFILE, &open_files);
  return TrunkPlaces(open_files.rlim_cur);
}

}  // namespace

std::shared_ptr<Trunk> Trunks::trunk_locked(const TrunkKey& key,
                                            const std::shared_ptr<const NetDevice>& device) {
  if (trunks_.size() >= trim_at_) {
    forget_unused_locked();
    trim_at_ = std::max(kMostIdle, 2 * trunks_.size());  // not for each caller in a crowd
  }
  std::shared_ptr<Trunk>& place = trunks_[key];
  if (place == nullptr || place->device().ifindex != device->ifindex)
    place = std::make_shared<Trunk>(*this, key, device);
  return place;
}

// There is one trunk for a key at a time, because the peer uses one line of each: those that are
// used elsewhere stay.
void Trunks::forget_unused_locked() {
  std::erase_if(trunks_,
                [](const auto& one) { return one.second.use_count() == 1 && one.second->idle(); });
}

std::shared_ptr<DatagramPath> Trunks::path_to(Destination& to, Qpn number,
                                              const DatagramEndpoint& from) {
  const uint16_t own_port = port_of_number(from.number());
  const uint16_t port = port_of_number(number);
  if (auto trunk = to.recent(own_port, port)) return trunk;
  const Lock lock(mutex_);
  auto trunk = trunk_locked({to.own, own_port, to.peer, port}, from.shared_device());
  to.remember(own_port, port, trunk);
  return trunk;
}

void Trunks::endpoint_made() {
  const Lock lock(mutex_);
  ++endpoint_count_;
  context_.trunk_calls.store(this, std::memory_order_release);
}

void Trunks::endpoint_gone() {
  visit_connections([](TrunkConnection& connection) { connection.forget_endpoints(); });
  {
    const Lock lock(mutex_);
    if (--endpoint_count_ != 0) return;
    forget_unused_locked();
  }
  close_connections();
}

// Without a lock, and without memory.
template <typename Visit>
void Trunks::visit_connections(Visit visit) {
  std::array<std::shared_ptr<TrunkConnection>, 64> some;
  TrunkConnection* last = nullptr;
  for (size_t count = some.size(); count == some.size();) {
    count = 0;
    {
      const Lock lock(mutex_);
      for (auto at = connections_.upper_bound(last);
           at != connections_.end() && count != some.size(); ++at) {
        last = at->first;
        some[count++] = at->second;
      }
    }
    for (size_t i = 0; i < count; ++i) visit(*std::exchange(some[i], nullptr));
  }
}

void Trunks::keep(const std::shared_ptr<TrunkConnection>& connection) {
  std::optional<std::shared_ptr<TrunkConnection>> displaced;
  {
    const Lock lock(mutex_);
    connections_.emplace(connection.get(), connection);
    if (connection->is_call()) calls_.insert_or_assign(connection->nonce(), connection);
    if (connection->takes_place())
      displaced =
          unproved_.enter(connection, connection->trunk()->key.peer, trunk_places().unproved);
  }
  if (displaced) (*displaced)->give_up(-ECONNABORTED);
}

void Trunks::proved(const std::shared_ptr<TrunkConnection>& connection) {
  const TrunkKey& key = connection->trunk()->key;
  std::optional<std::shared_ptr<TrunkConnection>> displaced;
  try {
    const Lock lock(mutex_);
    unproved_.leave(connection);
    if (connections_.contains(connection.get()))  // it is not over already
      displaced = proved_.enter(connection, key.peer, trunk_places().proved,
                                [](const auto& one) { return one->idle(); });
  } catch (const std::bad_alloc&) {
    displaced = connection;
  }
  call_back_over(key);
  if (!displaced) return;
  static CollapsedLog log;
  log.event("datagrams: too many processes have connected: the connection to one of %s is closed",
            (*displaced)->trunk()->key.peer.to_string().c_str());
  (*displaced)->give_up(0);  // its descriptor is needed at once, whatever its peer does
}

void Trunks::let_go(TrunkConnection& connection) {
  std::shared_ptr<TrunkConnection> gone;  // after the lock
  const Lock lock(mutex_);
  const auto found = connections_.find(&connection);
  if (found == connections_.end()) return;
  gone = std::move(found->second);
  connections_.erase(found);
  if (connection.takes_place()) {
    unproved_.leave(gone);
    proved_.leave(gone);
  }
  if (const auto call = calls_.find(connection.nonce());
      connection.is_call() && call != calls_.end() && call->second == gone)
    calls_.erase(call);
}

// A connection that is not open yet closes itself once it is: in_use() is false then.
void Trunks::close_connections() {
  visit_connections([](TrunkConnection& connection) { connection.close(); });
}

void Trunks::prove_again() {
  visit_connections(
      [](TrunkConnection& connection) { connection.trunk()->prove_again(connection); });
}

void Trunks::set_ending(bool on) {
  const Lock lock(mutex_);
  ending_ = on;
}

void Trunks::begin() {
  set_ending(true);
  close_connections();
}

bool Trunks::done() {
  const Lock lock(mutex_);
  return connections_.empty();
}

// --- Being called

void Trunks::trunk_called(std::shared_ptr<Connection> request, const RendezvousCall& call) try {
  const sockaddr_storage local = request->local_address();
  const sockaddr_storage remote = request->remote_address();
  const TrunkKey key{ip_of(local), port_of(local), ip_of(remote), port_of_number(call.source)};
  if (call.psn != kTrunkVersion) {
    static CollapsedLog log;
    log.event("datagrams: refused a call of %s: its uwarp has version %u of trunks, this one %u",
              key.peer.to_string().c_str(), call.psn, kTrunkVersion);
    return refuse(*request, RendezvousVerdict::kUnknownVersion);
  }
  const auto nonces = TrunkCall::nonces_of(request->request_parameters().private_data);
  if (key.port == 0 || port_of_number(call.target) != key.own_port || nonces.empty())
    return refuse(*request, RendezvousVerdict::kNotExpected);
  if ((call.capabilities & RendezvousCall::kCallBack) != 0) {
    if (!called_back(key, request)) refuse(*request, RendezvousVerdict::kNotExpected);
    return;
  }
  refuse(*request, called(key, nonces.front()));
} catch (const std::bad_alloc&) {
  request->abort();
}

// The peer is where it says that it is if the process at that port knows the nonce of the call: so
// the port is called. Nothing is kept of the peer's own connection.
RendezvousVerdict Trunks::called(const TrunkKey& key, TrunkNonce nonce) try {
  bool begin;
  {
    const Lock lock(mutex_);
    if (endpoint_count_ == 0 || ending_) return RendezvousVerdict::kNoSuchQp;
    const auto trunk = trunks_.find(key);
    if (trunk != trunks_.end() && trunk->second->holds(nonce)) return RendezvousVerdict::kHeld;
    begin = call_backs_.ask(key, nonce);
  }
  return begin && !call_back(key) ? RendezvousVerdict::kTooMany : RendezvousVerdict::kCallsBack;
} catch (const std::bad_alloc&) {
  return RendezvousVerdict::kTooMany;
}

bool Trunks::call_back(const TrunkKey& key) {
  int error = ENOMEM;
  try {
    const auto device = net_devices()->by_address(key.own);
    if (device != nullptr) {
      Lock lock(mutex_);
      auto trunk = trunk_locked(key, device);
      auto nonces = call_backs_.take(key);
      lock.unlock();
      const bool replaces = trunk->open();
      const auto connection =
          TrunkConnection::call_back(*this, std::move(trunk), std::move(nonces), replaces);
      if (connection) return true;
      error = connection.error();
    } else {
      error = EADDRNOTAVAIL;
    }
  } catch (const std::bad_alloc&) {
  }
  static CollapsedLog log;
  log.event("datagrams: cannot call %s back: errno %d", key.peer.to_string().c_str(), error);
  const Lock lock(mutex_);
  call_backs_.forget(key);
  return false;
}

void Trunks::call_back_over(const TrunkKey& key) {
  {
    const Lock lock(mutex_);
    if (!call_backs_.over(key)) return;
  }
  (void)call_back(key);
}

bool Trunks::called_back(const TrunkKey& key, const std::shared_ptr<Connection>& request) {
  std::shared_ptr<TrunkConnection> call;
  {
    const Lock lock(mutex_);
    for (const TrunkNonce nonce :
         TrunkCall::nonces_of(request->request_parameters().private_data)) {
      const auto found = calls_.find(nonce);
      if (found != calls_.end() && found->second->trunk()->key == key) call = found->second;
    }
  }
  if (call == nullptr || !call->claim()) return false;
  int error = ENOMEM;
  try {
    const auto connection = TrunkConnection::answer(*this, request, call);
    if (connection) return true;
    error = connection.error();
  } catch (const std::bad_alloc&) {
  }
  log_event("datagrams: cannot accept the connection of %s: errno %d", key.peer.to_string().c_str(),
            error);
  call->give_up(-error);
  return false;
}

}  // namespace uwarp
