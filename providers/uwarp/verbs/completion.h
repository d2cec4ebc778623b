// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_cq: the engine's completion queue, the channel on which its events go to the application, and
// what must be counted so that destroying it is safe. completion_ex.cc has what ibv_cq_ex adds.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/log.h"
#include "base/mutex.h"
#include "events/event_channel.h"
#include "kernel-abi/object_abi.h"
#include "qp/completion_queue.h"
#include "verbs/acknowledgement.h"
#include "verbs/device_context.h"
#include "verbs/named.h"
#include "verbs/protection_domain.h"

namespace uwarp {

struct VerbsCq;

/// Runs one function of a completion queue when a period is over.
class CompletionTimer final : public Source {
 public:
  using Work = void (*)(VerbsCq& cq);
  CompletionTimer(VerbsCq& cq, Engine& engine, Work work, uint32_t period_us)
      : engine_(engine), work_(work), period_us_(period_us), cq_(&cq) {}
  void set_period(uint32_t microseconds) { period_us_.store(microseconds); }
  /// A period begins, in place of one that is under way. Under any lock of the queue.
  void begin();
  /// The queue is being destroyed.
  void stop() {
    const Lock guard(mutex_);
    cq_ = nullptr;
  }

  bool ready(uint32_t) override { return false; }
  void deadline_passed() override {
    const Lock guard(mutex_);
    if (cq_ != nullptr) work_(*cq_);
  }

 private:
  Engine& engine_;
  const Work work_;
  std::atomic<uint32_t> period_us_;
  Mutex mutex_;
  VerbsCq* cq_ GUARDED_BY(mutex_);
};

struct VerbsCq : object_abi::Cq, Named<VerbsCq, object_abi::Cq, ibv_cq> {
  /// `channel` may be null. libibverbs fills in the public part (but for handle and cqe) after the
  /// create operation; no event can be due before, since nothing is armed.
  VerbsCq(DeviceContext& device, uint32_t capacity, std::shared_ptr<EventChannel> channel,
          CompletionQueueOptions options = {});

  ~VerbsCq() {
    if (parent != nullptr) parent->object_gone();
  }

  class Notifier final : public CompletionNotifier {
   public:
    explicit Notifier(VerbsCq& cq) : cq_(cq) {}
    void completion_event() override {
      if (!cq_.events) return;
      cq_.engine.progress().note_wake_up();
      cq_.events->raise();
    }
    void completion_overrun() override {
      log_event(
          "completion queue %u of %s overran: %u completions wait to be polled and it holds no "
          "more. "
          "Its queue pairs end. Poll it sooner or create it with more entries",
          cq_.base.handle, cq_.device.device().verbs_name.c_str(), cq_.queue.capacity());
      cq_.device.raise(IBV_EVENT_CQ_ERR, &cq_.base, cq_.async_events);
    }
    void completion_moderated() override { cq_.moderation->begin(); }

   private:
    VerbsCq& cq_;
  };

  DeviceContext& device;
  Engine& engine;
  Notifier notifier;
  std::optional<CompletionEvents> events;
  const EventReservation event_reservation;  // CQ_ERR
  DeliveredCount async_events{0};
  std::atomic<uint32_t> users{0};  // queue pairs; one that uses it for both queues counts twice
  /// Periods of its moderation, none by default.
  const std::shared_ptr<CompletionTimer> moderation;
  /// Raises the event of a queue that was armed with completions in it, if these are still there.
  const std::shared_ptr<CompletionTimer> armed_late;
  VerbsPd* parent = nullptr;  // domain that it was made on, which must stay; or null
  const SlotLease<CompletionSlot> slot;
  CompletionQueue queue;

  // The completion that an ibv_cq_ex shows between start_poll and end_poll.
  const bool single_threaded;
  Mutex poll_mutex;  // held in between, unless single_threaded
  WorkCompletion shown = {};
  CompletionTime shown_time;
};

/// Makes a queue for one of the create operations: null and errno as these fail.
VerbsCq* make_cq(ibv_context* context, int64_t entries, ibv_comp_channel* channel, int64_t vector,
                 CompletionQueueOptions options);

}  // namespace uwarp
