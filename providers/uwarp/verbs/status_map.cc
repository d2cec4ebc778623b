// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/status_map.h"

#include <cerrno>
#include <cstring>

#include "base/limits.h"
#include "verbs/boundary.h"

namespace uwarp {
namespace {

constexpr uint32_t kNumber24Bits = 0xffffff;

/// Bits of ibv_qp_attr_mask that queue pairs take. Alternate paths are InfiniBand's, and no
/// transition has the capacities; the kernel's write command knows no rates.
constexpr int kRefusedMask = IBV_QP_ALT_PATH | IBV_QP_CAP;
constexpr int kKnownMask = kRefusedMask | IBV_QP_PATH_MIG_STATE | IBV_QP_STATE | IBV_QP_CUR_STATE |
                           IBV_QP_EN_SQD_ASYNC_NOTIFY | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX |
                           IBV_QP_PORT | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT |
                           IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_DEST_QPN | IBV_QP_QKEY;

/// Access flags that a queue pair can grant.
constexpr unsigned kQpAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                               IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

bool is_state(const ibv_qp_state& state) { return raw_value(state) <= IBV_QPS_ERR; }

bool is_mtu(const ibv_mtu& mtu) {
  return raw_value(mtu) >= IBV_MTU_256 && raw_value(mtu) <= IBV_MTU_4096;
}

/// The values that `mask` names, and zeros. Applications leave the others uninitialised, and the
/// compiler may test a value before the bit of `mask` that names it: no fault, but valgrind reports
/// the jump. So the copy is not to be optimised away.
[[gnu::noinline]] ibv_qp_attr only_named(const ibv_qp_attr& given, int mask) {
  ibv_qp_attr attr{};
  if (mask & IBV_QP_STATE) attr.qp_state = given.qp_state;
  if (mask & IBV_QP_CUR_STATE) attr.cur_qp_state = given.cur_qp_state;
  if (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) attr.en_sqd_async_notify = given.en_sqd_async_notify;
  if (mask & IBV_QP_ACCESS_FLAGS) attr.qp_access_flags = given.qp_access_flags;
  if (mask & IBV_QP_PKEY_INDEX) attr.pkey_index = given.pkey_index;
  if (mask & IBV_QP_PORT) attr.port_num = given.port_num;
  if (mask & IBV_QP_PATH_MTU) attr.path_mtu = given.path_mtu;
  if (mask & IBV_QP_PATH_MIG_STATE) attr.path_mig_state = given.path_mig_state;
  if (mask & IBV_QP_QKEY) attr.qkey = given.qkey;
  if (mask & IBV_QP_DEST_QPN) attr.dest_qp_num = given.dest_qp_num;
  if (mask & IBV_QP_RQ_PSN) attr.rq_psn = given.rq_psn;
  if (mask & IBV_QP_SQ_PSN) attr.sq_psn = given.sq_psn;
  if (mask & IBV_QP_MAX_QP_RD_ATOMIC) attr.max_rd_atomic = given.max_rd_atomic;
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) attr.max_dest_rd_atomic = given.max_dest_rd_atomic;
  if (mask & IBV_QP_MIN_RNR_TIMER) attr.min_rnr_timer = given.min_rnr_timer;
  if (mask & IBV_QP_TIMEOUT) attr.timeout = given.timeout;
  if (mask & IBV_QP_RETRY_CNT) attr.retry_cnt = given.retry_cnt;
  if (mask & IBV_QP_RNR_RETRY) attr.rnr_retry = given.rnr_retry;
  if ((mask & IBV_QP_AV) == 0) return attr;
  attr.ah_attr.port_num = given.ah_attr.port_num;
  attr.ah_attr.is_global = given.ah_attr.is_global;
  if (given.ah_attr.is_global != 0) attr.ah_attr.grh = given.ah_attr.grh;
  return attr;
}

/// True if every value that `mask` names is one that the manual page allows.
bool values_in_range(const ibv_qp_attr& attr, int mask) {
  const auto bad = [mask](int bit, bool in_range) { return (mask & bit) != 0 && !in_range; };
  return !(bad(IBV_QP_STATE, is_state(attr.qp_state)) ||
           bad(IBV_QP_CUR_STATE, is_state(attr.cur_qp_state)) ||
           bad(IBV_QP_PORT, attr.port_num == kPort) ||
           bad(IBV_QP_PKEY_INDEX, attr.pkey_index == 0) ||
           bad(IBV_QP_PATH_MTU, is_mtu(attr.path_mtu)) ||
           // There is one path, which is where every queue pair has migrated to.
           bad(IBV_QP_PATH_MIG_STATE, raw_value(attr.path_mig_state) == IBV_MIG_MIGRATED) ||
           bad(IBV_QP_DEST_QPN, attr.dest_qp_num <= kNumber24Bits) ||
           bad(IBV_QP_MAX_QP_RD_ATOMIC, attr.max_rd_atomic <= kMaxRdAtom) ||
           bad(IBV_QP_MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic <= kMaxRdAtom) ||
           bad(IBV_QP_TIMEOUT, attr.timeout < 32) || bad(IBV_QP_RETRY_CNT, attr.retry_cnt < 8) ||
           bad(IBV_QP_RNR_RETRY, attr.rnr_retry < 8) ||
           bad(IBV_QP_AV,
               attr.ah_attr.port_num == kPort && (attr.ah_attr.is_global == 0 ||
                                                  attr.ah_attr.grh.sgid_index < kGidTableEntries)));
}

}  // namespace

