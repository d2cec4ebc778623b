// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Looking endpoints up.
#include "connect/endpoint_table.h"

#include <utility>

#include "connect/endpoint.h"

namespace uwarp {

void EndpointTable::enter(Qpn number, std::weak_ptr<Endpoint> endpoint) {
  const std::lock_guard guard(mutex_);
  endpoints_[number] = std::move(endpoint);
}

void EndpointTable::leave(Qpn number) {
  const std::lock_guard guard(mutex_);
  endpoints_.erase(number);
}

std::shared_ptr<Endpoint> EndpointTable::find(Qpn number) {
  const std::lock_guard guard(mutex_);
  const auto found = endpoints_.find(number);
  return found == endpoints_.end() ? nullptr : found->second.lock();
}

std::vector<std::shared_ptr<Endpoint>> EndpointTable::in_domains(const ProtectionDomain* one,
                                                                 const ProtectionDomain* other) {
  std::vector<std::shared_ptr<Endpoint>> live;
  const std::lock_guard guard(mutex_);
  live.reserve(endpoints_.size());
  for (const auto& [number, weak] : endpoints_) {
    auto endpoint = weak.lock();
    if (endpoint == nullptr) continue;
    const ProtectionDomain* domain = endpoint->qp().config().domain;
    if (domain == one || domain == other) live.push_back(std::move(endpoint));
  }
  return live;
}

}  // namespace uwarp
