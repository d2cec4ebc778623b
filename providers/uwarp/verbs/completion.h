// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_cq: the engine's completion queue, the channel on which its events go to the application, and
// what must be counted so that destroying it is safe.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "host/event_channel.h"
#include "kernel-abi/object_abi.h"
#include "qp/completion_queue.h"
#include "verbs/acknowledgement.h"
#include "verbs/device_context.h"

namespace uwarp {

struct VerbsCq : object_abi::Cq {
  /// `channel` may be null. libibverbs fills in the public part (but for handle and cqe) after the
  /// create operation; no event can be due before, since nothing is armed.
  VerbsCq(DeviceContext& device, uint32_t capacity, std::shared_ptr<EventChannel> channel);

  class Notifier final : public CompletionNotifier {
   public:
    explicit Notifier(VerbsCq& cq) : cq_(cq) {}
    void completion_event(CompletionQueue&) override {
      if (!cq_.events) return;
      cq_.engine.progress().note_wake_up();
      cq_.events->raise();
    }
    void completion_overrun(CompletionQueue&) override {
      cq_.device.raise(IBV_EVENT_CQ_ERR, &cq_.base);
    }

   private:
    VerbsCq& cq_;
  };

  DeviceContext& device;
  Engine& engine;
  Notifier notifier;
  std::optional<CompletionEvents> events;
  DeliveredCount completion_events{0};
  DeliveredCount async_events{0};
  std::atomic<uint32_t> users{0};  // queue pairs; one that uses it for both queues counts twice
  CompletionQueue queue;

  static VerbsCq& of(ibv_cq* cq) {
    return *static_cast<VerbsCq*>(reinterpret_cast<object_abi::Cq*>(cq));
  }
};

// Operations (verbs_table.h).
ibv_cq* create_cq(ibv_context* context, int entries, ibv_comp_channel* channel, int vector);
int destroy_cq(ibv_cq* cq);
int poll_cq(ibv_cq* cq, int count, ibv_wc* completions);
int req_notify_cq(ibv_cq* cq, int solicited_only);
void cq_event(ibv_cq* cq);

}  // namespace uwarp
