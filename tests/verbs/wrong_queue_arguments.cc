// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Rows about devices, completion queues and shared receive queues.
#include <sys/eventfd.h>
#include <unistd.h>

#include <climits>

#include "verbs/wrong_arguments.h"

namespace wrong_arguments {
namespace {

int query_port(Ground& g, uint8_t port) {
  ibv_port_attr attr = {};
  return ibv_query_port(g.context, port, &attr);
}

int query_gid(Ground& g, uint8_t port, int index) {
  ibv_gid gid = {};
  return outcome(ibv_query_gid(g.context, port, index, &gid));
}

int query_gid_ex(Ground& g, uint32_t port, uint32_t index, uint32_t flags) {
  ibv_gid_entry entry = {};
  return ibv_query_gid_ex(g.context, port, index, &entry, flags);
}

int query_pkey(Ground& g, uint8_t port, int index) {
  __be16 pkey = 0;
  return outcome(ibv_query_pkey(g.context, port, index, &pkey));
}

int query_clock(Ground& g, uint32_t mask) {
  ibv_values_ex values = {};
  values.comp_mask = mask;
  return ibv_query_rt_values_ex(g.context, &values);
}

int create_cq(Ground& g, int entries, int vector = 0, ibv_comp_channel* channel = nullptr) {
  return outcome<ibv_destroy_cq>(ibv_create_cq(g.context, entries, nullptr, channel, vector));
}

/// The limit of the device that `field` names.
template <typename Field>
int limit(Ground& g, Field field) {
  ibv_device_attr device = {};
  EXPECT_EQ(ibv_query_device(g.context, &device), 0);
  return device.*field;
}

/// With a channel whose file is another one.
int create_cq_with_file(Ground& g, int fd) {
  const Channel channel(ibv_create_comp_channel(g.context));
  const int kept = channel->fd;
  channel->fd = fd;
  const int result = create_cq(g, 16, 0, channel.get());
  channel->fd = kept;
  return result;
}

int create_cq_ex(Ground& g, const std::function<void(ibv_cq_init_attr_ex&)>& spoil) {
  ibv_cq_init_attr_ex init = {};
  init.cqe = 16;
  spoil(init);
  ibv_cq_ex* const made = ibv_create_cq_ex(g.context, &init);
  return outcome<ibv_destroy_cq>(made == nullptr ? nullptr : ibv_cq_ex_to_cq(made));
}

int create_cq_on(Ground& g, ibv_pd* parent) {
  return create_cq_ex(g, [&](auto& init) {
    init.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
    init.parent_domain = parent;
  });
}

int create_cq_on_foreign_parent(Ground& g) {
  ibv_parent_domain_init_attr init = {};
  init.pd = g.foreign().pd.get();
  const Pd parent(ibv_alloc_parent_domain(g.foreign().context.get(), &init));
  return create_cq_on(g, parent.get());
}

/// Smaller than the completions that are there.
int resize_cq_below(Ground& g) {
  const Qp qp = g.queue_pair();
  EXPECT_EQ(to_init(qp.get()), 0);
  for (int i = 0; i < 3; ++i) {
    ibv_recv_wr wr = {};
    ibv_recv_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_recv(qp.get(), &wr, &bad), 0);
  }
  EXPECT_EQ(to_state(qp.get(), IBV_QPS_ERR), 0);
  const int result = ibv_resize_cq(g.cq.get(), 2);
  EXPECT_EQ(next_completions(g.cq.get(), 1).size(), 1u);
  ibv_wc rest[2];
  EXPECT_EQ(ibv_poll_cq(g.cq.get(), 2, rest), 2);
  return result;
}

int modify_cq(Ground& g, uint32_t mask) {
  ibv_modify_cq_attr attr = {};
  attr.attr_mask = mask;
  return ibv_modify_cq(g.cq.get(), &attr);
}

int create_srq(Ground& g, uint32_t depth, uint32_t sges, uint32_t limit = 0) {
  ibv_srq_init_attr init = {nullptr, {depth, sges, limit}};
  return outcome<ibv_destroy_srq>(ibv_create_srq(g.pd.get(), &init));
}

int create_srq_ex(Ground& g, const std::function<void(ibv_srq_init_attr_ex&)>& spoil) {
  ibv_srq_init_attr_ex init = {};
  init.attr = {16, 1, 0};
  init.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
  init.pd = g.pd.get();
  init.srq_type = IBV_SRQT_BASIC;
  spoil(init);
  return outcome<ibv_destroy_srq>(ibv_create_srq_ex(g.context, &init));
}

/// Of type XRC, without what `mask` leaves out.
int create_xrc_srq(Ground& g, uint32_t mask) {
  return create_srq_ex(g, [&](auto& init) {
    init.srq_type = IBV_SRQT_XRC;
    init.comp_mask = mask | IBV_SRQ_INIT_ATTR_TYPE;
    init.cq = g.cq.get();
  });
}

int modify_srq(Ground& g, int mask, uint32_t depth, uint32_t limit) {
  const Srq srq = g.shared_queue(16);
  ibv_srq_attr attr = {depth, 0, limit};
  const int result = ibv_modify_srq(srq.get(), &attr, mask);
  ibv_srq_attr now = {};
  EXPECT_EQ(ibv_query_srq(srq.get(), &now), 0);
  if (result != 0) {
    EXPECT_EQ(now.max_wr, 16u);
    EXPECT_EQ(now.srq_limit, 0u);
  }
  return result;
}

int modify_used_srq(Ground& g, uint32_t depth) {
  const Srq srq = g.shared_queue(16);
  for (int i = 0; i < 8; ++i) {
    ibv_recv_wr wr = {};
    ibv_recv_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_srq_recv(srq.get(), &wr, &bad), 0);
  }
  ibv_srq_attr attr = {depth, 0, 0};
  return ibv_modify_srq(srq.get(), &attr, IBV_SRQ_MAX_WR);
}

