// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/layout/fake_ibverbs.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace {

// verbs_context_ops from release v34 on, in the same alphabetical order.
struct Operations {
  void (*advise_mr)();
#if FAKE_RELEASE >= 64
  void (*alloc_buf)();
#endif
  void (*alloc_dm)();
#if FAKE_RELEASE >= 59
  void (*alloc_dmah)();
#endif
  void (*alloc_mw)();
  void (*alloc_null_mr)();
  void (*alloc_parent_domain)();
  void (*alloc_pd)();
  void (*alloc_td)();
  void (*async_event)();
  void (*attach_counters_point_flow)();
  void (*attach_mcast)();
  void (*bind_mw)();
  void (*close_xrcd)();
  void (*cq_event)();
  void (*create_ah)();
  void (*create_counters)();
  void (*create_cq)();
  void (*create_cq_ex)();
  void (*create_flow)();
  void (*create_flow_action_esp)();
  void (*create_qp)();
  void (*create_qp_ex)();
  void (*create_rwq_ind_table)();
  void (*create_srq)();
  void (*create_srq_ex)();
  void (*create_wq)();
#if FAKE_RELEASE >= 59
  void (*dealloc_dmah)();
#endif
  void (*dealloc_mw)();
  void (*dealloc_pd)();
  void (*dealloc_td)();
  void (*dereg_mr)();
  void (*destroy_ah)();
  void (*destroy_counters)();
  void (*destroy_cq)();
  void (*destroy_flow)();
  void (*destroy_flow_action)();
  void (*destroy_qp)();
  void (*destroy_rwq_ind_table)();
  void (*destroy_srq)();
  void (*destroy_wq)();
  void (*detach_mcast)();
#if FAKE_RELEASE >= 62
  void (*dm_export_dmabuf_fd)();
#endif
#if FAKE_RELEASE >= 64
  void (*free_buf)();
#endif
  void (*free_context)();
  void (*free_dm)();
  void (*get_srq_num)();
#if FAKE_RELEASE >= 35
  void (*import_dm)();
#endif
  void (*import_mr)();
  void (*import_pd)();
  void (*modify_cq)();
  void (*modify_flow_action_esp)();
  void (*modify_qp)();
  void (*modify_qp_rate_limit)();
  void (*modify_srq)();
  void (*modify_wq)();
  void (*open_qp)();
  void (*open_xrcd)();
  void (*poll_cq)();
  void (*post_recv)();
  void (*post_send)();
  void (*post_srq_ops)();
  void (*post_srq_recv)();
  void (*query_device_ex)();
  void (*query_ece)();
  void (*query_port)();
#if FAKE_RELEASE >= 62
  void (*query_port_speed)();
#endif
  void (*query_qp)();
#if FAKE_RELEASE >= 36
  void (*query_qp_data_in_order)();
#endif
  void (*query_rt_values)();
  void (*query_srq)();
  void (*read_counters)();
  void (*reg_dm_mr)();
  void (*reg_dmabuf_mr)();
  void (*reg_mr)();
#if FAKE_RELEASE >= 59
  void (*reg_mr_ex)();
#endif
  void (*req_notify_cq)();
  void (*rereg_mr)();
  void (*resize_cq)();
  void (*set_ece)();
#if FAKE_RELEASE >= 35
  void (*unimport_dm)();
#endif
  void (*unimport_mr)();
  void (*unimport_pd)();
};

