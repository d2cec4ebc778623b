// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "inject/process_faults.h"

#include <memory>
#include <string>

#include "base/log.h"
#include "base/mutex.h"
#include "base/process_own.h"
#include "base/settings.h"

namespace uwarp {
namespace {

/// The setting as it is parsed, and what it has counted.
struct Setting {
  Setting() {
    if (settings().fault.empty()) return;
    std::string error;
    FaultPlan plan = FaultPlan::parse(settings().fault, error);
    valid = error.empty();
    if (!valid)
      complain_on_stderr("uwarp: UWARP_FAULT: " + error + "; no device can be opened");
    else if (!plan.rules.empty())
      faults = std::make_unique<ProcessFaults>(std::move(plan));
  }

  bool valid = true;
  std::unique_ptr<ProcessFaults> faults;
};

ProcessOwn<Setting> setting;

}  // namespace

ProcessFaults::ProcessFaults(FaultPlan plan) : plan_(std::move(plan)), wires_(plan_) {
  for (size_t i = 0; i < plan_.rules.size(); ++i)
    if (plan_.rules[i].kind >= FaultKind::kCqEvent && plan_.rules[i].kind != FaultKind::kWire)
      counters_.emplace_back(plan_, i, 0);
}

ProcessFaults* ProcessFaults::instance() { return setting.get().faults.get(); }

bool ProcessFaults::setting_valid() { return setting.get().valid; }

uint32_t ProcessFaults::next_queue_pair() {
  const Lock guard(mutex_);
  return ++queue_pairs_;
}

bool ProcessFaults::acts(FaultKind kind) {
  bool acts = false;
  const Lock guard(mutex_);
  for (FaultCounter& counter : counters_) {
    if (counter.rule().kind != kind || !counter.count()) continue;
    acts = true;
    log_event("fault: %s, number %llu", name_of(kind),
              static_cast<unsigned long long>(counter.counted()));
  }
  return acts;
}

bool asks_for_crc() {
  const ProcessFaults* faults = ProcessFaults::instance();
  return settings().crc || (faults != nullptr && faults->plan().has(FaultKind::kCorrupt));
}

}  // namespace uwarp
