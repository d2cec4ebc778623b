// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The only place where numbers of the public verbs ABI and of the engine meet. Most are equal by
// design, so that a conversion is a copy; the equality is asserted here and nowhere assumed.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

#include "memory/region_table.h"
#include "qp/qp_config.h"
#include "qp/work_request.h"

namespace uwarp {

// ---- Completions --------------------------------------------------------------------------------

static_assert(sizeof(WorkCompletion) == sizeof(ibv_wc));
static_assert(alignof(WorkCompletion) == alignof(ibv_wc));
#define UWARP_SAME_PLACE(ours, theirs) \
  static_assert(offsetof(WorkCompletion, ours) == offsetof(ibv_wc, theirs))
UWARP_SAME_PLACE(wr_id, wr_id);
UWARP_SAME_PLACE(status, status);
UWARP_SAME_PLACE(opcode, opcode);
UWARP_SAME_PLACE(vendor_err, vendor_err);
UWARP_SAME_PLACE(byte_len, byte_len);
UWARP_SAME_PLACE(imm_or_invalidated, imm_data);
UWARP_SAME_PLACE(qp_num, qp_num);
UWARP_SAME_PLACE(src_qp, src_qp);
UWARP_SAME_PLACE(wc_flags, wc_flags);
UWARP_SAME_PLACE(pkey_index, pkey_index);
UWARP_SAME_PLACE(slid, slid);
UWARP_SAME_PLACE(sl, sl);
UWARP_SAME_PLACE(dlid_path_bits, dlid_path_bits);
#undef UWARP_SAME_PLACE

#define UWARP_SAME_VALUE(ours, theirs) \
  static_assert(static_cast<uint64_t>(ours) == static_cast<uint64_t>(theirs))
UWARP_SAME_VALUE(WcStatus::kSuccess, IBV_WC_SUCCESS);
UWARP_SAME_VALUE(WcStatus::kLocLenErr, IBV_WC_LOC_LEN_ERR);
UWARP_SAME_VALUE(WcStatus::kLocQpOpErr, IBV_WC_LOC_QP_OP_ERR);
UWARP_SAME_VALUE(WcStatus::kLocProtErr, IBV_WC_LOC_PROT_ERR);
UWARP_SAME_VALUE(WcStatus::kWrFlushErr, IBV_WC_WR_FLUSH_ERR);
UWARP_SAME_VALUE(WcStatus::kMwBindErr, IBV_WC_MW_BIND_ERR);
UWARP_SAME_VALUE(WcStatus::kBadRespErr, IBV_WC_BAD_RESP_ERR);
UWARP_SAME_VALUE(WcStatus::kLocAccessErr, IBV_WC_LOC_ACCESS_ERR);
UWARP_SAME_VALUE(WcStatus::kRemInvReqErr, IBV_WC_REM_INV_REQ_ERR);
UWARP_SAME_VALUE(WcStatus::kRemAccessErr, IBV_WC_REM_ACCESS_ERR);
UWARP_SAME_VALUE(WcStatus::kRemOpErr, IBV_WC_REM_OP_ERR);
UWARP_SAME_VALUE(WcStatus::kRetryExcErr, IBV_WC_RETRY_EXC_ERR);
UWARP_SAME_VALUE(WcStatus::kRnrRetryExcErr, IBV_WC_RNR_RETRY_EXC_ERR);
UWARP_SAME_VALUE(WcStatus::kFatalErr, IBV_WC_FATAL_ERR);

UWARP_SAME_VALUE(WcOpcode::kSend, IBV_WC_SEND);
UWARP_SAME_VALUE(WcOpcode::kWrite, IBV_WC_RDMA_WRITE);
UWARP_SAME_VALUE(WcOpcode::kRead, IBV_WC_RDMA_READ);
UWARP_SAME_VALUE(WcOpcode::kCompareSwap, IBV_WC_COMP_SWAP);
UWARP_SAME_VALUE(WcOpcode::kFetchAdd, IBV_WC_FETCH_ADD);
UWARP_SAME_VALUE(WcOpcode::kBindWindow, IBV_WC_BIND_MW);
UWARP_SAME_VALUE(WcOpcode::kLocalInvalidate, IBV_WC_LOCAL_INV);
UWARP_SAME_VALUE(WcOpcode::kRecv, IBV_WC_RECV);
UWARP_SAME_VALUE(WcOpcode::kRecvWriteWithImm, IBV_WC_RECV_RDMA_WITH_IMM);

UWARP_SAME_VALUE(kWcWithImm, IBV_WC_WITH_IMM);
UWARP_SAME_VALUE(kWcWithInvalidate, IBV_WC_WITH_INV);

// ---- Work requests ------------------------------------------------------------------------------

static_assert(sizeof(Sge) == sizeof(ibv_sge));
static_assert(offsetof(Sge, address) == offsetof(ibv_sge, addr));
static_assert(offsetof(Sge, length_bytes) == offsetof(ibv_sge, length));
static_assert(offsetof(Sge, lkey) == offsetof(ibv_sge, lkey));

UWARP_SAME_VALUE(SendOpcode::kWrite, IBV_WR_RDMA_WRITE);
UWARP_SAME_VALUE(SendOpcode::kWriteWithImm, IBV_WR_RDMA_WRITE_WITH_IMM);
UWARP_SAME_VALUE(SendOpcode::kSend, IBV_WR_SEND);
UWARP_SAME_VALUE(SendOpcode::kSendWithImm, IBV_WR_SEND_WITH_IMM);
UWARP_SAME_VALUE(SendOpcode::kRead, IBV_WR_RDMA_READ);
UWARP_SAME_VALUE(SendOpcode::kCompareSwap, IBV_WR_ATOMIC_CMP_AND_SWP);
UWARP_SAME_VALUE(SendOpcode::kFetchAdd, IBV_WR_ATOMIC_FETCH_AND_ADD);
UWARP_SAME_VALUE(SendOpcode::kLocalInvalidate, IBV_WR_LOCAL_INV);
UWARP_SAME_VALUE(SendOpcode::kBindWindow, IBV_WR_BIND_MW);
UWARP_SAME_VALUE(SendOpcode::kSendWithInvalidate, IBV_WR_SEND_WITH_INV);

UWARP_SAME_VALUE(kSendFence, IBV_SEND_FENCE);
UWARP_SAME_VALUE(kSendSignaled, IBV_SEND_SIGNALED);
UWARP_SAME_VALUE(kSendSolicited, IBV_SEND_SOLICITED);
UWARP_SAME_VALUE(kSendInline, IBV_SEND_INLINE);

/// Send flags that mean something on a reliable connection; others make a request invalid.
inline constexpr unsigned kKnownSendFlags =
    IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;

// ---- Regions ------------------------------------------------------------------------------------

UWARP_SAME_VALUE(kAccessLocalWrite, IBV_ACCESS_LOCAL_WRITE);
UWARP_SAME_VALUE(kAccessRemoteWrite, IBV_ACCESS_REMOTE_WRITE);
UWARP_SAME_VALUE(kAccessRemoteRead, IBV_ACCESS_REMOTE_READ);
UWARP_SAME_VALUE(kAccessRemoteAtomic, IBV_ACCESS_REMOTE_ATOMIC);
UWARP_SAME_VALUE(kAccessMwBind, IBV_ACCESS_MW_BIND);
UWARP_SAME_VALUE(kAccessZeroBased, IBV_ACCESS_ZERO_BASED);
UWARP_SAME_VALUE(kAccessOnDemand, IBV_ACCESS_ON_DEMAND);

// ---- Queue pairs --------------------------------------------------------------------------------

UWARP_SAME_VALUE(QpEvent::kFatal, IBV_EVENT_QP_FATAL);
UWARP_SAME_VALUE(QpEvent::kRequestError, IBV_EVENT_QP_REQ_ERR);
UWARP_SAME_VALUE(QpEvent::kAccessError, IBV_EVENT_QP_ACCESS_ERR);
UWARP_SAME_VALUE(QpEvent::kCommEstablished, IBV_EVENT_COMM_EST);
UWARP_SAME_VALUE(QpEvent::kSqDrained, IBV_EVENT_SQ_DRAINED);
UWARP_SAME_VALUE(QpEvent::kLastWqeReached, IBV_EVENT_QP_LAST_WQE_REACHED);
#undef UWARP_SAME_VALUE

}  // namespace uwarp
