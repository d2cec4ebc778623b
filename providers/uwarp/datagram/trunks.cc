// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "datagram/trunks.h"

#include <array>
#include <cerrno>
#include <new>
#include <utility>

#include "base/log.h"
#include "connect/connection.h"
#include "connect/held_call.h"
#include "connect/rendezvous_message.h"
#include "connect/rendezvous_port.h"
#include "datagram/datagram_endpoint.h"
#include "datagram/destination.h"
#include "datagram/trunk.h"

namespace uwarp {

std::shared_ptr<Trunk> Trunks::trunk_locked(const TrunkKey& key,
                                            const std::shared_ptr<const NetDevice>& device) {
  if (trunks_.size() >= kMostIdle)
    std::erase_if(
        trunks_, [](const auto& one) { return one.second.use_count() == 1 && one.second->idle(); });
  std::shared_ptr<Trunk>& place = trunks_[key];
  if (place == nullptr) place = std::make_shared<Trunk>(*this, key, device);
  return place;
}

std::shared_ptr<DatagramWay> Trunks::way_to(Destination& to, Qpn number,
                                            const DatagramEndpoint& from) {
  const uint16_t port = port_of_number(number);
  if (auto trunk = to.recent(port)) return trunk;
  const std::lock_guard lock(mutex_);
  auto trunk = trunk_locked({to.own, to.peer, port}, from.shared_device());
  to.remember(port, trunk);
  return trunk;
}

void Trunks::endpoint_made() {
  const std::lock_guard lock(mutex_);
  ++endpoint_count_;
  context_.trunk_calls.store(this, std::memory_order_release);
}

void Trunks::endpoint_gone() {
  visit_lines([](TrunkLine& line) { line.forget_endpoints(); });
  std::map<TrunkKey, std::shared_ptr<Trunk>> trunks;  // destroyed after the lock is released
  {
    const std::lock_guard lock(mutex_);
    if (--endpoint_count_ != 0) return;
    trunks.swap(trunks_);
  }
  close_lines();
}

// Without a lock, and without memory.
template <typename Visit>
void Trunks::visit_lines(Visit visit) {
  std::array<std::shared_ptr<TrunkLine>, 64> some;
  TrunkLine* last = nullptr;
  for (size_t count = some.size(); count == some.size();) {
    count = 0;
    {
      const std::lock_guard lock(mutex_);
      for (auto at = lines_.upper_bound(last); at != lines_.end() && count != some.size(); ++at) {
        last = at->first;
        some[count++] = at->second;
      }
    }
    for (size_t i = 0; i < count; ++i) visit(*std::exchange(some[i], nullptr));
  }
}

void Trunks::keep(const std::shared_ptr<TrunkLine>& line) {
  const std::lock_guard lock(mutex_);
  lines_.emplace(line.get(), line);
}

void Trunks::let_go(TrunkLine& line) {
  std::shared_ptr<TrunkLine> gone;  // after the lock
  const std::lock_guard lock(mutex_);
  const auto found = lines_.find(&line);
  if (found == lines_.end()) return;
  gone = std::move(found->second);
  lines_.erase(found);
}

// A line that is not open yet closes itself once it is: in_use() is false then.
void Trunks::close_lines() {
  visit_lines([](TrunkLine& line) { line.close(); });
}

void Trunks::set_ending(bool on) {
  const std::lock_guard lock(mutex_);
  ending_ = on;
}

void Trunks::begin() {
  set_ending(true);
  close_lines();
}

bool Trunks::done() {
  const std::lock_guard lock(mutex_);
  return lines_.empty();
}

void Trunks::trunk_called(std::shared_ptr<Connection> request, const RendezvousCall& call) {
  const IpAddress own = ip_of(request->local_address());
  const auto device = net_devices()->by_address(own);
  const TrunkKey key{own, ip_of(request->remote_address()), port_of_number(call.source)};
  std::shared_ptr<Trunk> trunk;
  RendezvousVerdict verdict = RendezvousVerdict::kAccepted;
  {
    const std::lock_guard lock(mutex_);
    if (call.psn != kTrunkVersion) {
      verdict = RendezvousVerdict::kUnknownVersion;
    } else if (device == nullptr || endpoint_count_ == 0 || ending_) {
      verdict = RendezvousVerdict::kNoSuchQp;
    } else if (lines_.size() >= kMostLines) {
      verdict = RendezvousVerdict::kTooMany;
    } else {
      trunk = trunk_locked(key, device);
    }
  }
  if (trunk == nullptr) return refuse(*request, verdict);
  int error = ENOMEM;
  try {
    const auto line = TrunkLine::answer(*this, key, *device, request, trunk);
    if (line) return;
    error = line.error();
  } catch (const std::bad_alloc&) {
  }
  log_event("datagrams: cannot accept a peer's connection, errno %d", error);
  refuse(*request, RendezvousVerdict::kTooMany);
}

}  // namespace uwarp
