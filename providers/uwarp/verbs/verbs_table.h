/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The contact between the provider plugin and libuwarp.so: the verbs operations by name. The plugin
 * knows where libibverbs wants each of them; this side knows what they do. Public verbs types only.
 */
#pragma once

#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UWARP_VERBS_TABLE_VERSION 4u

/* What the plugin leaves behind the ibv_context that libibverbs allocates: ours to fill in. */
struct uwarp_context_tail {
  void* context; /* the engine's side, set by open_context */
};

/* Queues beyond the basics. */
#define UWARP_QUEUE_OPERATIONS(X)                                                        \
  X(create_cq_ex, struct ibv_cq_ex*, (struct ibv_context*, struct ibv_cq_init_attr_ex*)) \
  X(create_srq_ex, struct ibv_srq*, (struct ibv_context*, struct ibv_srq_init_attr_ex*)) \
  X(get_srq_num, int, (struct ibv_srq*, uint32_t*))                                      \
  X(modify_cq, int, (struct ibv_cq*, struct ibv_modify_cq_attr*))                        \
  X(resize_cq, int, (struct ibv_cq*, int))

/* Of extended reliable connections. */
#define UWARP_XRC_OPERATIONS(X)                                               \
  X(close_xrcd, int, (struct ibv_xrcd*))                                      \
  X(open_qp, struct ibv_qp*, (struct ibv_context*, struct ibv_qp_open_attr*)) \
  X(open_xrcd, struct ibv_xrcd*, (struct ibv_context*, struct ibv_xrcd_init_attr*))

/* X(name, result, parameters): names as in the private operation table of libibverbs, signatures
 * as there, with ibv_mr in place of the private type that starts with it. */
#define UWARP_VERBS_OPERATIONS(X)                                                                \
  X(advise_mr, int,                                                                              \
    (struct ibv_pd*, enum ibv_advise_mr_advice, uint32_t, struct ibv_sge*, uint32_t))            \
  X(alloc_dm, struct ibv_dm*, (struct ibv_context*, struct ibv_alloc_dm_attr*))                  \
  X(alloc_mw, struct ibv_mw*, (struct ibv_pd*, enum ibv_mw_type))                                \
  X(alloc_null_mr, struct ibv_mr*, (struct ibv_pd*))                                             \
  X(alloc_parent_domain, struct ibv_pd*,                                                         \
    (struct ibv_context*, struct ibv_parent_domain_init_attr*))                                  \
  X(alloc_pd, struct ibv_pd*, (struct ibv_context*))                                             \
  X(alloc_td, struct ibv_td*, (struct ibv_context*, struct ibv_td_init_attr*))                   \
  X(async_event, void, (struct ibv_context*, struct ibv_async_event*))                           \
  X(attach_mcast, int, (struct ibv_qp*, const union ibv_gid*, uint16_t))                         \
  X(bind_mw, int, (struct ibv_qp*, struct ibv_mw*, struct ibv_mw_bind*))                         \
  X(cq_event, void, (struct ibv_cq*))                                                            \
  X(create_ah, struct ibv_ah*, (struct ibv_pd*, struct ibv_ah_attr*))                            \
  X(create_cq, struct ibv_cq*, (struct ibv_context*, int, struct ibv_comp_channel*, int))        \
  X(create_qp, struct ibv_qp*, (struct ibv_pd*, struct ibv_qp_init_attr*))                       \
  X(create_qp_ex, struct ibv_qp*, (struct ibv_context*, struct ibv_qp_init_attr_ex*))            \
  X(create_srq, struct ibv_srq*, (struct ibv_pd*, struct ibv_srq_init_attr*))                    \
  X(dealloc_mw, int, (struct ibv_mw*))                                                           \
  X(dealloc_pd, int, (struct ibv_pd*))                                                           \
  X(dealloc_td, int, (struct ibv_td*))                                                           \
  X(dereg_mr, int, (struct ibv_mr*))                                                             \
  X(destroy_ah, int, (struct ibv_ah*))                                                           \
  X(destroy_cq, int, (struct ibv_cq*))                                                           \
  X(destroy_qp, int, (struct ibv_qp*))                                                           \
  X(destroy_srq, int, (struct ibv_srq*))                                                         \
  X(detach_mcast, int, (struct ibv_qp*, const union ibv_gid*, uint16_t))                         \
  X(free_dm, int, (struct ibv_dm*))                                                              \
  X(modify_qp, int, (struct ibv_qp*, struct ibv_qp_attr*, int))                                  \
  X(modify_srq, int, (struct ibv_srq*, struct ibv_srq_attr*, int))                               \
  X(poll_cq, int, (struct ibv_cq*, int, struct ibv_wc*))                                         \
  X(post_recv, int, (struct ibv_qp*, struct ibv_recv_wr*, struct ibv_recv_wr**))                 \
  X(post_send, int, (struct ibv_qp*, struct ibv_send_wr*, struct ibv_send_wr**))                 \
  X(post_srq_recv, int, (struct ibv_srq*, struct ibv_recv_wr*, struct ibv_recv_wr**))            \
  X(query_device_ex, int,                                                                        \
    (struct ibv_context*, const struct ibv_query_device_ex_input*, struct ibv_device_attr_ex*,   \
     size_t))                                                                                    \
  X(query_port, int, (struct ibv_context*, uint8_t, struct ibv_port_attr*))                      \
  X(query_qp, int, (struct ibv_qp*, struct ibv_qp_attr*, int, struct ibv_qp_init_attr*))         \
  X(query_rt_values, int, (struct ibv_context*, struct ibv_values_ex*))                          \
  X(query_srq, int, (struct ibv_srq*, struct ibv_srq_attr*))                                     \
  X(reg_dm_mr, struct ibv_mr*, (struct ibv_pd*, struct ibv_dm*, uint64_t, size_t, unsigned int)) \
  X(reg_dmabuf_mr, struct ibv_mr*, (struct ibv_pd*, uint64_t, size_t, uint64_t, int, int))       \
  X(reg_mr, struct ibv_mr*, (struct ibv_pd*, void*, size_t, uint64_t, int))                      \
  X(req_notify_cq, int, (struct ibv_cq*, int))                                                   \
  X(rereg_mr, int, (struct ibv_mr*, int, struct ibv_pd*, void*, size_t, int))                    \
  UWARP_QUEUE_OPERATIONS(X)                                                                      \
  UWARP_XRC_OPERATIONS(X)

struct uwarp_verbs_table {
  uint32_t version; /* UWARP_VERBS_TABLE_VERSION */

  /* Makes the engine's side of a new context whose uwarp_context_tail follows it in memory: sets
   * the tail, async_fd and num_comp_vectors. 0, or an errno (ENODEV: no such netdev any more). */
  int (*open_context)(struct ibv_context* context);
  /* Undoes it: ends what the application left alive. async_fd stays for libibverbs to close. */
  void (*close_context)(struct ibv_context* context);
  /* One line of the event log (UWARP_LOG). */
  void (*log)(const char* line);

/* NOLINTNEXTLINE(bugprone-macro-parentheses): a type and a declarator take none */
#define UWARP_VERBS_MEMBER(name, result, parameters) result(*name) parameters;
  UWARP_VERBS_OPERATIONS(UWARP_VERBS_MEMBER)
#undef UWARP_VERBS_MEMBER
};

/* Exported by libuwarp.so. */
__attribute__((visibility("default"))) const struct uwarp_verbs_table* uwarp_verbs(void);

#ifdef __cplusplus
}
#endif
