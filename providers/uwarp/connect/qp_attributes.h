// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The attributes of a queue pair, which of them each change of state wants, and which changes are
// made: all rules of ibv_modify_qp but those of addresses.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>

#include "base/limits.h"
#include "base/settings.h"
#include "qp/qp_config.h"

namespace uwarp {

static_assert(static_cast<int>(QpState::kReset) == IBV_QPS_RESET);
static_assert(static_cast<int>(QpState::kInit) == IBV_QPS_INIT);
static_assert(static_cast<int>(QpState::kRtr) == IBV_QPS_RTR);
static_assert(static_cast<int>(QpState::kRts) == IBV_QPS_RTS);
static_assert(static_cast<int>(QpState::kSqd) == IBV_QPS_SQD);
static_assert(static_cast<int>(QpState::kSqe) == IBV_QPS_SQE);
static_assert(static_cast<int>(QpState::kErr) == IBV_QPS_ERR);

/// What a queue pair has before anything is set.
inline ibv_qp_attr initial_attributes() {
  ibv_qp_attr attributes{};
  attributes.port_num = kPort;
  attributes.path_mtu = static_cast<ibv_mtu>(settings().adapter.max_mtu);
  return attributes;
}

/// What rdma_cm gives a queue pair when a connection is made, in the codes of ibv_modify_qp. What
/// is not set stays as it is.
struct RetryAttributes {
  std::optional<uint8_t> timeout;
  std::optional<uint8_t> retry_count;
  std::optional<uint8_t> rnr_retry;
};

/// Copies the attributes that `mask` names, and of each the bits that have a meaning. Applications
/// leave the others uninitialised, and the compiler may test a value before the bit of `mask` that
/// names it: no fault, but valgrind reports the jump. So all else is given such a copy.
void merge_attributes(ibv_qp_attr& into, const ibv_qp_attr& from, int mask);

/// 0; EINVAL when a value that `mask` names is out of the range that the manual page gives (or
/// names another port); EOPNOTSUPP for a bit of the mask that no queue pair here has.
int check_attributes(const ibv_qp_attr& attributes, int mask);

/// `mask` without the bits that the kernel ignores: those of the half that an XRC queue pair does
/// not have. Applications pass them.
int meaningful_mask(Transport transport, int mask);

/// True if the manual allows `from` -> `to` with exactly these mask bits: all required ones, and
/// beside them only optional ones. IBV_QP_STATE itself is not looked at.
bool transition_allowed(Transport transport, QpState from, QpState to, int mask);

/// True if a queue pair that rdma_cm uses may be changed like this: librdmacm moves it through
/// INIT, RTR and RTS with the few bits that the kernel's iWARP branch hands out.
bool is_cm_mask(QpState to, int mask);

/// What librdmacm is given as the peer's number when it takes its InfiniBand branch (roce persona):
/// MPA does not tell the real one. No queue pair has it, so it also tells that the connection
/// manager, and no rendezvous, connects the queue pair.
inline constexpr uint32_t kCmPeerQpn = 0xFFFFFF;

/// True if the change is one of that branch.
inline bool names_cm_peer(const ibv_qp_attr& attributes, int mask) {
  return (mask & IBV_QP_DEST_QPN) != 0 && attributes.dest_qp_num == kCmPeerQpn;
}

/// A queue pair that is to be changed.
struct QpToChange {
  Transport transport;
  QpState state;
  /// In the iwarp persona, where the kernel has no table of transitions.
  bool is_rnic = false;
  /// rdma_cm connects it.
  bool is_cms = false;
  /// rdma_cm may connect it: no rendezvous does.
  bool may_be_cms = false;
};

/// What is to be done when an application asks for a change.
enum class QpChange {
  kRefuse,
  kIgnore,     // accepted, but nothing comes of it
  kMake,       // as the table of transitions says
  kMakeForCm,  // a step of librdmacm's, to INIT, RTR or RTS
};
QpChange change_of(const QpToChange& qp, const ibv_qp_attr& attributes, int mask);

}  // namespace uwarp
