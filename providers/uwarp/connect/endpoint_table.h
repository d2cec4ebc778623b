// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The endpoints of this process by number.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/ids.h"

namespace uwarp {

class Endpoint;
struct ProtectionDomain;

/// Any thread; its lock is a leaf. Owns none of them.
class EndpointTable {
 public:
  void enter(Qpn number, std::weak_ptr<Endpoint> endpoint);
  void leave(Qpn number);
  /// Null if there is none.
  std::shared_ptr<Endpoint> find(Qpn number);
  /// All in one of two protection domains.
  std::vector<std::shared_ptr<Endpoint>> in_domains(const ProtectionDomain* one,
                                                    const ProtectionDomain* other);

 private:
  std::mutex mutex_;
  std::unordered_map<Qpn, std::weak_ptr<Endpoint>> endpoints_;
};

}  // namespace uwarp
