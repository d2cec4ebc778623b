// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/verbs_table.h"

#include "base/log.h"
#include "verbs/boundary.h"
#include "verbs/completion.h"
#include "verbs/device_context.h"
#include "verbs/device_memory.h"
#include "verbs/post.h"
#include "verbs/protection_domain.h"
#include "verbs/queue_pair.h"
#include "verbs/region.h"
#include "verbs/shared_receive.h"
#include "verbs/window.h"

namespace uwarp {
namespace {

int open_context(ibv_context* context) {
  return errno_verb([&] { return DeviceContext::open(context); });
}

void close_context(ibv_context* context) {
  DeviceContext& device = DeviceContext::of(context);
  if (device.alive()) delete &device;
}

void log_line(const char* line) { log_event("%s", line); }

}  // namespace

void async_event(ibv_context* context, ibv_async_event* event) {
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
      VerbsCq::of(event->element.cq).async_events.fetch_add(1, std::memory_order_acq_rel);
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      VerbsQp::of(event->element.qp).async_events.fetch_add(1, std::memory_order_acq_rel);
      break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      VerbsSrq::of(event->element.srq).async_events.fetch_add(1, std::memory_order_acq_rel);
      break;
    default:
      break;  // of the port or the device: nothing waits for these
  }
  DeviceContext::of(context).event_read();
}

}  // namespace uwarp

const uwarp_verbs_table* uwarp_verbs(void) {
  static constexpr uwarp_verbs_table kTable = {.version = UWARP_VERBS_TABLE_VERSION,
                                               .open_context = uwarp::open_context,
                                               .close_context = uwarp::close_context,
                                               .log = uwarp::log_line,
#define UWARP_VERBS_ENTRY(name, result, parameters) .name = uwarp::name,
                                               UWARP_VERBS_OPERATIONS(UWARP_VERBS_ENTRY)
#undef UWARP_VERBS_ENTRY
  };
  return &kTable;
}
