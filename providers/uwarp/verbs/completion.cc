// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/completion.h"

#include <cerrno>

#include "base/limits.h"
#include "verbs/boundary.h"
#include "verbs/status_map.h"

namespace uwarp {

VerbsCq::VerbsCq(DeviceContext& device, uint32_t capacity, std::shared_ptr<EventChannel> channel)
    : object_abi::Cq{},
      device(device),
      engine(device.engine()),
      notifier(*this),
      queue(capacity, &notifier) {
  if (channel != nullptr)
    events.emplace(std::move(channel), CompletionEventRecord{reinterpret_cast<uintptr_t>(&base)});
}

ibv_cq* create_cq(ibv_context* context, int entries, ibv_comp_channel* channel, int vector) {
  return pointer_verb([&]() -> ibv_cq* {
    static std::atomic<uint32_t> last_handle{0};
    DeviceContext& device = DeviceContext::of(context);
    if (!device.alive()) return fail(ENODEV);
    if (entries < 1 || static_cast<uint32_t>(entries) > kMaxCqe) return fail(EINVAL);
    if (vector < 0 || vector >= context->num_comp_vectors) return fail(EINVAL);
    std::shared_ptr<EventChannel> events;
    if (channel != nullptr) {
      events = event_channel_of(channel->fd);
      if (events == nullptr) return fail(EINVAL);
    }
    auto cq = std::make_unique<VerbsCq>(device, static_cast<uint32_t>(entries), std::move(events));
    if (!DeviceContext::take_place(device.cq_count, kMaxCq)) return fail(ENOMEM);
    cq->base.context = context;
    cq->base.cqe = static_cast<int>(cq->queue.capacity());
    cq->base.handle = ++last_handle;
    return &cq.release()->base;
  });
}

int destroy_cq(ibv_cq* base) {
  VerbsCq& cq = VerbsCq::of(base);
  if (!cq.device.alive()) return 0;
  if (cq.users.load(std::memory_order_acquire) != 0) return EBUSY;
  if (cq.events) cq.events->stop();
  cq.device.take_back_events(&cq.base);
  wait_acknowledged(cq.base, cq.base.comp_events_completed, cq.completion_events);
  wait_acknowledged(cq.base, cq.base.async_events_completed, cq.async_events);
  --cq.device.cq_count;
  delete &cq;
  return 0;
}

int poll_cq(ibv_cq* base, int count, ibv_wc* completions) {
  if (count <= 0) [[unlikely]]
    return count == 0 ? 0 : -EINVAL;
  VerbsCq& cq = VerbsCq::of(base);
  auto* out = reinterpret_cast<WorkCompletion*>(completions);  // same layout: status_map.h
  if (!cq.engine.alive()) [[unlikely]]
    return cq.queue.poll(out, count);
  Engine::transmit_waiting(cq.queue);
  if (const int found = cq.queue.poll(out, count); found != 0) return found;
  // Whoever polls an empty queue drives the sockets.
  cq.engine.poll(cq.queue);
  return cq.queue.poll(out, count);
}

int req_notify_cq(ibv_cq* base, int solicited_only) {
  VerbsCq& cq = VerbsCq::of(base);
  if (!cq.engine.alive()) [[unlikely]]
    return ENODEV;
  Engine::transmit_waiting(cq.queue);
  cq.queue.arm(solicited_only != 0);
  cq.engine.expect_sleep();
  return 0;
}

void cq_event(ibv_cq* base) {
  VerbsCq& cq = VerbsCq::of(base);
  cq.completion_events.fetch_add(1, std::memory_order_acq_rel);
  if (cq.events) cq.events->record_read();
}

}  // namespace uwarp
