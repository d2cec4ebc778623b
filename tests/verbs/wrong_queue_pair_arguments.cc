// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Rows about making queue pairs, of all types, and XRC domains.
#include <fcntl.h>
#include <unistd.h>

#include <climits>

#include "verbs/wrong_arguments.h"

namespace wrong_arguments {
namespace {

using Xrcd = std::unique_ptr<ibv_xrcd, Destroyer<ibv_close_xrcd>>;

int create(Ground& g, const std::function<void(ibv_qp_init_attr&)>& spoil) {
  ibv_qp_init_attr init = init_attributes(g.cq.get());
  spoil(init);
  return outcome<ibv_destroy_qp>(ibv_create_qp(g.pd.get(), &init));
}

int create_type(Ground& g, unsigned type) {
  return create(g, [&](auto& init) { init.qp_type = number<ibv_qp_type>(type); });
}

uint32_t limit(Ground& g, int ibv_device_attr::*field) {
  ibv_device_attr device = {};
  EXPECT_EQ(ibv_query_device(g.context, &device), 0);
  return static_cast<uint32_t>(device.*field);
}

Srq foreign_srq(Ground& g) {
  ibv_srq_init_attr init = {nullptr, {16, 1, 0}};
  return Srq(ibv_create_srq(g.foreign().pd.get(), &init));
}

int create_ex(Ground& g, const std::function<void(ibv_qp_init_attr_ex&)>& spoil) {
  ibv_qp_init_attr_ex init = {};
  init.send_cq = init.recv_cq = g.cq.get();
  init.cap = {16, 16, 1, 1, 0};
  init.qp_type = IBV_QPT_RC;
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
  init.pd = g.pd.get();
  spoil(init);
  return outcome<ibv_destroy_qp>(ibv_create_qp_ex(g.context, &init));
}

int create_with_flags(Ground& g, uint32_t flags) {
  return create_ex(g, [&](auto& init) { init.create_flags = flags; });
}

int create_for(Ground& g, ibv_qp_type type, uint64_t operations) {
  return create_ex(g, [&](auto& init) {
    init.qp_type = type;
    init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.send_ops_flags = operations;
  });
}

Xrcd domain(ibv_context* context) {
  ibv_xrcd_init_attr attr = {};
  attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  attr.fd = -1;
  attr.oflags = O_CREAT;
  return Xrcd(ibv_open_xrcd(context, &attr));
}

int open_domain(Ground& g, uint32_t mask, int fd, int flags) {
  ibv_xrcd_init_attr attr = {};
  attr.comp_mask = mask;
  attr.fd = fd;
  attr.oflags = flags;
  return outcome<ibv_close_xrcd>(ibv_open_xrcd(g.context, &attr));
}

int open_domain(Ground& g, int fd, int flags) {
  return open_domain(g, IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, fd, flags);
}

int open_domain_twice(Ground& g, int flags) {
  const int fd = open("/dev/null", O_RDONLY);
  ibv_xrcd_init_attr attr = {};
  attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  attr.fd = fd;
  attr.oflags = O_CREAT;
  const Xrcd first(ibv_open_xrcd(g.context, &attr));
  const int result = open_domain(g, fd, flags);
  close(fd);
  return result;
}

int create_receiver(Ground& g, ibv_xrcd* xrcd, uint32_t mask = IBV_QP_INIT_ATTR_XRCD) {
  return create_ex(g, [&](auto& init) {
    init.qp_type = IBV_QPT_XRC_RECV;
    init.comp_mask = mask;
    init.xrcd = xrcd;
  });
}

/// Opens, from the context of `g`, a queue pair of a domain that `owner` has.
int open_qp(Ground& g, ibv_context* owner, const std::function<void(ibv_qp_open_attr&)>& spoil) {
  const Xrcd xrcd = domain(owner);
  Qp receiver;
  ibv_qp_open_attr attr = {};
  attr.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  attr.xrcd = xrcd.get();
  attr.qp_type = IBV_QPT_XRC_RECV;
  if (xrcd != nullptr) {
    ibv_qp_init_attr_ex init = {};
    init.qp_type = IBV_QPT_XRC_RECV;
    init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    init.xrcd = xrcd.get();
    receiver.reset(ibv_create_qp_ex(owner, &init));
    attr.qp_num = receiver->qp_num;
  }
  spoil(attr);
  return outcome<ibv_destroy_qp>(ibv_open_qp(g.context, &attr));
}

int open_qp(Ground& g, const std::function<void(ibv_qp_open_attr&)>& spoil) {
  return open_qp(g, g.context, spoil);
}

int query_qp(Ground& g, int mask) {
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  return ibv_query_qp(g.qp.get(), &attr, mask, &init);
}

Answer of_xrc(int roce) { return {EOPNOTSUPP, roce}; }

}  // namespace

Rows of_queue_pairs() {
  const char* const sizes = "mlx5, rxe, siw";
  return {
      {"ibv_create_qp", "qp_type", "0", EINVAL, "uverbs: create_qp",
       [](Ground& g) { return create_type(g, 0); }},
      {"ibv_create_qp", "qp_type", "a number between the types", EINVAL, "uverbs: create_qp",
       [](Ground& g) { return create_type(g, 5); }},
      {"ibv_create_qp", "qp_type", "the largest number", EINVAL, "uverbs: create_qp",
       [](Ground& g) { return create_type(g, UINT_MAX); }},
      {"ibv_create_qp",
       "qp_type",
       "UC",
       {EOPNOTSUPP, 0},
       "siw",
       [](Ground& g) { return create_type(g, IBV_QPT_UC); }},
      {"ibv_create_qp",
       "qp_type",
       "UD",
       {EOPNOTSUPP, 0},
       "siw",
       [](Ground& g) { return create_type(g, IBV_QPT_UD); }},
      {"ibv_create_qp", "qp_type", "raw packet", EOPNOTSUPP,
       "rxe, siw; without CAP_NET_RAW the kernel says EPERM first",
       [](Ground& g) { return create_type(g, IBV_QPT_RAW_PACKET); }},
      {"ibv_create_qp", "qp_type", "driver", EOPNOTSUPP, "rxe, siw",
       [](Ground& g) { return create_type(g, IBV_QPT_DRIVER); }},
      {"ibv_create_qp", "qp_type", "XRC_RECV, without a domain of XRC", of_xrc(EINVAL),
       "libibverbs", [](Ground& g) { return create_type(g, IBV_QPT_XRC_RECV); }},
      {"ibv_create_qp", "max_send_wr", "0", 0,
       "mlx5, rxe. Ours: siw gives EINVAL, and other RNICs do not",
       [](Ground& g) { return create(g, [](auto& init) { init.cap.max_send_wr = 0; }); }},
      {"ibv_create_qp", "max_send_wr", "max_qp_wr + 1", EINVAL, sizes,
       [](Ground& g) {
         return create(g, [&](auto& init) {
           init.cap.max_send_wr = limit(g, &ibv_device_attr::max_qp_wr) + 1;
         });
       }},
      {"ibv_create_qp", "max_send_wr", "the largest number", EINVAL, sizes,
       [](Ground& g) { return create(g, [](auto& init) { init.cap.max_send_wr = UINT_MAX; }); }},
      {"ibv_create_qp", "max_recv_wr", "max_qp_wr + 1", EINVAL, sizes,
       [](Ground& g) {
         return create(g, [&](auto& init) {
           init.cap.max_recv_wr = limit(g, &ibv_device_attr::max_qp_wr) + 1;
         });
       }},
      {"ibv_create_qp", "max_recv_wr", "the largest number", EINVAL, sizes,
       [](Ground& g) { return create(g, [](auto& init) { init.cap.max_recv_wr = UINT_MAX; }); }},
      {"ibv_create_qp", "max_recv_wr", "the largest number, with a shared queue", 0,
       "manual page: ignored; rxe. siw: EINVAL",
       [](Ground& g) {
         const Srq srq = g.shared_queue();
         return create(g, [&](auto& init) {
           init.cap.max_recv_wr = UINT_MAX;
           init.srq = srq.get();
         });
       }},
      {"ibv_create_qp", "max_send_sge", "max_sge + 1", EINVAL, sizes,
       [](Ground& g) {
         return create(g, [&](auto& init) {
           init.cap.max_send_sge = limit(g, &ibv_device_attr::max_sge) + 1;
         });
       }},
      {"ibv_create_qp", "max_send_sge", "the largest number", EINVAL, sizes,
       [](Ground& g) { return create(g, [](auto& init) { init.cap.max_send_sge = UINT_MAX; }); }},
      {"ibv_create_qp", "max_recv_sge", "max_sge + 1", EINVAL, sizes,
       [](Ground& g) {
         return create(g, [&](auto& init) {
           init.cap.max_recv_sge = limit(g, &ibv_device_attr::max_sge) + 1;
         });
       }},
      {"ibv_create_qp", "max_recv_sge", "the largest number", EINVAL, sizes,
       [](Ground& g) { return create(g, [](auto& init) { init.cap.max_recv_sge = UINT_MAX; }); }},
      {"ibv_create_qp", "max_inline_data", "513, of 512", EINVAL, sizes,
       [](Ground& g) { return create(g, [](auto& init) { init.cap.max_inline_data = 513; }); }},
      {"ibv_create_qp", "max_inline_data", "the largest number", EINVAL, sizes,
       [](Ground& g) {
         return create(g, [](auto& init) { init.cap.max_inline_data = UINT_MAX; });
       }},
      {"ibv_create_qp", "send_cq", "null", EINVAL, "core, rxe, siw; libibverbs dereferences it",
       [](Ground& g) { return create(g, [](auto& init) { init.send_cq = nullptr; }); }},
      {"ibv_create_qp", "recv_cq", "null", EINVAL, "core, rxe, siw; libibverbs dereferences it",
       [](Ground& g) { return create(g, [](auto& init) { init.recv_cq = nullptr; }); }},
      {"ibv_create_qp", "send_cq", "of another context", EINVAL,
       "uverbs, by write. Its ioctl takes what the number names in this context, or ENOENT",
       [](Ground& g) {
         return create(g, [&](auto& init) { init.send_cq = g.foreign().cq.get(); });
       }},
      {"ibv_create_qp", "recv_cq", "of another context", EINVAL, "uverbs, as above",
       [](Ground& g) {
         return create(g, [&](auto& init) { init.recv_cq = g.foreign().cq.get(); });
       }},
      {"ibv_create_qp", "srq", "of another context", EINVAL, "uverbs, as above",
       [](Ground& g) {
         const Srq srq = foreign_srq(g);
         return create(g, [&](auto& init) { init.srq = srq.get(); });
       }},
      {"ibv_create_qp_ex", "comp_mask", "no domain", EINVAL, "libibverbs",
       [](Ground& g) {
         return create_ex(g, [](auto& init) { init.comp_mask = IBV_QP_INIT_ATTR_CREATE_FLAGS; });
       }},
      {"ibv_create_qp_ex", "comp_mask", "unknown bit", EINVAL, "uverbs: ex_create_qp",
       [](Ground& g) { return create_ex(g, [](auto& init) { init.comp_mask |= 1u << 30; }); }},
      {"ibv_create_qp_ex", "comp_mask", "a header for TSO, type RC", EOPNOTSUPP,
       "ours: mlx5 sets no errno",
       [](Ground& g) {
         return create_ex(g, [](auto& init) { init.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER; });
       }},
      {"ibv_create_qp_ex", "comp_mask", "a domain of XRC, type RC", EOPNOTSUPP,
       "ours: libibverbs ignores it, and the queue pair has no domain",
       [](Ground& g) {
         return create_ex(g, [](auto& init) { init.comp_mask |= IBV_QP_INIT_ATTR_XRCD; });
       }},
      {"ibv_create_qp_ex", "pd", "null", EINVAL, "uverbs: create_qp; libibverbs dereferences it",
       [](Ground& g) { return create_ex(g, [](auto& init) { init.pd = nullptr; }); }},
      {"ibv_create_qp_ex", "pd", "of another context", EINVAL, "uverbs, by write",
       [](Ground& g) { return create_ex(g, [&](auto& init) { init.pd = g.foreign().pd.get(); }); }},
      {"ibv_create_qp_ex", "create_flags", "unknown bit", EINVAL, "libibverbs",
       [](Ground& g) { return create_with_flags(g, 1u << 30); }},
      {"ibv_create_qp_ex", "create_flags", "SCATTER_FCS", EOPNOTSUPP, "mlx5, rxe, siw",
       [](Ground& g) { return create_with_flags(g, IBV_QP_CREATE_SCATTER_FCS); }},
      {"ibv_create_qp_ex", "create_flags", "CVLAN_STRIPPING", EOPNOTSUPP, "rxe, siw",
       [](Ground& g) { return create_with_flags(g, IBV_QP_CREATE_CVLAN_STRIPPING); }},
      {"ibv_create_qp_ex", "create_flags", "BLOCK_SELF_MCAST_LB, type RC", EOPNOTSUPP, "rxe, siw",
       [](Ground& g) { return create_with_flags(g, IBV_QP_CREATE_BLOCK_SELF_MCAST_LB); }},
      {"ibv_create_qp_ex", "send_ops_flags", "unknown bit", EOPNOTSUPP, "mlx5",
       [](Ground& g) { return create_for(g, IBV_QPT_RC, uint64_t{1} << 40); }},
      {"ibv_create_qp_ex", "send_ops_flags", "TSO, type RC", EOPNOTSUPP, "mlx5",
       [](Ground& g) { return create_for(g, IBV_QPT_RC, IBV_QP_EX_WITH_TSO); }},
      {"ibv_create_qp_ex", "send_ops_flags", "Read, type UC", EOPNOTSUPP, "mlx5",
       [](Ground& g) { return create_for(g, IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ); }},
      {"ibv_create_qp_ex", "send_ops_flags", "Write, type UD", EOPNOTSUPP, "mlx5",
       [](Ground& g) { return create_for(g, IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_WRITE); }},
      {"ibv_create_qp_ex", "xrcd", "null, type XRC_RECV", of_xrc(EINVAL),
       "uverbs: create_qp; libibverbs dereferences it",
       [](Ground& g) { return create_receiver(g, nullptr); }},
      {"ibv_create_qp_ex", "xrcd", "not named, type XRC_RECV", of_xrc(EINVAL), "libibverbs",
       [](Ground& g) { return create_receiver(g, nullptr, IBV_QP_INIT_ATTR_CREATE_FLAGS); }},
      {"ibv_create_qp_ex", "xrcd", "of another context", of_xrc(EINVAL), "uverbs, by write",
       [](Ground& g) {
         const Xrcd xrcd = domain(g.foreign().context.get());
         return create_receiver(g, xrcd.get());
       }},
      {"ibv_query_qp", "attr_mask", "0", 0, "mlx5, rxe, siw: all is told",
       [](Ground& g) { return query_qp(g, 0); }},
      {"ibv_query_qp", "attr_mask", "RATE_LIMIT", EOPNOTSUPP, "libibverbs",
       [](Ground& g) { return query_qp(g, IBV_QP_RATE_LIMIT); }},
      {"ibv_query_qp", "attr_mask", "all ones", EOPNOTSUPP, "libibverbs",
       [](Ground& g) { return query_qp(g, ~0); }},

      {"ibv_open_xrcd", "comp_mask", "0", of_xrc(EINVAL), "libibverbs",
       [](Ground& g) { return open_domain(g, 0, -1, O_CREAT); }},
      {"ibv_open_xrcd", "comp_mask", "no flags", of_xrc(EINVAL), "libibverbs",
       [](Ground& g) { return open_domain(g, IBV_XRCD_INIT_ATTR_FD, -1, O_CREAT); }},
      {"ibv_open_xrcd", "comp_mask", "unknown bit", EOPNOTSUPP, "libibverbs",
       [](Ground& g) { return open_domain(g, 7, -1, O_CREAT); }},
      {"ibv_open_xrcd", "fd", "closed", of_xrc(EBADF), "uverbs: open_xrcd",
       [](Ground& g) { return open_domain(g, 9999, O_CREAT); }},
      {"ibv_open_xrcd", "fd", "-2", of_xrc(EBADF), "uverbs: open_xrcd",
       [](Ground& g) { return open_domain(g, -2, O_CREAT); }},
      {"ibv_open_xrcd", "oflags", "0, of a file without a domain", of_xrc(EAGAIN),
       "uverbs: open_xrcd", [](Ground& g) { return open_domain(g, g.context->async_fd, 0); }},
      {"ibv_open_xrcd", "oflags", "O_EXCL, of a file with a domain", of_xrc(EINVAL),
       "manual page; uverbs: open_xrcd",
       [](Ground& g) { return open_domain_twice(g, O_CREAT | O_EXCL); }},
      {"ibv_open_xrcd", "oflags", "others than O_CREAT and O_EXCL", of_xrc(0),
       "uverbs: open_xrcd does not look",
       [](Ground& g) { return open_domain(g, -1, O_CREAT | O_TRUNC | O_DIRECTORY); }},
      {"ibv_open_qp", "comp_mask", "0", of_xrc(EINVAL), "libibverbs",
       [](Ground& g) { return open_qp(g, [](auto& attr) { attr.comp_mask = 0; }); }},
      {"ibv_open_qp", "comp_mask", "no type", of_xrc(EINVAL), "libibverbs",
       [](Ground& g) {
         return open_qp(g, [](auto& attr) { attr.comp_mask &= ~IBV_QP_OPEN_ATTR_TYPE; });
       }},
      {"ibv_open_qp", "comp_mask", "unknown bit", EOPNOTSUPP, "libibverbs",
       [](Ground& g) { return open_qp(g, [](auto& attr) { attr.comp_mask |= 1u << 20; }); }},
      {"ibv_open_qp", "qp_num", "of none", of_xrc(EINVAL), "core: ib_open_qp",
       [](Ground& g) { return open_qp(g, [](auto& attr) { attr.qp_num ^= 0x800000; }); }},
      {"ibv_open_qp", "qp_num", "the largest number", of_xrc(EINVAL), "core: ib_open_qp",
       [](Ground& g) { return open_qp(g, [](auto& attr) { attr.qp_num = UINT_MAX; }); }},
      {"ibv_open_qp", "qp_type", "RC", of_xrc(EINVAL), "core: ib_open_qp",
       [](Ground& g) { return open_qp(g, [](auto& attr) { attr.qp_type = IBV_QPT_RC; }); }},
      {"ibv_open_qp", "xrcd", "of another context", of_xrc(EINVAL), "uverbs: open_qp",
       [](Ground& g) { return open_qp(g, g.foreign().context.get(), [](auto&) {}); }},
  };
}

}  // namespace wrong_arguments
