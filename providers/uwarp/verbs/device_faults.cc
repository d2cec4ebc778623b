// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/device_faults.h"

#include <algorithm>

#include "base/log.h"
#include "connect/endpoint.h"
#include "os/clock.h"
#include "verbs/device_context.h"

namespace uwarp {
namespace {

const void* port_element() { return reinterpret_cast<const void*>(uintptr_t{1}); }

}  // namespace

std::shared_ptr<DeviceFaults> DeviceFaults::make(DeviceContext& device) {
  if (ProcessFaults::instance() == nullptr) return nullptr;
  auto made = std::make_shared<DeviceFaults>(device);
  made->begin();
  return made;
}

DeviceFaults::DeviceFaults(DeviceContext& device) : engine_(device.engine()), device_(&device) {}

void DeviceFaults::begin() {
  const uint64_t now = now_ns();
  const std::lock_guard guard(due_mutex_);
  for (const FaultRule& rule : ProcessFaults::instance()->plan().rules)
    if (rule.when == FaultRule::When::kAt) due_.push_back({now + rule.at_ns, rule});
  set_deadline_locked();
}

void DeviceFaults::stop() {
  const std::lock_guard guard(mutex_);
  device_ = nullptr;
}

std::shared_ptr<FaultScript> DeviceFaults::make_script(FaultScript::Of of) {
  ProcessFaults& faults = *ProcessFaults::instance();
  auto self = std::static_pointer_cast<DeviceFaults>(shared_from_this());
  auto script =
      std::make_shared<FaultScript>(faults.plan(), faults.next_queue_pair(), std::move(self), of);
  script->set_port_down(port_down());
  return script;
}

void DeviceFaults::fault_acts(uint32_t queue_pair, const FaultRule& rule, uint64_t count) {
  log_event("fault: %s at message %llu of queue pair %u", name_of(rule.kind),
            static_cast<unsigned long long>(count), queue_pair);
  if (rule.kind != FaultKind::kAsyncEvent && rule.kind != FaultKind::kPortDown) return;
  const std::lock_guard guard(due_mutex_);
  try {
    due_.push_back({0, rule});
  } catch (const std::bad_alloc&) {
    return;  // the queue pair that reports it is in the middle of its work
  }
  engine_.progress().revisit(*this);
}

// The deadline is that of what comes first.
void DeviceFaults::set_deadline_locked() {
  uint64_t earliest = 0;
  for (const Due& due : due_)
    if (earliest == 0 || due.at_ns < earliest) earliest = std::max<uint64_t>(due.at_ns, 1);
  engine_.progress().set_deadline(*this, earliest);
}

bool DeviceFaults::take_due(Due& out) {
  const std::lock_guard guard(due_mutex_);
  const uint64_t now = now_ns();
  const auto found =
      std::find_if(due_.begin(), due_.end(), [now](const Due& due) { return due.at_ns <= now; });
  if (found == due_.end()) {
    set_deadline_locked();
    return false;
  }
  out = *found;
  due_.erase(found);
  return true;
}

bool DeviceFaults::ready(uint32_t) {
  const std::lock_guard guard(mutex_);
  for (Due due; device_ != nullptr && take_due(due);) carry_out_locked(due);
  return false;
}

void DeviceFaults::deadline_passed() { (void)ready(0); }

void DeviceFaults::carry_out_locked(const Due& due) {
  if (due.port_up) return set_port_locked(false);
  if (due.rule.kind == FaultKind::kPortDown) {
    set_port_locked(true);
    if (due.rule.for_ns == 0) return;
    const std::lock_guard guard(due_mutex_);
    due_.push_back({now_ns() + due.rule.for_ns, due.rule, true});
    return;
  }
  const auto type = static_cast<ibv_event_type>(due.rule.event);
  const bool fatal = type == IBV_EVENT_DEVICE_FATAL;
  log_event("fault: %u events of type %u", due.rule.burst, due.rule.event);
  if (fatal) device_->fail_queue_pairs();
  for (uint32_t i = 0; i < due.rule.burst; ++i)
    device_->raise(type, fatal ? nullptr : port_element());
}

// A link that is down carries nothing; TCP gets over it.
void DeviceFaults::set_port_locked(bool down) {
  log_event("fault: port %s", down ? "down" : "up");
  port_down_.store(down, std::memory_order_release);
  for (const auto& endpoint : device_->endpoints()) {
    if (FaultScript* script = endpoint->qp().script()) script->set_port_down(down);
    if (!down) endpoint->stream().transmit();
  }
  device_->raise(down ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE, port_element());
}

}  // namespace uwarp
