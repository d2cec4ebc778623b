// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/completion.h"

#include <cerrno>

#include "base/limits.h"
#include "base/serial_numbers.h"
#include "base/settings.h"
#include "os/clock.h"
#include "verbs/boundary.h"
#include "verbs/status_map.h"

namespace uwarp {
namespace {

/// How long a queue that was armed with completions in it waits for a poll before it raises its
/// event. Longer than a thread without a core takes from arming to polling: perftest's -e fails on
/// an event without completions. So long sleeps a thread that waits elsewhere than at the channel.
constexpr uint32_t kArmedLateUs = 100'000;

CompletionQueueOptions with_slot(CompletionQueueOptions options, CompletionSlot& slot,
                                 uint32_t device, TraceSink* trace) {
  options.trace = trace;
  const SlotChange change(slot.head);
  slot.device = device;
  slot.created_ns = wall_clock_ns();
  slot.head.live.store(1, std::memory_order_relaxed);
  options.slot = &slot;
  return options;
}

}  // namespace

VerbsCq::VerbsCq(DeviceContext& device, uint32_t capacity, std::shared_ptr<EventChannel> channel,
                 CompletionQueueOptions options)
    : object_abi::Cq{},
      device(device),
      engine(device.engine()),
      notifier(*this),
      event_reservation(device.async_channel(), 1),
      moderation(std::make_shared<CompletionTimer>(
          *this, device.engine(), [](VerbsCq& cq) { cq.queue.flush_moderation(); }, 0)),
      armed_late(std::make_shared<CompletionTimer>(
          *this, device.engine(), [](VerbsCq& cq) { cq.events->raise_stored(); }, kArmedLateUs)),
      slot(engine.stat_page()),
      queue(capacity, &notifier,
            with_slot(options, *slot, engine.stat_page().device(device.device().verbs_name),
                      engine.trace())),
      single_threaded(options.single_threaded) {
  if (channel != nullptr)
    events.emplace(std::move(channel), CompletionEventRecord{reinterpret_cast<uintptr_t>(&base)},
                   [this] { queue.raise_stored(); });
}

void CompletionTimer::begin() {
  engine_.progress().set_deadline(*this, now_ns() + uint64_t{period_us_.load()} * 1000);
}

VerbsCq* make_cq(ibv_context* context, int64_t entries, ibv_comp_channel* channel, int64_t vector,
                 CompletionQueueOptions options) {
  static constinit SerialNumbers<uint32_t> handles;
  DeviceContext& device = DeviceContext::of(context);
  if (const int error = device.refusal()) return fail(error);
  if (entries < 1 || entries > settings().adapter.max_cqe) return fail(EINVAL);
  if (vector < 0 || vector >= context->num_comp_vectors) return fail(EINVAL);
  std::shared_ptr<EventChannel> events;
  if (channel != nullptr) {
    events = event_channel_of(channel->fd);
    if (events == nullptr || channel->context != context) return fail(EBADF);
  }
  auto cq =
      std::make_unique<VerbsCq>(device, static_cast<uint32_t>(entries), std::move(events), options);
  if (!DeviceContext::take_place(device.cq_count, settings().adapter.max_cq)) return fail(ENOMEM);
  cq->give_handle(context, handles.next());
  cq->base.cqe = static_cast<int>(cq->queue.capacity());
  return cq.release();
}

ibv_cq* create_cq(ibv_context* context, int entries, ibv_comp_channel* channel, int vector) {
  VerbsCq* cq = make_cq(context, entries, channel, vector, {});
  return cq != nullptr ? &cq->base : nullptr;
}

int resize_cq(ibv_cq* base, int entries) {
  VerbsCq& cq = VerbsCq::of(base, AskedBy::kWrite);
  if (const int error = cq.device.refusal()) return error;
  if (entries < 1 || static_cast<uint32_t>(entries) > settings().adapter.max_cqe) return EINVAL;
  if (int error = cq.queue.resize(static_cast<uint32_t>(entries))) return error;
  base->cqe = static_cast<int>(cq.queue.capacity());
  return 0;
}

int modify_cq(ibv_cq* base, ibv_modify_cq_attr* attr) {
  VerbsCq& cq = VerbsCq::of(base, AskedBy::kWrite);
  if (const int error = cq.device.refusal()) return error;
  if (attr->attr_mask != IBV_CQ_ATTR_MODERATE) return EINVAL;
  // A count without a period could keep the last completions of a burst for ever.
  const bool on = attr->moderate.cq_period != 0;
  cq.moderation->set_period(attr->moderate.cq_period);
  cq.queue.moderate(on ? attr->moderate.cq_count : 0);
  return 0;
}

int destroy_cq(ibv_cq* base) {
  VerbsCq& cq = VerbsCq::of(base);
  if (!cq.device.alive()) return 0;
  if (cq.users.load(std::memory_order_acquire) != 0) return EBUSY;
  cq.moderation->stop();
  cq.armed_late->stop();
  const uint32_t delivered = cq.events ? cq.events->stop() : 0;
  const uint32_t async_delivered = cq.device.take_back_events(&cq.base, cq.async_events);
  wait_acknowledged(cq.base, cq.base.comp_events_completed, delivered);
  wait_acknowledged(cq.base, cq.base.async_events_completed, async_delivered);
  --cq.device.cq_count;
  delete &cq;
  return 0;
}

int poll_cq(ibv_cq* base, int count, ibv_wc* completions) {
  if (count <= 0) [[unlikely]]
    return count == 0 ? 0 : -EINVAL;
  return guarded([&] {
    VerbsCq& cq = VerbsCq::unchecked(base);
    auto* out = reinterpret_cast<WorkCompletion*>(completions);  // same layout: status_map.h
    if (!cq.engine.alive()) [[unlikely]]
      return cq.queue.poll(out, count);
    Poller::transmit_waiting(cq.queue);
    if (const int found = cq.queue.poll(out, count); found != 0) return found;
    // A thread that polls an empty queue drives the sockets.
    cq.engine.poller().poll(cq.queue);
    return cq.queue.poll(out, count);
  });
}

int req_notify_cq(ibv_cq* base, int solicited_only) {
  VerbsCq& cq = VerbsCq::of(base, AskedBy::kWrite);
  if (!cq.engine.alive()) [[unlikely]]
    return ENODEV;
  Poller::transmit_waiting(cq.queue);
  if (cq.queue.arm(solicited_only != 0) && cq.events && cq.events->armed_late())
    cq.armed_late->begin();
  if (cq.device.faults() != nullptr && ProcessFaults::injected(FaultKind::kCqEvent)) [[unlikely]]
    cq.queue.raise_armed();
  cq.engine.progress().note_sleep();
  return 0;
}

void cq_event(ibv_cq* base) {
  VerbsCq& cq = VerbsCq::unchecked(base);
  if (cq.events) cq.events->record_read();
}

}  // namespace uwarp
