// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "connect/queue_pair_place.h"

#include <cerrno>
#include <new>
#include <utility>

#include "connect/connect_context.h"
#include "connect/rendezvous_port.h"
#include "os/clock.h"

namespace uwarp {

Result<QueuePairPlace> QueuePairPlace::reserve(ConnectContext& context, const NetDevice& device) {
  auto port = context.ports.reserve(context, device);
  if (!port) return Error{port.error()};
  QueuePairPlace place(context, std::move(*port));
  place.slot_ = SlotLease<QueuePairSlot>(context.stat_page);
  return place;
}

QueuePairPlace::QueuePairPlace(QueuePairPlace&& other) noexcept
    : context_(other.context_),
      port_(std::move(other.port_)),
      has_port_(std::exchange(other.has_port_, false)),
      slot_(std::move(other.slot_)) {}

QueuePairPlace::~QueuePairPlace() {
  if (!context_.alive())
    slot_.abandon();
  else if (has_port_)
    give_back();
}

QpConfig QueuePairPlace::complete(QpConfig config) const {
  config.number = number();
  config.slot = slot_.get();
  config.trace = context_.trace;
  return config;
}

void QueuePairPlace::show(const QpConfig& config, const NetDevice& device) {
  const uint32_t index = context_.stat_page.device(device.verbs_name);
  const bool shared = config.shares_receives();
  const SlotChange change(slot_->head);
  slot_->number = number().value;
  slot_->device = index;
  slot_->created_ns = wall_clock_ns();
  slot_->send_depth = config.max_send_wr;
  slot_->receive_depth = shared ? 0 : config.max_recv_wr;
  slot_->send_queue = slot_->receive_queue = kNoSlot;
  slot_->flags = shared ? uint32_t{QueuePairSlot::kSharedReceive} : 0;
  slot_->head.live.store(1, std::memory_order_release);
}

void QueuePairPlace::name_queues(uint32_t send_queue, uint32_t receive_queue) {
  const SlotChange change(slot_->head);
  slot_->send_queue = send_queue;
  slot_->receive_queue = receive_queue;
}

int QueuePairPlace::become_callable() {
  try {
    if (int error = context_.progress.start_helper()) return error;
    return port_.port->listen();
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

void QueuePairPlace::give_back() {
  has_port_ = false;
  context_.ports.give_back(port_);
}

}  // namespace uwarp
