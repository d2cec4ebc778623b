// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Attributes of a queue pair in the engine's terms, and which of them each change of state wants:
// the state and mask table of ibv_modify_qp for each transport.
#pragma once

#include <cstdint>
#include <optional>

#include "qp/qp_config.h"

namespace uwarp {

/// Values of ibv_qp_attr_mask.
enum QpAttributeMask : uint32_t {
  kAttrState = 1u << 0,
  kAttrCurrentState = 1u << 1,
  kAttrNotifyDrained = 1u << 2,
  kAttrAccess = 1u << 3,
  kAttrPkeyIndex = 1u << 4,
  kAttrPort = 1u << 5,
  kAttrQkey = 1u << 6,
  kAttrAddress = 1u << 7,
  kAttrPathMtu = 1u << 8,
  kAttrTimeout = 1u << 9,
  kAttrRetryCount = 1u << 10,
  kAttrRnrRetry = 1u << 11,
  kAttrRqPsn = 1u << 12,
  kAttrMaxRdAtomic = 1u << 13,
  kAttrAlternatePath = 1u << 14,
  kAttrMinRnrTimer = 1u << 15,
  kAttrSqPsn = 1u << 16,
  kAttrMaxDestRdAtomic = 1u << 17,
  kAttrPathMigration = 1u << 18,
  kAttrCap = 1u << 19,
  kAttrDestQpn = 1u << 20,
  kAttrRateLimit = 1u << 25,
};

/// Attributes of a queue pair; verbs/ fills it from ibv_qp_attr. The mask bits are those of
/// ibv_qp_attr_mask.
struct QpAttributes {
  QpState state = QpState::kReset;
  QpState current_state = QpState::kReset;
  bool notify_drained = false;
  uint32_t access = 0;
  uint8_t port = 1;
  uint16_t pkey_index = 0;
  uint8_t path_mtu = 5;
  uint32_t qkey = 0;
  uint32_t dest_qp_num = 0;
  uint32_t rq_psn = 0;
  uint32_t sq_psn = 0;
  uint8_t max_rd_atomic = 0;       // ORD
  uint8_t max_dest_rd_atomic = 0;  // IRD
  uint8_t min_rnr_timer = 0;
  uint8_t timeout = 0;
  uint8_t retry_count = 0;
  uint8_t rnr_retry = 0;
  bool has_address = false;  // an address vector was given
  uint8_t dgid[16] = {};
  uint8_t sgid_index = 0;
  uint8_t traffic_class = 0;
};

/// What rdma_cm gives a queue pair when a connection is made, in the codes of ibv_modify_qp. What
/// is not set stays as it is.
struct RetryAttributes {
  std::optional<uint8_t> timeout;
  std::optional<uint8_t> retry_count;
  std::optional<uint8_t> rnr_retry;
};

/// `mask` without the bits that the kernel ignores: those of the half that an XRC queue pair does
/// not have. Applications pass them.
uint32_t meaningful_mask(Transport transport, uint32_t mask);

/// True if the manual allows `from` -> `to` with exactly these mask bits: all required ones, and
/// beside them only optional ones. kAttrState itself is not looked at.
bool transition_allowed(Transport transport, QpState from, QpState to, uint32_t mask);

/// True if a queue pair that rdma_cm uses may be changed like this: librdmacm moves it through
/// INIT, RTR and RTS with the few bits that the kernel's iWARP branch hands out.
bool is_cm_mask(QpState to, uint32_t mask);

/// What librdmacm is given as the peer's number when it takes its InfiniBand branch (roce persona):
/// MPA does not tell the real one. No queue pair has it, so it also tells that the connection
/// manager, and no rendezvous, connects the queue pair.
inline constexpr uint32_t kCmPeerQpn = 0xFFFFFF;

/// True if the change is one of that branch.
inline bool names_cm_peer(const QpAttributes& attributes, uint32_t mask) {
  return (mask & kAttrDestQpn) != 0 && attributes.dest_qp_num == kCmPeerQpn;
}

/// Copies the attributes that `mask` names.
void merge_attributes(QpAttributes& into, const QpAttributes& from, uint32_t mask);

/// True if every attribute that `mask` names has a value that a queue pair takes.
bool attributes_in_range(const QpAttributes& attributes, uint32_t mask);

}  // namespace uwarp