struct NamedSlot {
  const char* name;
  size_t offset;
};
constexpr NamedSlot kSlots[] = {
    {"advise_mr", offsetof(Operations, advise_mr)},
#if FAKE_RELEASE >= 64
    {"alloc_buf", offsetof(Operations, alloc_buf)},
#endif
    {"alloc_dm", offsetof(Operations, alloc_dm)},
#if FAKE_RELEASE >= 59
    {"alloc_dmah", offsetof(Operations, alloc_dmah)},
#endif
    {"alloc_mw", offsetof(Operations, alloc_mw)},
    {"alloc_null_mr", offsetof(Operations, alloc_null_mr)},
    {"alloc_parent_domain", offsetof(Operations, alloc_parent_domain)},
    {"alloc_pd", offsetof(Operations, alloc_pd)},
    {"alloc_td", offsetof(Operations, alloc_td)},
    {"async_event", offsetof(Operations, async_event)},
    {"attach_counters_point_flow", offsetof(Operations, attach_counters_point_flow)},
    {"attach_mcast", offsetof(Operations, attach_mcast)},
    {"bind_mw", offsetof(Operations, bind_mw)},
    {"close_xrcd", offsetof(Operations, close_xrcd)},
    {"cq_event", offsetof(Operations, cq_event)},
    {"create_ah", offsetof(Operations, create_ah)},
    {"create_counters", offsetof(Operations, create_counters)},
    {"create_cq", offsetof(Operations, create_cq)},
    {"create_cq_ex", offsetof(Operations, create_cq_ex)},
    {"create_flow", offsetof(Operations, create_flow)},
    {"create_flow_action_esp", offsetof(Operations, create_flow_action_esp)},
    {"create_qp", offsetof(Operations, create_qp)},
    {"create_qp_ex", offsetof(Operations, create_qp_ex)},
    {"create_rwq_ind_table", offsetof(Operations, create_rwq_ind_table)},
    {"create_srq", offsetof(Operations, create_srq)},
    {"create_srq_ex", offsetof(Operations, create_srq_ex)},
    {"create_wq", offsetof(Operations, create_wq)},
#if FAKE_RELEASE >= 59
    {"dealloc_dmah", offsetof(Operations, dealloc_dmah)},
#endif
    {"dealloc_mw", offsetof(Operations, dealloc_mw)},
    {"dealloc_pd", offsetof(Operations, dealloc_pd)},
    {"dealloc_td", offsetof(Operations, dealloc_td)},
    {"dereg_mr", offsetof(Operations, dereg_mr)},
    {"destroy_ah", offsetof(Operations, destroy_ah)},
    {"destroy_counters", offsetof(Operations, destroy_counters)},
    {"destroy_cq", offsetof(Operations, destroy_cq)},
    {"destroy_flow", offsetof(Operations, destroy_flow)},
    {"destroy_flow_action", offsetof(Operations, destroy_flow_action)},
    {"destroy_qp", offsetof(Operations, destroy_qp)},
    {"destroy_rwq_ind_table", offsetof(Operations, destroy_rwq_ind_table)},
    {"destroy_srq", offsetof(Operations, destroy_srq)},
    {"destroy_wq", offsetof(Operations, destroy_wq)},
    {"detach_mcast", offsetof(Operations, detach_mcast)},
#if FAKE_RELEASE >= 62
    {"dm_export_dmabuf_fd", offsetof(Operations, dm_export_dmabuf_fd)},
#endif
#if FAKE_RELEASE >= 64
    {"free_buf", offsetof(Operations, free_buf)},
#endif
    {"free_context", offsetof(Operations, free_context)},
    {"free_dm", offsetof(Operations, free_dm)},
    {"get_srq_num", offsetof(Operations, get_srq_num)},
#if FAKE_RELEASE >= 35
    {"import_dm", offsetof(Operations, import_dm)},
#endif
    {"import_mr", offsetof(Operations, import_mr)},
    {"import_pd", offsetof(Operations, import_pd)},
    {"modify_cq", offsetof(Operations, modify_cq)},
    {"modify_flow_action_esp", offsetof(Operations, modify_flow_action_esp)},
    {"modify_qp", offsetof(Operations, modify_qp)},
    {"modify_qp_rate_limit", offsetof(Operations, modify_qp_rate_limit)},
    {"modify_srq", offsetof(Operations, modify_srq)},
    {"modify_wq", offsetof(Operations, modify_wq)},
    {"open_qp", offsetof(Operations, open_qp)},
    {"open_xrcd", offsetof(Operations, open_xrcd)},
    {"poll_cq", offsetof(Operations, poll_cq)},
    {"post_recv", offsetof(Operations, post_recv)},
    {"post_send", offsetof(Operations, post_send)},
    {"post_srq_ops", offsetof(Operations, post_srq_ops)},
    {"post_srq_recv", offsetof(Operations, post_srq_recv)},
    {"query_device_ex", offsetof(Operations, query_device_ex)},
    {"query_ece", offsetof(Operations, query_ece)},
    {"query_port", offsetof(Operations, query_port)},
#if FAKE_RELEASE >= 62
    {"query_port_speed", offsetof(Operations, query_port_speed)},
#endif
    {"query_qp", offsetof(Operations, query_qp)},
#if FAKE_RELEASE >= 36
    {"query_qp_data_in_order", offsetof(Operations, query_qp_data_in_order)},
#endif
    {"query_rt_values", offsetof(Operations, query_rt_values)},
    {"query_srq", offsetof(Operations, query_srq)},
    {"read_counters", offsetof(Operations, read_counters)},
    {"reg_dm_mr", offsetof(Operations, reg_dm_mr)},
    {"reg_dmabuf_mr", offsetof(Operations, reg_dmabuf_mr)},
    {"reg_mr", offsetof(Operations, reg_mr)},
#if FAKE_RELEASE >= 59
    {"reg_mr_ex", offsetof(Operations, reg_mr_ex)},
#endif
    {"req_notify_cq", offsetof(Operations, req_notify_cq)},
    {"rereg_mr", offsetof(Operations, rereg_mr)},
    {"resize_cq", offsetof(Operations, resize_cq)},
    {"set_ece", offsetof(Operations, set_ece)},
#if FAKE_RELEASE >= 35
    {"unimport_dm", offsetof(Operations, unimport_dm)},
#endif
    {"unimport_mr", offsetof(Operations, unimport_mr)},
    {"unimport_pd", offsetof(Operations, unimport_pd)},
};

