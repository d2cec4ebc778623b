// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Which wire the streams of this process go over, by the rules of UWARP_FAULT: one link for each
// rule and each address of our own.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "inject/fault_plan.h"
#include "inject/wire.h"

namespace uwarp {

/// Both directions of a link, as they are to us.
struct WireLink {
  explicit WireLink(const WireTerms& terms)
      : out(std::make_shared<Wire>(terms)), in(std::make_shared<Wire>(terms)) {}
  const std::shared_ptr<Wire> out, in;
};

/// Any thread.
class Wires {
 public:
  explicit Wires(const FaultPlan& plan);

  bool any() const { return !rules_.empty(); }
  /// The link between these addresses, by the first rule for that peer; null: there is none. Throws
  /// std::bad_alloc.
  std::shared_ptr<WireLink> between(const AddressBytes& own, const AddressBytes& peer);

 private:
  struct Made {
    size_t rule;
    AddressBytes own;
    std::shared_ptr<WireLink> link;
  };

  std::vector<FaultRule> rules_;
  Mutex mutex_;
  std::vector<Made> made_ GUARDED_BY(mutex_);
};

}  // namespace uwarp
