// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/post.h"

#include "verbs/address_handle.h"
#include "verbs/boundary.h"
#include "verbs/queue_pair.h"
#include "verbs/region.h"
#include "verbs/status_map.h"

namespace uwarp {
namespace {

/// Opcodes that verbs.h defines behind those of iWARP: for other transports or newer extensions.
constexpr unsigned kLastVerbsOpcode = 15;

/// A forked child has the queue pair's memory but not its connection, which stays the parent's.
int refuse_in_child(auto* wr, auto** bad_wr) {
  if (bad_wr != nullptr) *bad_wr = wr;
  return ENODEV;
}

}  // namespace

int send_request_from_verbs(const ibv_send_wr& wr, SendRequest& out) {
  if ((wr.send_flags & ~kKnownSendFlags) != 0 || !has_sges(wr)) [[unlikely]]
    return EINVAL;
  out.sges = sges_of(wr);
  out.wr_id = wr.wr_id;
  out.flags = static_cast<uint8_t>(wr.send_flags);
  const unsigned opcode = raw_value(wr.opcode);
  out.opcode = static_cast<SendOpcode>(opcode);
  out.imm_or_invalidate = wr.imm_data;  // one union with invalidate_rkey
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_RDMA_READ:
      out.remote_address = wr.wr.rdma.remote_addr;
      out.rkey = wr.wr.rdma.rkey;
      return 0;
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_SEND_WITH_INV:
      return 0;
    case IBV_WR_LOCAL_INV:
      out.sges = {};
      return 0;
    case IBV_WR_BIND_MW:
      // Type 1 windows have a call of their own.
      if (wr.bind_mw.mw == nullptr || wr.bind_mw.mw->type != IBV_MW_TYPE_2) return EINVAL;
      out.sges = {};
      return bind_request(*wr.bind_mw.mw, wr.bind_mw.rkey, wr.bind_mw.bind_info, out);
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      out.remote_address = wr.wr.atomic.remote_addr;
      out.rkey = wr.wr.atomic.rkey;
      out.compare_add = wr.wr.atomic.compare_add;
      out.swap = wr.wr.atomic.swap;
      return 0;
    default:
      return opcode <= kLastVerbsOpcode ? EOPNOTSUPP : EINVAL;
  }
}

namespace {

/// Posts requests in order by `post(wr, request)`; at the first failure stops and tells which it
/// was.
template <typename Post>
int post_send_list(ibv_send_wr* wr, ibv_send_wr** bad_wr, Post&& post) {
  SendRequest request;  // of each only what its opcode uses is set, and read
  for (; wr != nullptr; wr = wr->next) {
    int error = send_request_from_verbs(*wr, request);
    if (error == 0) [[likely]]
      error = post(*wr, request);
    if (error != 0) [[unlikely]] {
      if (bad_wr != nullptr) *bad_wr = wr;
      return error;
    }
  }
  return 0;
}

int post_datagrams(VerbsQp& qp, ibv_send_wr* list, ibv_send_wr** bad_wr) {
  DatagramEndpoint::Poster poster(*qp.datagrams);
  return post_send_list(list, bad_wr, [&](const ibv_send_wr& wr, const SendRequest& request) {
    // Such a request has no address: other members of the union are set.
    if (!DatagramQueuePair::has_target(request.opcode)) [[unlikely]]
      return poster.post_without_target(request);
    const auto& to = wr.wr.ud;
    return to.ah == nullptr ? EINVAL
                            : poster.post(request, VerbsAh::unchecked(to.ah).destination,
                                          Qpn{to.remote_qpn}, to.remote_qkey);
  });
}

}  // namespace

int post_send(ibv_qp* base, ibv_send_wr* list, ibv_send_wr** bad_wr) {
  return guarded_errno([&] {
    VerbsQp& qp = VerbsQp::unchecked(base);
    if (!qp.device.alive()) [[unlikely]]
      return refuse_in_child(list, bad_wr);
    if (qp.datagrams != nullptr) [[unlikely]]
      return post_datagrams(qp, list, bad_wr);
    QueuePairPoster poster(*qp.endpoint);
    const bool xrc = base->qp_type == IBV_QPT_XRC_SEND;
    return post_send_list(list, bad_wr, [&](const ibv_send_wr& wr, SendRequest& request) {
      if (xrc) request.receive_queue = wr.qp_type.xrc.remote_srqn;
      const int error = poster.post(request);
      if (request.opcode == SendOpcode::kBindWindow && error == 0) [[unlikely]]
        wr.bind_mw.mw->rkey = request.rkey;
      return error;
    });
  });
}

int post_recv(ibv_qp* base, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  return guarded_errno([&] {
    VerbsQp& qp = VerbsQp::unchecked(base);
    if (!qp.device.alive()) [[unlikely]]
      return refuse_in_child(wr, bad_wr);
    if (qp.datagrams != nullptr) [[unlikely]]
      return post_receive_list(wr, bad_wr, [&](uint64_t wr_id, std::span<const Sge> sges) {
        return qp.datagrams->qp().post_recv(wr_id, sges);
      });
    const auto post = [&](uint64_t wr_id, std::span<const Sge> sges) {
      return qp.endpoint->post_recv(wr_id, sges);
    };
    const int error = post_receive_list(wr, bad_wr, post);
    qp.endpoint->receives_posted();  // of a list that fails half way, too
    return error;
  });
}

}  // namespace uwarp
