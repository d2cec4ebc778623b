// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/verbs_table.h"

#include "base/log.h"
#include "verbs/boundary.h"
#include "verbs/device_context.h"

namespace uwarp {
namespace {

/// A verb as the table has it: no exception leaves it, and errno is what it was unless it fails.
template <auto verb>
struct AtBoundary;
template <typename... Args, int (*verb)(Args...)>
struct AtBoundary<verb> {
  static int call(Args... args) {
    return guarded_errno([&] { return verb(args...); });
  }
};
template <typename Object, typename... Args, Object* (*verb)(Args...)>
struct AtBoundary<verb> {
  static Object* call(Args... args) {
    return guarded([&] { return verb(args...); }, static_cast<Object*>(nullptr));
  }
};
template <typename... Args, void (*verb)(Args...)>
struct AtBoundary<verb> {
  static void call(Args... args) {
    guarded([&] { verb(args...); });
  }
};

template <auto verb>
constexpr auto at_boundary = AtBoundary<verb>::call;
// The boundary is inside these already: a call less for each message.
template <>
constexpr auto at_boundary<poll_cq> = poll_cq;
template <>
constexpr auto at_boundary<post_recv> = post_recv;
template <>
constexpr auto at_boundary<post_send> = post_send;
template <>
constexpr auto at_boundary<post_srq_recv> = post_srq_recv;

int open_context(ibv_context* context) {
  return guarded_errno([&] { return DeviceContext::open(context); });
}

void close_context(ibv_context* context) {
  guarded([&] {
    DeviceContext& device = DeviceContext::of(context);
    if (device.alive()) delete &device;
  });
}

void log_line(const char* line) { log_event("%s", line); }

}  // namespace

void async_event(ibv_context* context, ibv_async_event*) {
  DeviceContext::of(context).event_read();
}

}  // namespace uwarp

const uwarp_verbs_table* uwarp_verbs(void) {
  static constexpr uwarp_verbs_table kTable = {.version = UWARP_VERBS_TABLE_VERSION,
                                               .open_context = uwarp::open_context,
                                               .close_context = uwarp::close_context,
                                               .log = uwarp::log_line,
#define UWARP_VERBS_ENTRY(name, result, parameters) .name = uwarp::at_boundary<uwarp::name>,
                                               UWARP_VERBS_OPERATIONS(UWARP_VERBS_ENTRY)
#undef UWARP_VERBS_ENTRY
  };
  return &kTable;
}