int attributes_from_verbs(const ibv_qp_attr& given, int mask, QpAttributes& out) {
  if ((mask & ~kKnownMask) != 0) return EOPNOTSUPP;
  if ((mask & kRefusedMask) != 0) return EINVAL;
  const ibv_qp_attr attr = only_named(given, mask);
  if (!values_in_range(attr, mask)) return EINVAL;
  if (mask & IBV_QP_STATE) out.state = static_cast<QpState>(attr.qp_state);
  if (mask & IBV_QP_CUR_STATE) out.current_state = static_cast<QpState>(attr.cur_qp_state);
  if (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) out.notify_drained = attr.en_sqd_async_notify != 0;
  if (mask & IBV_QP_ACCESS_FLAGS) out.access = attr.qp_access_flags & kQpAccess;
  if (mask & IBV_QP_PORT) out.port = attr.port_num;
  if (mask & IBV_QP_PKEY_INDEX) out.pkey_index = attr.pkey_index;
  if (mask & IBV_QP_PATH_MTU) out.path_mtu = static_cast<uint8_t>(attr.path_mtu);
  if (mask & IBV_QP_QKEY) out.qkey = attr.qkey;
  if (mask & IBV_QP_DEST_QPN) out.dest_qp_num = attr.dest_qp_num;
  if (mask & IBV_QP_RQ_PSN) out.rq_psn = attr.rq_psn & kNumber24Bits;
  if (mask & IBV_QP_SQ_PSN) out.sq_psn = attr.sq_psn & kNumber24Bits;
  if (mask & IBV_QP_MAX_QP_RD_ATOMIC) out.max_rd_atomic = attr.max_rd_atomic;
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) out.max_dest_rd_atomic = attr.max_dest_rd_atomic;
  // Five bits, as InfiniBand has them: mlx4, mlx5 and rxe look at no others.
  if (mask & IBV_QP_MIN_RNR_TIMER) out.min_rnr_timer = attr.min_rnr_timer & 31;
  if (mask & IBV_QP_TIMEOUT) out.timeout = attr.timeout;
  if (mask & IBV_QP_RETRY_CNT) out.retry_count = attr.retry_cnt;
  if (mask & IBV_QP_RNR_RETRY) out.rnr_retry = attr.rnr_retry;
  if ((mask & IBV_QP_AV) && attr.ah_attr.is_global != 0) {
    out.has_address = true;
    std::memcpy(out.dgid, attr.ah_attr.grh.dgid.raw, sizeof out.dgid);
    out.sgid_index = attr.ah_attr.grh.sgid_index;
    out.traffic_class = attr.ah_attr.grh.traffic_class;
  }
  return 0;
}

void attributes_to_verbs(const QpAttributes& attributes, ibv_qp_attr& attr) {
  attr.qp_state = static_cast<ibv_qp_state>(attributes.state);
  attr.cur_qp_state = attr.qp_state;
  attr.en_sqd_async_notify = attributes.notify_drained;
  attr.qp_access_flags = attributes.access;
  attr.port_num = attributes.port;
  attr.pkey_index = attributes.pkey_index;
  attr.path_mtu = static_cast<ibv_mtu>(attributes.path_mtu);
  attr.qkey = attributes.qkey;
  attr.dest_qp_num = attributes.dest_qp_num;
  attr.rq_psn = attributes.rq_psn;
  attr.sq_psn = attributes.sq_psn;
  attr.max_rd_atomic = attributes.max_rd_atomic;
  attr.max_dest_rd_atomic = attributes.max_dest_rd_atomic;
  attr.min_rnr_timer = attributes.min_rnr_timer;
  attr.timeout = attributes.timeout;
  attr.retry_cnt = attributes.retry_count;
  attr.rnr_retry = attributes.rnr_retry;
  if (attributes.has_address) {
    attr.ah_attr.is_global = 1;
    std::memcpy(attr.ah_attr.grh.dgid.raw, attributes.dgid, sizeof attributes.dgid);
    attr.ah_attr.grh.sgid_index = attributes.sgid_index;
    attr.ah_attr.grh.traffic_class = attributes.traffic_class;
  }
}

}  // namespace uwarp
