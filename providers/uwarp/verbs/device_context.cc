// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/device_context.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/mutex.h"
#include "base/settings.h"
#include "connect/connect_context.h"
#include "connect/endpoint.h"
#include "engine/engine.h"
#include "events/raw_fds.h"
#include "os/clock.h"
#include "rdma_cm/rdma_cm_node.h"
#include "sysfs/sysfs_tree.h"
#include "verbs/queue_pair.h"
#include "verbs/region.h"

namespace uwarp {

namespace {

/// Where libibverbs takes a port number from.
const void* port_element() { return reinterpret_cast<const void*>(uintptr_t{1}); }

}  // namespace

std::shared_ptr<DeviceFaults> DeviceFaults::make(DeviceContext& device) {
  if (ProcessFaults::instance() == nullptr) return nullptr;
  auto made = std::make_shared<DeviceFaults>(device);
  const uint64_t now = now_ns();
  const Lock guard(made->due_mutex_);
  for (const FaultRule& rule : ProcessFaults::instance()->plan().rules)
    if (rule.when == FaultRule::When::kAt) made->due_.push_back({now + rule.at_ns, rule});
  made->set_deadline_locked();
  return made;
}

DeviceFaults::DeviceFaults(DeviceContext& device) : engine_(device.engine()), device_(&device) {}

void DeviceFaults::stop() {
  const Lock guard(mutex_);
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
  const Lock guard(due_mutex_);
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
  const Lock guard(due_mutex_);
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
  const Lock guard(mutex_);
  for (Due due; device_ != nullptr && take_due(due);) carry_out_locked(due);
  return false;
}

void DeviceFaults::deadline_passed() { (void)ready(0); }

void DeviceFaults::carry_out_locked(const Due& due) {
  if (due.port_up) return set_port_locked(false);
  if (due.rule.kind == FaultKind::kPortDown) {
    set_port_locked(true);
    if (due.rule.for_ns == 0) return;
    const Lock guard(due_mutex_);
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

PortEvents::PortEvents(DeviceContext& device)
    : device_(&device), last_(device.shared_device()), running_(last_->running) {
  device.engine().stat_page().note_link(last_->verbs_name, running_);
}

void PortEvents::begin(const NetDeviceTable& devices) {
  const Lock guard(mutex_);
  const auto now = devices.by_verbs_name(last_->verbs_name);
  if (now == nullptr || now->ifindex != last_->ifindex) return;
  last_ = now;
  running_ = now->running;
}

void PortEvents::stop() {
  const Lock guard(mutex_);
  device_ = nullptr;
}

void PortEvents::net_changed(const NetDeviceTable& devices) {
  // First, because a listener that learns of an address looks for it in the tree.
  update_sysfs_tree(devices);
  // Ids before queue pairs: an id reports the removal, not the end of its connection.
  rdma_cm_netdevs_changed(devices);
  const Lock guard(mutex_);
  if (device_ == nullptr) return;
  if (!devices.has_netdev(last_->ifindex)) {
    log_event("%s: its network device is gone; destroy the objects on it and close it",
              last_->verbs_name.c_str());
    device_->engine().stat_page().note_link(last_->verbs_name, false);
    device_->remove();
    device_ = nullptr;
    return;
  }
  const auto now = devices.by_verbs_name(last_->verbs_name);
  // A netdev of the same name is another one all the same.
  const bool same = now != nullptr && now->ifindex == last_->ifindex;
  // One that exists without an address is out of the table: its port is down.
  const bool running = same && now->running;
  if (same && now->gids != last_->gids) device_->raise(IBV_EVENT_GID_CHANGE, port_element());
  if (running != running_)
    device_->raise(running ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, port_element());
  device_->engine().stat_page().note_link(last_->verbs_name, running);
  running_ = running;
  if (same) last_ = now;
}

DeviceContext::DeviceContext(ibv_context* base, std::shared_ptr<const NetDevice> device,
                             std::shared_ptr<EventChannel> async)
    : base_(base),
      device_(std::move(device)),
      engine_(Engine::instance()),
      async_(std::move(async)),
      port_events_(std::make_shared<PortEvents>(*this)),
      faults_(DeviceFaults::make(*this)) {
  try {
    engine_.net_watch().add(port_events_);
    // The table may be from before the watch.
    port_events_->begin(*refresh_net_devices());
  } catch (...) {
    stop_watching();
    throw;
  }
}

void DeviceContext::stop_watching() {
  port_events_->stop();
  if (faults_ != nullptr) faults_->stop();
}

int DeviceContext::open(ibv_context* context) {
  auto* tail = reinterpret_cast<uwarp_context_tail*>(context + 1);
  tail->context = nullptr;
  if (!ProcessFaults::setting_valid() || !settings().profile_valid) return EINVAL;
  if (!Engine::instance().context().tls.error().empty()) return EACCES;
  const char* name = context->device->name;
  std::shared_ptr<const NetDevice> device = net_devices()->by_verbs_name(name);
  if (device == nullptr) device = refresh_net_devices()->by_verbs_name(name);
  if (device == nullptr) return ENODEV;
  auto async = EventChannel::create();
  if (!async) return async.error();
  OwnedFd reader(async->reader_fd, close_quietly);
  // libibverbs and applications divide by it.
  cpu_set_t cpus;
  const bool known = sched_getaffinity(0, sizeof cpus, &cpus) == 0;
  context->num_comp_vectors = known ? std::max(CPU_COUNT(&cpus), 1) : 1;
  tail->context = new DeviceContext(context, std::move(device), std::move(async->channel));
  // libibverbs closes async_fd with the context; without one it would ask the kernel for it.
  context->async_fd = reader.take();
  log_event("%s: opened", name);
  return 0;
}

DeviceContext::~DeviceContext() {
  log_event("%s: closed", device_->verbs_name.c_str());
  stop_watching();
  for (VerbsQp* qp : queue_pairs_) qp->end();
  for (VerbsMr* mr : regions_) {
    engine_.remove_region(*mr->region);
    if (alive()) mr->slot = {};
  }
}

uint32_t DeviceContext::take_back_events(const void* element, const DeliveredCount& delivered) {
  const size_t unread = async_->remove_if([&](EventChannel::Record record) {
    AsyncEventRecord event;
    if (record.size() != sizeof event) return false;
    std::memcpy(&event, record.data(), sizeof event);
    return event.element == reinterpret_cast<uintptr_t>(element);
  });
  return delivered.load(std::memory_order_relaxed) - static_cast<uint32_t>(unread);
}

std::vector<std::shared_ptr<Endpoint>> DeviceContext::endpoints() {
  std::vector<std::shared_ptr<Endpoint>> all;
  const Lock guard(mutex_);
  for (const VerbsQp* qp : queue_pairs_)
    if (qp->endpoint != nullptr) all.push_back(qp->endpoint);
  return all;
}

void DeviceContext::fail_queue_pairs() {
  const Lock guard(mutex_);
  for (VerbsQp* qp : queue_pairs_) qp->fail();
}

void DeviceContext::remove() {
  removed_.store(true, std::memory_order_release);
  fail_queue_pairs();
  raise(IBV_EVENT_DEVICE_FATAL, nullptr);
}

void DeviceContext::add(VerbsQp* qp) {
  {
    const Lock guard(mutex_);
    queue_pairs_.insert(qp);
  }
  // The device may have gone since the call began.
  if (removed()) qp->fail();
}

bool DeviceContext::take_place(std::atomic<uint32_t>& count, uint32_t limit) {
  if (count.fetch_add(1, std::memory_order_relaxed) < limit) return true;
  count.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

}  // namespace uwarp
