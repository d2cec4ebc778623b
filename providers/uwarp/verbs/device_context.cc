// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/device_context.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "kernel/raw_fds.h"
#include "verbs/queue_pair.h"
#include "verbs/region.h"

namespace uwarp {

int completion_vector_count() {
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) return 1;
  return std::max(CPU_COUNT(&cpus), 1);
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
  if (!ProcessFaults::setting_valid()) return EINVAL;
  const char* name = context->device->name;
  std::shared_ptr<const NetDevice> device = net_devices()->by_verbs_name(name);
  if (device == nullptr) device = refresh_net_devices()->by_verbs_name(name);
  if (device == nullptr) return ENODEV;
  auto async = EventChannel::create();
  if (!async) return async.error();
  HeldFd reader(async->reader_fd, close_quietly);
  context->num_comp_vectors = completion_vector_count();
  tail->context = new DeviceContext(context, std::move(device), std::move(async->channel));
  // libibverbs closes async_fd with the context; without one it would ask the kernel for it.
  context->async_fd = reader.take();
  log_event("%s: opened", name);
  return 0;
}

DeviceContext::~DeviceContext() {
  log_event("%s: closed", device_->verbs_name.c_str());
  stop_watching();
  for (VerbsQp* qp : queue_pairs_) {
    qp->end();
    qp->endpoint.reset();
    qp->datagrams.reset();
  }
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
  const std::lock_guard guard(mutex_);
  for (const VerbsQp* qp : queue_pairs_)
    if (qp->endpoint != nullptr) all.push_back(qp->endpoint);
  return all;
}

void DeviceContext::fail_queue_pairs() {
  const std::lock_guard guard(mutex_);
  for (VerbsQp* qp : queue_pairs_) qp->fail();
}

void DeviceContext::remove() {
  removed_.store(true, std::memory_order_release);
  fail_queue_pairs();
  raise(IBV_EVENT_DEVICE_FATAL, nullptr);
}

void DeviceContext::add(VerbsQp* qp) {
  {
    const std::lock_guard guard(mutex_);
    queue_pairs_.insert(qp);
  }
  // The device may have gone since the call began.
  if (removed()) qp->fail();
}

void DeviceContext::remove(VerbsQp* qp) {
  const std::lock_guard guard(mutex_);
  queue_pairs_.erase(qp);
}

void DeviceContext::add(VerbsMr* mr) {
  const std::lock_guard guard(mutex_);
  regions_.insert(mr);
}

void DeviceContext::remove(VerbsMr* mr) {
  const std::lock_guard guard(mutex_);
  regions_.erase(mr);
}

bool DeviceContext::take_place(std::atomic<uint32_t>& count, uint32_t limit) {
  if (count.fetch_add(1, std::memory_order_relaxed) < limit) return true;
  count.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

}  // namespace uwarp
