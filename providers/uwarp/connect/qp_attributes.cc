// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The tables of ibv_modify_qp(3), with the optional bits of the InfiniBand specification's
// transitions (11.2.4.2) that the manual leaves out.
#include "connect/qp_attributes.h"

#include <cerrno>
#include <span>

#include "base/bytes.h"
#include "base/settings.h"

namespace uwarp {
namespace {

constexpr uint32_t kNumber24Bits = 0xffffff;

/// Bits of ibv_qp_attr_mask that queue pairs take. Alternate paths are InfiniBand's, and no
/// transition has the capacities; the kernel's write command knows no rates.
constexpr int kRefusedMask = IBV_QP_ALT_PATH | IBV_QP_CAP;
constexpr int kKnownMask = IBV_QP_DEST_QPN * 2 - 1;

/// Access flags that a queue pair can grant.
constexpr unsigned kQpAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                               IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

struct Transition {
  QpState from, to;
  int required, optional;
};

constexpr int kPathOptions = IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
constexpr int kConnectionOptions = kPathOptions | IBV_QP_MIN_RNR_TIMER;
constexpr int kInitial = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kInitialDatagram = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
constexpr int kPeer = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
constexpr int kPeerOptions = IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_ALT_PATH;
constexpr int kRetries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;

// What a reliable connection needs, with a requester and a responder.
constexpr Transition kRcTransitions[] = {
    {QpState::kReset, QpState::kInit, kInitial, 0},
    {QpState::kInit, QpState::kInit, 0, kInitial},
    {QpState::kInit, QpState::kRtr, kPeer | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
     kPeerOptions},
    {QpState::kRtr, QpState::kRts, IBV_QP_SQ_PSN | kRetries | IBV_QP_MAX_QP_RD_ATOMIC,
     kConnectionOptions | IBV_QP_CUR_STATE},
    {QpState::kRts, QpState::kRts, 0, kConnectionOptions | IBV_QP_CUR_STATE | IBV_QP_RATE_LIMIT},
    {QpState::kRts, QpState::kSqd, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {QpState::kSqd, QpState::kRts, 0, kConnectionOptions | IBV_QP_CUR_STATE},
    {QpState::kSqd, QpState::kSqd, 0,
     kConnectionOptions | IBV_QP_CUR_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY | IBV_QP_PKEY_INDEX |
         IBV_QP_PORT | IBV_QP_AV | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | kRetries},
    {QpState::kSqe, QpState::kRts, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_CUR_STATE},
};

// Nothing is repeated, and nothing is read.
constexpr Transition kUcTransitions[] = {
    {QpState::kReset, QpState::kInit, kInitial, 0},
    {QpState::kInit, QpState::kInit, 0, kInitial},
    {QpState::kInit, QpState::kRtr, kPeer, kPeerOptions},
    {QpState::kRtr, QpState::kRts, IBV_QP_SQ_PSN, kPathOptions | IBV_QP_CUR_STATE},
    {QpState::kRts, QpState::kRts, 0, kPathOptions | IBV_QP_CUR_STATE | IBV_QP_RATE_LIMIT},
    {QpState::kRts, QpState::kSqd, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {QpState::kSqd, QpState::kRts, 0, kPathOptions | IBV_QP_CUR_STATE},
    {QpState::kSqd, QpState::kSqd, 0,
     kPathOptions | IBV_QP_CUR_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY | IBV_QP_PKEY_INDEX | IBV_QP_AV},
    {QpState::kSqe, QpState::kRts, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_CUR_STATE},
};

// It has no peer.
constexpr Transition kUdTransitions[] = {
    {QpState::kReset, QpState::kInit, kInitialDatagram, 0},
    {QpState::kInit, QpState::kInit, 0, kInitialDatagram},
    {QpState::kInit, QpState::kRtr, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {QpState::kRtr, QpState::kRts, IBV_QP_SQ_PSN, IBV_QP_QKEY | IBV_QP_CUR_STATE},
    {QpState::kRts, QpState::kRts, 0, IBV_QP_QKEY | IBV_QP_CUR_STATE | IBV_QP_RATE_LIMIT},
    {QpState::kRts, QpState::kSqd, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {QpState::kSqd, QpState::kRts, 0, IBV_QP_QKEY | IBV_QP_CUR_STATE},
    {QpState::kSqd, QpState::kSqd, 0, IBV_QP_QKEY | IBV_QP_PKEY_INDEX | IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {QpState::kSqe, QpState::kRts, 0, IBV_QP_QKEY | IBV_QP_CUR_STATE},
};

// Of the two halves of an extended reliable connection one requests, the other responds.
constexpr Transition kXrcSendTransitions[] = {
    {QpState::kReset, QpState::kInit, kInitial, 0},
    {QpState::kInit, QpState::kInit, 0, kInitial},
    {QpState::kInit, QpState::kRtr, kPeer, kPeerOptions},
    {QpState::kRtr, QpState::kRts, IBV_QP_SQ_PSN | kRetries | IBV_QP_MAX_QP_RD_ATOMIC,
     kPathOptions | IBV_QP_CUR_STATE},
    {QpState::kRts, QpState::kRts, 0, kPathOptions | IBV_QP_CUR_STATE},
    {QpState::kRts, QpState::kSqd, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {QpState::kSqd, QpState::kRts, 0, kPathOptions | IBV_QP_CUR_STATE},
    {QpState::kSqd, QpState::kSqd, 0,
     kPathOptions | IBV_QP_CUR_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY | IBV_QP_PKEY_INDEX |
         IBV_QP_PORT | IBV_QP_AV | IBV_QP_MAX_QP_RD_ATOMIC | kRetries},
    {QpState::kSqe, QpState::kRts, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_CUR_STATE},
};
constexpr Transition kXrcReceiveTransitions[] = {
    {QpState::kReset, QpState::kInit, kInitial, 0},
    {QpState::kInit, QpState::kInit, 0, kInitial},
    {QpState::kInit, QpState::kRtr, kPeer | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
     kPeerOptions},
    {QpState::kRtr, QpState::kRts, IBV_QP_SQ_PSN | IBV_QP_TIMEOUT,
     kConnectionOptions | IBV_QP_CUR_STATE},
    {QpState::kRts, QpState::kRts, 0, kConnectionOptions | IBV_QP_CUR_STATE},
    {QpState::kRts, QpState::kSqd, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {QpState::kSqd, QpState::kRts, 0, kConnectionOptions | IBV_QP_CUR_STATE},
    {QpState::kSqd, QpState::kSqd, 0,
     kConnectionOptions | IBV_QP_CUR_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY | IBV_QP_PKEY_INDEX |
         IBV_QP_PORT | IBV_QP_AV | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_TIMEOUT},
    {QpState::kSqe, QpState::kRts, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_CUR_STATE},
};

std::span<const Transition> transitions(Transport transport) {
  switch (transport) {
    case Transport::kRc:
      return kRcTransitions;
    case Transport::kUc:
      return kUcTransitions;
    case Transport::kUd:
      return kUdTransitions;
    case Transport::kXrcSend:
      return kXrcSendTransitions;
    case Transport::kXrcReceive:
      return kXrcReceiveTransitions;
  }
  __builtin_unreachable();
}

}  // namespace

int meaningful_mask(Transport transport, int mask) {
  if (transport == Transport::kXrcSend)
    return mask & ~(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (transport == Transport::kXrcReceive)
    return mask & ~(IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY);
  return mask;
}

bool transition_allowed(Transport transport, QpState from, QpState to, int mask) {
  mask &= ~IBV_QP_STATE;
  for (const Transition& row : transitions(transport)) {
    if (row.from != from || row.to != to) continue;
    return (mask & row.required) == row.required && (mask & ~(row.required | row.optional)) == 0;
  }
  return false;
}

bool is_cm_mask(QpState to, int mask) {
  if (to != QpState::kInit && to != QpState::kRtr && to != QpState::kRts) return false;
  return mask == (IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PORT);
}

QpChange change_of(const QpToChange& qp, const ibv_qp_attr& attributes, int mask) {
  const QpState from = qp.state;
  const bool moves = (mask & IBV_QP_STATE) != 0;
  const QpState to = moves ? static_cast<QpState>(attributes.qp_state) : from;
  // Queue pairs of rdma_cm, which every one of an RNIC is to the kernel: drivers take what moves
  // nothing, in any state. librdmacm's iWARP branch names the port alone.
  const bool tolerant = qp.is_rnic || qp.is_cms;
  if (tolerant && (mask == IBV_QP_PORT || mask == IBV_QP_MIN_RNR_TIMER)) return QpChange::kIgnore;
  if (to == QpState::kReset || to == QpState::kErr) {
    // From any state; in RESET there is nothing that could fail.
    const bool alone = (mask & ~IBV_QP_STATE) == 0;
    const bool possible = from != QpState::kReset || to != QpState::kErr;
    return qp.is_rnic || (alone && possible) ? QpChange::kMake : QpChange::kRefuse;
  }
  // rdma_disconnect() begins like this, and gives up if it fails.
  if (to == QpState::kSqd && from != QpState::kSqd && from != QpState::kRts)
    return tolerant ? QpChange::kIgnore : QpChange::kRefuse;
  // Only where there is no table an application gets to INIT without a P_Key.
  if (from == QpState::kReset && !qp.is_rnic && (mask & IBV_QP_PKEY_INDEX) == 0)
    return QpChange::kRefuse;
  // INIT again is a change of two attributes, which any queue pair may have.
  const bool again = from == QpState::kInit && to == QpState::kInit;
  const bool for_cm = (is_cm_mask(to, mask) && !again) || names_cm_peer(attributes, mask);
  const bool step = to == QpState::kInit || to == QpState::kRtr || to == QpState::kRts;
  if (step && (qp.is_cms || (for_cm && qp.may_be_cms)))
    return from == QpState::kReset && to != QpState::kInit ? QpChange::kRefuse
                                                           : QpChange::kMakeForCm;
  if (qp.is_rnic && to == QpState::kRtr && from == QpState::kRtr) return QpChange::kIgnore;
  if ((mask & IBV_QP_CUR_STATE) != 0 && static_cast<QpState>(attributes.cur_qp_state) != from)
    return QpChange::kRefuse;
  return transition_allowed(qp.transport, from, to, mask) ? QpChange::kMake : QpChange::kRefuse;
}

// Not to be optimised away where an application's values are copied.
[[gnu::noinline]] void merge_attributes(ibv_qp_attr& into, const ibv_qp_attr& from, int mask) {
  if (mask & IBV_QP_STATE) into.qp_state = from.qp_state;
  if (mask & IBV_QP_CUR_STATE) into.cur_qp_state = from.cur_qp_state;
  if (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) into.en_sqd_async_notify = from.en_sqd_async_notify;
  if (mask & IBV_QP_ACCESS_FLAGS) into.qp_access_flags = from.qp_access_flags & kQpAccess;
  if (mask & IBV_QP_PKEY_INDEX) into.pkey_index = from.pkey_index;
  if (mask & IBV_QP_PORT) into.port_num = from.port_num;
  if (mask & IBV_QP_PATH_MTU) into.path_mtu = from.path_mtu;
  if (mask & IBV_QP_PATH_MIG_STATE) into.path_mig_state = from.path_mig_state;
  if (mask & IBV_QP_QKEY) into.qkey = from.qkey;
  if (mask & IBV_QP_DEST_QPN) into.dest_qp_num = from.dest_qp_num;
  if (mask & IBV_QP_RQ_PSN) into.rq_psn = from.rq_psn & kNumber24Bits;
  if (mask & IBV_QP_SQ_PSN) into.sq_psn = from.sq_psn & kNumber24Bits;
  if (mask & IBV_QP_MAX_QP_RD_ATOMIC) into.max_rd_atomic = from.max_rd_atomic;
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) into.max_dest_rd_atomic = from.max_dest_rd_atomic;
  // Five bits, as InfiniBand has them: mlx4, mlx5 and rxe look at no others.
  if (mask & IBV_QP_MIN_RNR_TIMER) into.min_rnr_timer = from.min_rnr_timer & 31;
  if (mask & IBV_QP_TIMEOUT) into.timeout = from.timeout;
  if (mask & IBV_QP_RETRY_CNT) into.retry_cnt = from.retry_cnt;
  if (mask & IBV_QP_RNR_RETRY) into.rnr_retry = from.rnr_retry;
  if ((mask & IBV_QP_AV) == 0) return;
  into.ah_attr = from.ah_attr;
  if (from.ah_attr.is_global == 0) into.ah_attr.grh = {};
}

int check_attributes(const ibv_qp_attr& attr, int mask) {
  if ((mask & ~kKnownMask) != 0) return EOPNOTSUPP;
  if ((mask & kRefusedMask) != 0) return EINVAL;
  const AdapterProfile& most = settings().adapter;
  const auto bad = [mask](int bit, bool in_range) { return (mask & bit) != 0 && !in_range; };
  return bad(IBV_QP_STATE, raw_value(attr.qp_state) <= IBV_QPS_ERR) ||
                 bad(IBV_QP_CUR_STATE, raw_value(attr.cur_qp_state) <= IBV_QPS_ERR) ||
                 bad(IBV_QP_PORT, attr.port_num == kPort) ||
                 bad(IBV_QP_PKEY_INDEX, attr.pkey_index == 0) ||
                 bad(IBV_QP_PATH_MTU, raw_value(attr.path_mtu) >= IBV_MTU_256 &&
                                          raw_value(attr.path_mtu) <= most.max_mtu) ||
                 // There is one path, which is where every queue pair has migrated to.
                 bad(IBV_QP_PATH_MIG_STATE, raw_value(attr.path_mig_state) == IBV_MIG_MIGRATED) ||
                 bad(IBV_QP_DEST_QPN, attr.dest_qp_num <= kNumber24Bits) ||
                 bad(IBV_QP_MAX_QP_RD_ATOMIC, attr.max_rd_atomic <= most.max_qp_init_rd_atom) ||
                 bad(IBV_QP_MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic <= most.max_qp_rd_atom) ||
                 bad(IBV_QP_TIMEOUT, attr.timeout < 32) ||
                 bad(IBV_QP_RETRY_CNT, attr.retry_cnt < 8) ||
                 bad(IBV_QP_RNR_RETRY, attr.rnr_retry < 8) ||
                 bad(IBV_QP_AV, attr.ah_attr.port_num == kPort &&
                                    attr.ah_attr.grh.sgid_index < kGidTableEntries)
             ? EINVAL
             : 0;
}

}  // namespace uwarp
