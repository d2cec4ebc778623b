// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/verbs_table.h"

#include "base/log.h"
#include "verbs/address_handle.h"
#include "verbs/boundary.h"
#include "verbs/completion.h"
#include "verbs/device_context.h"
#include "verbs/device_memory.h"
#include "verbs/post.h"
#include "verbs/protection_domain.h"
#include "verbs/queue_pair.h"
#include "verbs/region.h"
#include "verbs/shared_receive.h"
#include "verbs/xrc_domain.h"

namespace uwarp {
namespace {

int open_context(ibv_context* context) {
  return errno_verb([&] { return DeviceContext::open(context); });
}

void close_context(ibv_context* context) {
  quiet_verb([&] {
    DeviceContext& device = DeviceContext::of(context);
    if (device.alive()) delete &device;
  });
}

void log_line(const char* line) { log_event("%s", line); }

}  // namespace

void async_event(ibv_context* context, ibv_async_event*) {
  quiet_verb([&] { DeviceContext::of(context).event_read(); });
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