#if FAKE_RELEASE >= 64
constexpr size_t kContextOffset = 368;
#elif FAKE_RELEASE >= 62
constexpr size_t kContextOffset = 352;
#elif FAKE_RELEASE >= 59
constexpr size_t kContextOffset = 344;
#else
constexpr size_t kContextOffset = 320;
#endif
constexpr size_t kContextSize = kContextOffset + sizeof(ibv_context);

struct Context {
  char operations_of_applications[kContextOffset - sizeof(size_t)];
  size_t size;
  ibv_context context;
};
static_assert(sizeof(Context) == kContextSize);

constinit Operations current = {};

void (*&slot(size_t offset))() {
  return *reinterpret_cast<void (**)()>(reinterpret_cast<char*>(&current) + offset);
}

template <typename Function>
void publish(Function& place, void (*operation)()) {
  place = reinterpret_cast<Function>(operation);
}

}  // namespace

constinit FakeLibrary fake = {nullptr, 0, 0, kContextSize};

size_t fake_context_size() { return kContextSize; }
ibv_context* fake_context(void* block) { return &static_cast<Context*>(block)->context; }
void fake_dummy() {}

uwarp::provider_abi::AnyFunction fake_operation(const std::string& name) {
  for (const NamedSlot& named : kSlots) {
    if (name == named.name) return slot(named.offset);
  }
  return nullptr;
}

extern "C" {

#if FAKE_RELEASE >= 64
#define REGISTER verbs_register_driver_64
#elif FAKE_RELEASE >= 59
#define REGISTER verbs_register_driver_59
#elif FAKE_RELEASE >= 57
#define REGISTER verbs_register_driver_57
#else
#define REGISTER verbs_register_driver_34
#endif
void REGISTER(const uwarp::provider_abi::DeviceOperations* driver) {
  fake.driver = driver;
  ++fake.registrations;
}

void* _verbs_init_and_alloc_context(ibv_device* device, int cmd_fd, size_t size, void* offset,
                                    uint32_t) {
  char* block = static_cast<char*>(calloc(1, size));
  auto* context = reinterpret_cast<Context*>(block + reinterpret_cast<size_t>(offset));
  for (const NamedSlot& named : kSlots) slot(named.offset) = fake_dummy;
  for (size_t i = 0; i < sizeof context->operations_of_applications; i += sizeof(void*))
    memcpy(context->operations_of_applications + i, &current, sizeof(void*));
  memset(&context->context.abi_compat, 0xff, sizeof(void*));
  context->size = fake.claimed_size;
  context->context.device = device;
  context->context.cmd_fd = cmd_fd;
  context->context.async_fd = -1;
  pthread_mutex_init(&context->context.mutex, nullptr);
  return block;
}

void verbs_set_ops(void* verbs_context, const void* operations) {
  auto* context = static_cast<Context*>(verbs_context);
  for (const NamedSlot& named : kSlots) {
    void (*operation)();
    memcpy(&operation, static_cast<const char*>(operations) + named.offset, sizeof operation);
    if (operation != nullptr) slot(named.offset) = operation;
  }
  ibv_context_ops& ops = context->context.ops;
  publish(ops.poll_cq, current.poll_cq);
  publish(ops.req_notify_cq, current.req_notify_cq);
  publish(ops.post_send, current.post_send);
  publish(ops.post_recv, current.post_recv);
  publish(ops.post_srq_recv, current.post_srq_recv);
}

void verbs_uninit_context(void* verbs_context) {
  ++fake.uninitialised;
  close(static_cast<Context*>(verbs_context)->context.cmd_fd);
}

}  // extern "C"
