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

size_t EndpointTable::take_some(Qpn& next, std::span<std::shared_ptr<Endpoint>> some) {
  const std::lock_guard guard(mutex_);
  size_t count = 0;
  for (auto at = endpoints_.lower_bound(next); at != endpoints_.end() && count != some.size();
       ++at) {
    next.value = at->first.value + 1;
    if (some[count] = at->second.lock(); some[count] != nullptr) ++count;
  }
  return count;
}

}  // namespace uwarp