int destroy_used_srq(Ground& g) {
  const Srq srq = g.shared_queue(16);
  ibv_qp_init_attr init = init_attributes(g.cq.get());
  init.srq = srq.get();
  const Qp qp(ibv_create_qp(g.pd.get(), &init));
  return ibv_destroy_srq(srq.get());
}

}  // namespace

Rows of_devices() {
  const char* const by_sysfs =
      "libibverbs, by sysfs, as with kernels before 5.10. Newer ones have a method: EINVAL";
  return {
      {"ibv_query_port", "port_num", "0", EINVAL, "core: ib_query_port",
       [](Ground& g) { return query_port(g, 0); }},
      {"ibv_query_port", "port_num", "2, where there is one port", EINVAL, "core: ib_query_port",
       [](Ground& g) { return query_port(g, 2); }},
      {"ibv_query_port", "port_num", "255", EINVAL, "core: ib_query_port",
       [](Ground& g) { return query_port(g, 255); }},
      {"ibv_query_gid", "port_num", "0", ENOENT, by_sysfs,
       [](Ground& g) { return query_gid(g, 0, 0); }},
      {"ibv_query_gid", "port_num", "2", ENOENT, by_sysfs,
       [](Ground& g) { return query_gid(g, 2, 0); }},
      {"ibv_query_gid", "index", "16, the length of the table", ENOENT, by_sysfs,
       [](Ground& g) { return query_gid(g, 1, 16); }},
      {"ibv_query_gid", "index", "-1", ENOENT, by_sysfs,
       [](Ground& g) { return query_gid(g, 1, -1); }},
      {"ibv_query_gid", "index", "15, where there is no GID", 0,
       "libibverbs: a GID of zeros, as it always was",
       [](Ground& g) { return query_gid(g, 1, 15); }},
      {"ibv_query_gid_ex", "port_num", "2", EINVAL, "uverbs: QUERY_GID_ENTRY",
       [](Ground& g) { return query_gid_ex(g, 2, 0, 0); }},
      {"ibv_query_gid_ex", "gid_index", "16", EINVAL, "core: rdma_get_gid_attr",
       [](Ground& g) { return query_gid_ex(g, 1, 16, 0); }},
      {"ibv_query_gid_ex", "gid_index", "15, where there is no GID", ENODATA,
       "core: rdma_get_gid_attr", [](Ground& g) { return query_gid_ex(g, 1, 15, 0); }},
      {"ibv_query_gid_ex", "flags", "unknown", EOPNOTSUPP, by_sysfs,
       [](Ground& g) { return query_gid_ex(g, 1, 0, 1); }},
      {"ibv_query_gid_table", "flags", "unknown", EOPNOTSUPP, by_sysfs,
       [](Ground& g) {
         ibv_gid_entry entries[16] = {};
         const ssize_t found = ibv_query_gid_table(g.context, entries, 16, 1);
         return found < 0 ? static_cast<int>(-found) : 0;
       }},
      {"ibv_query_gid_table", "max_entries", "0", EINVAL, "libibverbs, by what is left of it",
       [](Ground& g) {
         ibv_gid_entry entry = {};
         const ssize_t found = ibv_query_gid_table(g.context, &entry, 0, 0);
         return found < 0 ? static_cast<int>(-found) : 0;
       }},
      {"ibv_query_pkey", "index", "1, where there is one key", ENOENT,
       "libibverbs: there is no such file in sysfs", [](Ground& g) { return query_pkey(g, 1, 1); }},
      {"ibv_query_pkey", "port_num", "2", ENOENT, "libibverbs: there is no such file in sysfs",
       [](Ground& g) { return query_pkey(g, 2, 0); }},
      {"ibv_get_pkey_index", "pkey", "not in the table", ENOENT,
       "libibverbs: looks until there is no file",
       [](Ground& g) { return outcome(ibv_get_pkey_index(g.context, 1, 0x1234)); }},
      {"ibv_query_device_ex", "input", "unknown comp_mask", EINVAL, "libibverbs",
       [](Ground& g) {
         ibv_device_attr_ex attr = {};
         const ibv_query_device_ex_input input = {1};
         return ibv_query_device_ex(g.context, &input, &attr);
       }},
      {"ibv_query_rt_values_ex", "comp_mask", "unknown bit", EINVAL, "mlx5",
       [](Ground& g) { return query_clock(g, 3); }},
      {"ibv_query_rt_values_ex", "comp_mask", "0", 0, "mlx5: there is nothing to tell",
       [](Ground& g) { return query_clock(g, 0); }},
  };
}

