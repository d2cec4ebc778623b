// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_srq: a receive queue for several queue pairs.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>

#include "kernel-abi/object_abi.h"
#include "qp/receive_queue.h"
#include "verbs/acknowledgement.h"
#include "verbs/completion.h"
#include "verbs/named.h"
#include "verbs/protection_domain.h"
#include "verbs/xrc_domain.h"

namespace uwarp {

struct VerbsSrq final : object_abi::Srq,
                        Named<VerbsSrq, object_abi::Srq, ibv_srq>,
                        ReceiveLimitListener {
  VerbsSrq(VerbsPd& pd, const ibv_srq_attr& attr)
      : object_abi::Srq{},
        domain(pd),
        max_sge(attr.max_sge),
        event_reservation(pd.device.async_channel(), 1),
        queue(attr.max_wr, attr.max_sge, this) {
    pthread_mutex_init(&base.mutex, nullptr);
    pthread_cond_init(&base.cond, nullptr);
  }
  ~VerbsSrq() override {
    leave_domain();
    pthread_cond_destroy(&base.cond);
    pthread_mutex_destroy(&base.mutex);
  }
  /// XRC: can be named by peers from now on. Once. Throws std::bad_alloc.
  void enter_domain(VerbsXrcd& domain, VerbsCq& completions);
  /// It cannot any more, and no queue pair uses it.
  void leave_domain();

  void limit_reached() override {
    domain.device.raise(IBV_EVENT_SRQ_LIMIT_REACHED, &base, async_events);
  }

  VerbsPd& domain;
  const uint32_t max_sge;
  const EventReservation event_reservation;
  SharedReceiveQueue queue;
  DeliveredCount async_events{0};
  std::atomic<uint32_t> users{0};  // queue pairs
  XrcQueue entry{};                // of an XRC domain
  VerbsXrcd* opened = nullptr;     // ... in which it is
};

}  // namespace uwarp
