// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Rows about address handles and multicast groups.
#include "verbs/wrong_arguments.h"

namespace wrong_arguments {
namespace {

/// 239.255.87.89: joined only, never sent to.
const ibv_gid kGroup = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 255, 87, 89}};
const ibv_gid kOtherGroup = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 255, 87, 90}};
const ibv_gid kUnicast = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}};

int create_ah(Ground& g, const std::function<void(ibv_ah_attr&)>& spoil) {
  ibv_ah_attr attr = g.address();
  spoil(attr);
  return outcome<ibv_destroy_ah>(ibv_create_ah(g.pd.get(), &attr));
}

/// Of a queue pair of datagrams, where there is one.
int with_datagrams(Ground& g, const std::function<int(ibv_qp*)>& ask) {
  if (!g.roce()) return ask(g.qp.get());
  const Qp qp = g.queue_pair(IBV_QPT_UD);
  return ask(qp.get());
}

/// The answer to `ask` while the queue pair is in the group by LID 5.
int while_attached(Ground& g, const std::function<int(ibv_qp*)>& ask) {
  return with_datagrams(g, [&](ibv_qp* qp) {
    if (const int error = ibv_attach_mcast(qp, &kGroup, 5)) return error;
    const int result = ask(qp);
    EXPECT_EQ(ibv_detach_mcast(qp, &kGroup, 5), 0);
    return result;
  });
}

Answer only_roce(int roce) { return {EOPNOTSUPP, roce}; }

}  // namespace

Rows of_datagrams() {
  const char* const index = "core: rdma_get_gid_attr";
  return {
      {"ibv_create_ah", "port_num", "0", EINVAL, "uverbs: create_ah",
       [](Ground& g) { return create_ah(g, [](auto& attr) { attr.port_num = 0; }); }},
      {"ibv_create_ah", "port_num", "2", EINVAL, "uverbs: create_ah",
       [](Ground& g) { return create_ah(g, [](auto& attr) { attr.port_num = 2; }); }},
      {"ibv_create_ah", "is_global", "0, with a LID", EINVAL, "core: rdma_check_ah_attr",
       [](Ground& g) {
         return create_ah(g, [](auto& attr) {
           attr.is_global = 0;
           attr.dlid = 1;
         });
       }},
      {"ibv_create_ah", "is_global", "0, with the LID of the port, 0", only_roce(0),
       "ours: rsockets make such a handle for their own queue pair. core: EINVAL",
       [](Ground& g) { return create_ah(g, [](auto& attr) { attr.is_global = 0; }); }},
      {"ibv_create_ah", "sgid_index", "15, where there is no GID", ENODATA, index,
       [](Ground& g) { return create_ah(g, [](auto& attr) { attr.grh.sgid_index = 15; }); }},
      {"ibv_create_ah", "sgid_index", "16, the length of the table", EINVAL, index,
       [](Ground& g) { return create_ah(g, [](auto& attr) { attr.grh.sgid_index = 16; }); }},
      {"ibv_create_ah", "sgid_index", "255", EINVAL, index,
       [](Ground& g) { return create_ah(g, [](auto& attr) { attr.grh.sgid_index = 255; }); }},
      {"ibv_create_ah", "dgid", "zeros", EINVAL, "core: ib_resolve_unicast_gid_dmac finds no way",
       [](Ground& g) { return create_ah(g, [](auto& attr) { attr.grh.dgid = {}; }); }},
      {"ibv_create_ah", "sl, static_rate, flow_label", "the largest numbers", only_roce(0),
       "mlx5, rxe: what the field has room for counts",
       [](Ground& g) {
         return create_ah(g, [](auto& attr) {
           attr.sl = attr.static_rate = 255;
           attr.grh.flow_label = ~0u;
         });
       }},
      {"ibv_create_ah", "pd", "right, in the iwarp persona", only_roce(0),
       "core: a device that has no address handles",
       [](Ground& g) { return create_ah(g, [](auto&) {}); }},

      {"ibv_attach_mcast", "gid", "no group", only_roce(EINVAL), "core: ib_attach_mcast",
       [](Ground& g) {
         return with_datagrams(g, [](ibv_qp* qp) { return ibv_attach_mcast(qp, &kUnicast, 0); });
       }},
      {"ibv_attach_mcast", "gid", "zeros", only_roce(EINVAL), "core: ib_attach_mcast",
       [](Ground& g) {
         const ibv_gid zeros = {};
         return with_datagrams(g, [&](ibv_qp* qp) { return ibv_attach_mcast(qp, &zeros, 0); });
       }},
      {"ibv_attach_mcast", "qp", "of type RC", only_roce(EINVAL), "core: ib_attach_mcast",
       [](Ground& g) { return ibv_attach_mcast(g.qp.get(), &kGroup, 0); }},
      {"ibv_attach_mcast", "lid", "no LID of a group", only_roce(0),
       "core: ib_attach_mcast, by the RoCE annex: ignored on Ethernet",
       [](Ground& g) { return while_attached(g, [](ibv_qp*) { return 0; }); }},
      {"ibv_attach_mcast", "gid", "once more", only_roce(0), "uverbs: attach_mcast",
       [](Ground& g) {
         return while_attached(g, [](ibv_qp* qp) { return ibv_attach_mcast(qp, &kGroup, 5); });
       }},
      {"ibv_detach_mcast", "gid", "another group", only_roce(EINVAL), "uverbs: detach_mcast",
       [](Ground& g) {
         return while_attached(g, [](ibv_qp* qp) { return ibv_detach_mcast(qp, &kOtherGroup, 5); });
       }},
      {"ibv_detach_mcast", "lid", "another one than it was attached by", only_roce(EINVAL),
       "uverbs: detach_mcast",
       [](Ground& g) {
         return while_attached(g, [](ibv_qp* qp) { return ibv_detach_mcast(qp, &kGroup, 6); });
       }},
      {"ibv_detach_mcast", "qp", "not attached", only_roce(EINVAL), "uverbs: detach_mcast",
       [](Ground& g) {
         return with_datagrams(g, [](ibv_qp* qp) { return ibv_detach_mcast(qp, &kGroup, 5); });
       }},
      {"ibv_detach_mcast", "qp", "of type RC", only_roce(EINVAL), "uverbs: detach_mcast",
       [](Ground& g) { return ibv_detach_mcast(g.qp.get(), &kGroup, 0); }},
      {"ibv_destroy_qp", "qp", "in a group", only_roce(EBUSY), "manual page; core: ib_destroy_qp",
       [](Ground& g) { return while_attached(g, [](ibv_qp* qp) { return ibv_destroy_qp(qp); }); }},
  };
}

}  // namespace wrong_arguments
