// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/port_events.h"

#include "base/log.h"
#include "kernel/rdma_cm_node.h"
#include "kernel/sysfs_tree.h"
#include "verbs/device_context.h"

namespace uwarp {
namespace {

/// Where libibverbs takes a port number from.
const void* port_element() { return reinterpret_cast<const void*>(uintptr_t{1}); }

}  // namespace

PortEvents::PortEvents(DeviceContext& device)
    : device_(&device), last_(device.shared_device()), running_(last_->running) {
  device.engine().stat_page().note_link(last_->verbs_name, running_);
}

void PortEvents::begin(const NetDeviceTable& devices) {
  const std::lock_guard guard(mutex_);
  const auto now = devices.by_verbs_name(last_->verbs_name);
  if (now == nullptr || now->ifindex != last_->ifindex) return;
  last_ = now;
  running_ = now->running;
}

void PortEvents::stop() {
  const std::lock_guard guard(mutex_);
  device_ = nullptr;
}

void PortEvents::net_changed(const NetDeviceTable& devices) {
  // First, because a listener that learns of an address looks for it in the tree.
  update_sysfs_tree(devices);
  // Ids before queue pairs: an id reports the removal, not the end of its connection.
  rdma_cm_netdevs_changed(devices);
  const std::lock_guard guard(mutex_);
  if (device_ == nullptr) return;
  if (devices.has_netdev(last_->ifindex))
    compare_locked(devices.by_verbs_name(last_->verbs_name));
  else
    remove_locked();
}

void PortEvents::remove_locked() {
  log_event("%s: its network device is gone; destroy the objects on it and close it",
            last_->verbs_name.c_str());
  device_->engine().stat_page().note_link(last_->verbs_name, false);
  device_->remove();
  device_ = nullptr;
}

void PortEvents::compare_locked(const std::shared_ptr<const NetDevice>& now) {
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

}  // namespace uwarp