Rows of_queues() {
  return {
      {"ibv_create_cq", "cqe", "0", EINVAL, "mlx5, rxe, siw",
       [](Ground& g) { return create_cq(g, 0); }},
      {"ibv_create_cq", "cqe", "-1", EINVAL, "rxe, siw",
       [](Ground& g) { return create_cq(g, -1); }},
      {"ibv_create_cq", "cqe", "the smallest number", EINVAL, "rxe, siw",
       [](Ground& g) { return create_cq(g, INT_MIN); }},
      {"ibv_create_cq", "cqe", "max_cqe + 1", EINVAL, "rxe, siw, mlx5",
       [](Ground& g) { return create_cq(g, limit(g, &ibv_device_attr::max_cqe) + 1); }},
      {"ibv_create_cq", "cqe", "the largest number", EINVAL, "rxe, siw, mlx5",
       [](Ground& g) { return create_cq(g, INT_MAX); }},
      {"ibv_create_cq", "comp_vector", "-1", EINVAL, "manual page; uverbs: create_cq",
       [](Ground& g) { return create_cq(g, 16, -1); }},
      {"ibv_create_cq", "comp_vector", "num_comp_vectors", EINVAL, "manual page; uverbs: create_cq",
       [](Ground& g) { return create_cq(g, 16, g.context->num_comp_vectors); }},
      {"ibv_create_cq", "comp_vector", "the largest number", EINVAL,
       "manual page; uverbs: create_cq", [](Ground& g) { return create_cq(g, 16, INT_MAX); }},
      {"ibv_create_cq", "channel", "of another context", EBADF, "uverbs: a file of another one",
       [](Ground& g) { return create_cq(g, 16, 0, g.foreign().channel.get()); }},
      {"ibv_create_cq", "channel", "its file is closed", EBADF, "uverbs: no file",
       [](Ground& g) { return create_cq_with_file(g, 9999); }},
      {"ibv_create_cq", "channel", "its file is something else", EBADF,
       "uverbs: a file of another kind",
       [](Ground& g) {
         const int fd = eventfd(0, 0);
         const int result = create_cq_with_file(g, fd);
         close(fd);
         return result;
       }},
      {"ibv_create_cq", "channel", "its file is the context's own", EBADF,
       "uverbs: a file of another kind",
       [](Ground& g) { return create_cq_with_file(g, g.context->cmd_fd); }},
      {"ibv_create_cq_ex", "cqe", "0", EINVAL, "mlx5",
       [](Ground& g) { return create_cq_ex(g, [](auto& init) { init.cqe = 0; }); }},
      {"ibv_create_cq_ex", "cqe", "the largest number", EINVAL, "mlx5",
       [](Ground& g) { return create_cq_ex(g, [](auto& init) { init.cqe = UINT_MAX; }); }},
      {"ibv_create_cq_ex", "comp_vector", "num_comp_vectors", EINVAL, "uverbs: CQ_CREATE",
       [](Ground& g) {
         return create_cq_ex(g, [&](auto& init) {
           init.comp_vector = static_cast<uint32_t>(g.context->num_comp_vectors);
         });
       }},
      {"ibv_create_cq_ex", "channel", "of another context", EBADF, "uverbs: a file of another one",
       [](Ground& g) {
         return create_cq_ex(g, [&](auto& init) { init.channel = g.foreign().channel.get(); });
       }},
      {"ibv_create_cq_ex", "comp_mask", "unknown bit", EINVAL, "mlx5",
       [](Ground& g) { return create_cq_ex(g, [](auto& init) { init.comp_mask = 1u << 30; }); }},
      {"ibv_create_cq_ex", "wc_flags", "unknown field", EOPNOTSUPP, "libibverbs, mlx5",
       [](Ground& g) {
         return create_cq_ex(g, [](auto& init) { init.wc_flags = uint64_t{1} << 40; });
       }},
      {"ibv_create_cq_ex", "flags", "unknown bit", EINVAL, "mlx5; uverbs: CQ_CREATE",
       [](Ground& g) {
         return create_cq_ex(g, [](auto& init) {
           init.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
           init.flags = 1u << 20;
         });
       }},
      {"ibv_create_cq_ex", "flags", "unknown bit, and no bit of comp_mask for it", 0,
       "mlx5: not looked at",
       [](Ground& g) { return create_cq_ex(g, [](auto& init) { init.flags = 1u << 20; }); }},
      {"ibv_create_cq_ex", "parent_domain", "null", EINVAL, "mlx5",
       [](Ground& g) { return create_cq_on(g, nullptr); }},
      {"ibv_create_cq_ex", "parent_domain", "a plain domain", EINVAL, "mlx5",
       [](Ground& g) { return create_cq_on(g, g.pd.get()); }},
      {"ibv_create_cq_ex", "parent_domain", "of another context", EINVAL,
       "ours: mlx5 uses it, and its context may be closed before the queue is gone",
       create_cq_on_foreign_parent},
      {"ibv_resize_cq", "cqe", "0", EINVAL, "rxe; mlx5 makes the least that it can",
       [](Ground& g) { return ibv_resize_cq(g.cq.get(), 0); }},
      {"ibv_resize_cq", "cqe", "-1", EINVAL, "mlx5, rxe",
       [](Ground& g) { return ibv_resize_cq(g.cq.get(), -1); }},
      {"ibv_resize_cq", "cqe", "max_cqe + 1", EINVAL, "rxe",
       [](Ground& g) {
         return ibv_resize_cq(g.cq.get(), limit(g, &ibv_device_attr::max_cqe) + 1);
       }},
      {"ibv_resize_cq", "cqe", "the largest number", EINVAL, "mlx5, rxe",
       [](Ground& g) { return ibv_resize_cq(g.cq.get(), INT_MAX); }},
      {"ibv_resize_cq", "cqe", "below the completions that are there", EINVAL, "rxe",
       resize_cq_below},
      {"ibv_modify_cq", "attr_mask", "0", EINVAL, "uverbs: ex_modify_cq",
       [](Ground& g) { return modify_cq(g, 0); }},
      {"ibv_modify_cq", "attr_mask", "unknown bit", EINVAL, "libibverbs",
       [](Ground& g) { return modify_cq(g, 3); }},
      {"ibv_modify_cq", "attr_mask", "unknown bit alone", EINVAL, "libibverbs",
       [](Ground& g) { return modify_cq(g, 1u << 31); }},
      {"ibv_destroy_cq", "cq", "a queue pair uses it", EBUSY, "manual page; core: ib_destroy_cq",
       [](Ground& g) { return ibv_destroy_cq(g.cq.get()); }},
      {"ibv_destroy_comp_channel", "channel", "a queue uses it", EBUSY, "libibverbs",
       [](Ground& g) {
         const Channel channel(ibv_create_comp_channel(g.context));
         const Cq cq(ibv_create_cq(g.context, 1, nullptr, channel.get(), 0));
         return ibv_destroy_comp_channel(channel.get());
       }},

      {"ibv_create_srq", "max_wr", "0", EINVAL, "rxe, siw",
       [](Ground& g) { return create_srq(g, 0, 1); }},
      {"ibv_create_srq", "max_wr", "max_srq_wr + 1", EINVAL, "mlx5, rxe, siw",
       [](Ground& g) {
         return create_srq(g, static_cast<uint32_t>(limit(g, &ibv_device_attr::max_srq_wr)) + 1, 1);
       }},
      {"ibv_create_srq", "max_wr", "the largest number", EINVAL, "mlx5, rxe, siw",
       [](Ground& g) { return create_srq(g, UINT_MAX, 1); }},
      {"ibv_create_srq", "max_sge", "0", 0, "siw: receives without memory; rxe makes more of it",
       [](Ground& g) { return create_srq(g, 16, 0); }},
      {"ibv_create_srq", "max_sge", "max_srq_sge + 1", EINVAL, "mlx5, rxe, siw",
       [](Ground& g) {
         return create_srq(g, 16,
                           static_cast<uint32_t>(limit(g, &ibv_device_attr::max_srq_sge)) + 1);
       }},
      {"ibv_create_srq", "max_sge", "the largest number", EINVAL, "mlx5, rxe, siw",
       [](Ground& g) { return create_srq(g, 16, UINT_MAX); }},
      {"ibv_create_srq", "srq_limit", "above max_wr", 0,
       "manual page: says nothing here, so programs leave it as it is. Ours: siw gives EINVAL",
       [](Ground& g) { return create_srq(g, 16, 1, 17); }},
      {"ibv_create_srq_ex", "comp_mask", "unknown bit", EOPNOTSUPP, "libibverbs",
       [](Ground& g) { return create_srq_ex(g, [](auto& init) { init.comp_mask |= 1u << 30; }); }},
      {"ibv_create_srq_ex", "comp_mask", "no domain", EINVAL, "libibverbs",
       [](Ground& g) {
         return create_srq_ex(g, [](auto& init) { init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE; });
       }},
      {"ibv_create_srq_ex", "comp_mask", "parts of XRC, for the basic type", 0,
       "mlx5: makes a plain queue and looks at no more",
       [](Ground& g) {
         return create_srq_ex(g, [&](auto& init) {
           init.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
           init.cq = g.cq.get();
         });
       }},
      {"ibv_create_srq_ex", "srq_type", "unknown", EINVAL, "mlx5",
       [](Ground& g) {
         return create_srq_ex(g, [](auto& init) { init.srq_type = number<ibv_srq_type>(7); });
       }},
      {"ibv_create_srq_ex",
       "srq_type",
       "XRC without a domain",
       {EOPNOTSUPP, EINVAL},
       "libibverbs",
       [](Ground& g) { return create_xrc_srq(g, IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ); }},
      {"ibv_create_srq_ex", "srq_type", "XRC, of which nothing is given", EINVAL, "libibverbs",
       [](Ground& g) { return create_xrc_srq(g, 0); }},
      {"ibv_create_srq_ex", "pd", "null", EINVAL, "uverbs: SRQ_CREATE; libibverbs takes a look",
       [](Ground& g) {
         return create_srq_ex(g, [](auto& init) {
           init.srq_type = IBV_SRQT_XRC;
           init.pd = nullptr;
         });
       }},
      {"ibv_modify_srq", "srq_attr_mask", "0", 0, "mlx5, rxe, siw: nothing is asked",
       [](Ground& g) { return modify_srq(g, 0, 0, 0); }},
      {"ibv_modify_srq", "srq_attr_mask", "unknown bit", EINVAL,
       "ours: drivers ignore it, and the program believes that something was done",
       [](Ground& g) { return modify_srq(g, 4, 16, 0); }},
      {"ibv_modify_srq", "max_wr", "0", EINVAL, "rxe",
       [](Ground& g) { return modify_srq(g, IBV_SRQ_MAX_WR, 0, 0); }},
      {"ibv_modify_srq", "max_wr", "max_srq_wr + 1", EINVAL, "rxe",
       [](Ground& g) {
         return modify_srq(g, IBV_SRQ_MAX_WR,
                           static_cast<uint32_t>(limit(g, &ibv_device_attr::max_srq_wr)) + 1, 0);
       }},
      {"ibv_modify_srq", "max_wr", "below what is posted", EINVAL, "rxe",
       [](Ground& g) { return modify_used_srq(g, 7); }},
      {"ibv_modify_srq", "srq_limit", "max_wr + 1", EINVAL, "mlx5, rxe, siw",
       [](Ground& g) { return modify_srq(g, IBV_SRQ_LIMIT, 0, 17); }},
      {"ibv_modify_srq", "srq_limit", "the largest number", EINVAL, "mlx5, rxe, siw",
       [](Ground& g) { return modify_srq(g, IBV_SRQ_LIMIT, 0, UINT_MAX); }},
      {"ibv_modify_srq", "max_wr, srq_limit", "the limit is above the new size", EINVAL,
       "rxe; none of both is changed",
       [](Ground& g) { return modify_srq(g, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT, 32, 33); }},
      {"ibv_destroy_srq", "srq", "a queue pair uses it", EBUSY, "manual page; core: ib_destroy_srq",
       destroy_used_srq},
  };
}

}  // namespace wrong_arguments
