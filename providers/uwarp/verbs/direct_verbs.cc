// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// <infiniband/uwarpdv.h>: calls that applications make to this library itself.
#include <infiniband/uwarpdv.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "verbs/boundary.h"
#include "verbs/post.h"
#include "verbs/queue_pair.h"
#include "verbs/status_map.h"

#define UWARP_EXPORTED extern "C" __attribute__((visibility("default")))

namespace uwarp {
namespace {

bool is_ours(const ibv_qp* qp) { return qp->context->ops.post_send == post_send; }

/// 0; EINVAL for a list, flag or opcode that is none.
int request_of(const uwarpdv_atomic_wr& wr, SendRequest& request) {
  if ((wr.send_flags & ~kKnownSendFlags) != 0 || !has_sges(wr)) return EINVAL;
  request.sges = sges_of(wr);
  request.wr_id = wr.wr_id;
  request.flags = static_cast<uint8_t>(wr.send_flags);
  request.rkey = wr.rkey;
  request.remote_address = wr.remote_addr;
  switch (raw_value(wr.opcode)) {
    case UWARPDV_MASKED_CMP_SWP:
      request.opcode = SendOpcode::kMaskedCompareSwap;
      request.compare_add = wr.op.cmp_swp.compare;
      request.compare_mask = wr.op.cmp_swp.compare_mask;
      request.swap = wr.op.cmp_swp.swap;
      request.add_or_swap_mask = wr.op.cmp_swp.swap_mask;
      return 0;
    case UWARPDV_MASKED_FETCH_ADD:
      request.opcode = SendOpcode::kMaskedFetchAdd;
      request.compare_add = wr.op.fetch_add.add;
      request.add_or_swap_mask = wr.op.fetch_add.boundary;
      return 0;
    default:
      return EINVAL;
  }
}

/// Begins a request of a batch and lets `fill` complete it.
template <typename Fill>
void build(ibv_qp_ex* base, SendOpcode opcode, uint64_t operation, uint32_t rkey, uint64_t address,
           Fill&& fill) {
  WorkBatch& batch = *VerbsQp::unchecked(&base->qp_base).batch;
  try {
    SendRequest& request = batch.add(*base, opcode, operation);
    request.rkey = rkey;
    request.remote_address = address;
    fill(request);
  } catch (const std::exception& exception) {
    batch.spoil(errno_of(exception));
  }
}

}  // namespace
}  // namespace uwarp

using namespace uwarp;

UWARP_EXPORTED bool uwarpdv_is_supported(ibv_device* device) {
  return guarded([&] { return net_devices()->by_verbs_name(device->name) != nullptr; });
}

UWARP_EXPORTED int uwarpdv_query_peer(ibv_qp* base, uwarpdv_peer_attr* attr, uint32_t length) {
  if (!is_ours(base)) return EOPNOTSUPP;
  constexpr size_t kOfFirstRelease = offsetof(uwarpdv_peer_attr, identity);
  if (length < kOfFirstRelease) return EINVAL;
  return guarded_errno([&] {
    uwarpdv_peer_attr filled = {};
    const Endpoint* const endpoint = VerbsQp::of(base).endpoint.get();
    if (endpoint != nullptr && endpoint->connected()) {
      filled.caps = UWARPDV_PEER_CONNECTED;
      if (endpoint->qp().peer_is_uwarp())
        filled.caps |= UWARPDV_PEER_UWARP | UWARPDV_PEER_SEND_WITH_IMM | UWARPDV_PEER_ATOMICS;
      const std::string identity = endpoint->peer_identity();
      if (!identity.empty()) filled.caps |= UWARPDV_PEER_TLS;
      identity.copy(filled.identity, sizeof filled.identity - 1);
    }
    if (length >= sizeof filled) filled.comp_mask = UWARPDV_PEER_ATTR_IDENTITY;
    std::memset(static_cast<void*>(attr), 0, length);
    std::memcpy(static_cast<void*>(attr), &filled, std::min<size_t>(length, sizeof filled));
    return 0;
  });
}

UWARP_EXPORTED int uwarpdv_post_atomic(ibv_qp* base, uwarpdv_atomic_wr* wr,
                                       uwarpdv_atomic_wr** bad_wr) {
  return guarded_errno([&] {
    const auto refuse = [&](int error) {
      if (bad_wr != nullptr) *bad_wr = wr;
      return error;
    };
    if (!is_ours(base)) return refuse(EOPNOTSUPP);
    VerbsQp& qp = VerbsQp::unchecked(base);
    if (!qp.device.alive()) return refuse(ENODEV);
    if (qp.endpoint == nullptr) return refuse(EOPNOTSUPP);  // datagrams
    QueuePairPoster poster(*qp.endpoint);
    for (; wr != nullptr; wr = wr->next) {
      SendRequest request;
      int error = request_of(*wr, request);
      if (error == 0) error = poster.post(request);
      if (error != 0) return refuse(error);
    }
    return 0;
  });
}

UWARP_EXPORTED void uwarpdv_wr_masked_cmp_swp(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr,
                                              uint64_t compare, uint64_t compare_mask,
                                              uint64_t swap, uint64_t swap_mask) {
  build(qp, SendOpcode::kMaskedCompareSwap, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, rkey, remote_addr,
        [&](SendRequest& request) {
          request.compare_add = compare;
          request.compare_mask = compare_mask;
          request.swap = swap;
          request.add_or_swap_mask = swap_mask;
        });
}

UWARP_EXPORTED void uwarpdv_wr_masked_fetch_add(ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr,
                                                uint64_t add, uint64_t boundary) {
  build(qp, SendOpcode::kMaskedFetchAdd, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, rkey, remote_addr,
        [&](SendRequest& request) {
          request.compare_add = add;
          request.add_or_swap_mask = boundary;
        });
}
