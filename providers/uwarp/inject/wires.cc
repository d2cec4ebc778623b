// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "inject/wires.h"

#include <algorithm>
#include <iterator>

namespace uwarp {

Wires::Wires(const FaultPlan& plan) {
  std::copy_if(plan.rules.begin(), plan.rules.end(), std::back_inserter(rules_),
               [](const FaultRule& rule) { return rule.kind == FaultKind::kWire; });
}

std::shared_ptr<WireLink> Wires::between(const AddressBytes& own, const AddressBytes& peer) {
  const auto rule = std::find_if(rules_.begin(), rules_.end(), [&](const FaultRule& one) {
    return !one.peer || *one.peer == peer;
  });
  if (rule == rules_.end()) return nullptr;
  const auto number = static_cast<size_t>(rule - rules_.begin());
  const Lock guard(mutex_);
  for (const Made& made : made_)
    if (made.rule == number && made.own == own) return made.link;
  return made_.emplace_back(Made{number, own, std::make_shared<WireLink>(rule->wire)}).link;
}

}  // namespace uwarp
