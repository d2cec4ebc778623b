// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The tables of ibv_modify_qp(3), with the optional bits of the InfiniBand specification's
// transitions (11.2.4.2) that the manual leaves out.
#include "connect/qp_attributes.h"

#include <cstring>
#include <span>

#include "base/limits.h"

namespace uwarp {
namespace {

struct Transition {
  QpState from, to;
  uint32_t required, optional;
};

constexpr uint32_t kPathOptions = kAttrAccess | kAttrAlternatePath | kAttrPathMigration;
constexpr uint32_t kConnectionOptions = kPathOptions | kAttrMinRnrTimer;
constexpr uint32_t kInitial = kAttrPkeyIndex | kAttrPort | kAttrAccess;
constexpr uint32_t kInitialDatagram = kAttrPkeyIndex | kAttrPort | kAttrQkey;
constexpr uint32_t kPeer = kAttrAddress | kAttrPathMtu | kAttrDestQpn | kAttrRqPsn;
constexpr uint32_t kPeerOptions = kAttrAccess | kAttrPkeyIndex | kAttrAlternatePath;
constexpr uint32_t kRetries = kAttrTimeout | kAttrRetryCount | kAttrRnrRetry;

// What a reliable connection needs, with a requester and a responder.
constexpr Transition kRcTransitions[] = {
    {QpState::kReset, QpState::kInit, kInitial, 0},
    {QpState::kInit, QpState::kInit, 0, kInitial},
    {QpState::kInit, QpState::kRtr, kPeer | kAttrMaxDestRdAtomic | kAttrMinRnrTimer, kPeerOptions},
    {QpState::kRtr, QpState::kRts, kAttrSqPsn | kRetries | kAttrMaxRdAtomic,
     kConnectionOptions | kAttrCurrentState},
    {QpState::kRts, QpState::kRts, 0, kConnectionOptions | kAttrCurrentState | kAttrRateLimit},
    {QpState::kRts, QpState::kSqd, 0, kAttrNotifyDrained},
    {QpState::kSqd, QpState::kRts, 0, kConnectionOptions | kAttrCurrentState},
    {QpState::kSqd, QpState::kSqd, 0,
     kConnectionOptions | kAttrCurrentState | kAttrNotifyDrained | kAttrPkeyIndex | kAttrPort |
         kAttrAddress | kAttrMaxRdAtomic | kAttrMaxDestRdAtomic | kRetries},
    {QpState::kSqe, QpState::kRts, 0, kAttrAccess | kAttrCurrentState},
};

// Nothing is repeated, and nothing is read.
constexpr Transition kUcTransitions[] = {
    {QpState::kReset, QpState::kInit, kInitial, 0},
    {QpState::kInit, QpState::kInit, 0, kInitial},
    {QpState::kInit, QpState::kRtr, kPeer, kPeerOptions},
    {QpState::kRtr, QpState::kRts, kAttrSqPsn, kPathOptions | kAttrCurrentState},
    {QpState::kRts, QpState::kRts, 0, kPathOptions | kAttrCurrentState | kAttrRateLimit},
    {QpState::kRts, QpState::kSqd, 0, kAttrNotifyDrained},
    {QpState::kSqd, QpState::kRts, 0, kPathOptions | kAttrCurrentState},
    {QpState::kSqd, QpState::kSqd, 0,
     kPathOptions | kAttrCurrentState | kAttrNotifyDrained | kAttrPkeyIndex | kAttrAddress},
    {QpState::kSqe, QpState::kRts, 0, kAttrAccess | kAttrCurrentState},
};

// It has no peer.
constexpr Transition kUdTransitions[] = {
    {QpState::kReset, QpState::kInit, kInitialDatagram, 0},
    {QpState::kInit, QpState::kInit, 0, kInitialDatagram},
    {QpState::kInit, QpState::kRtr, 0, kAttrPkeyIndex | kAttrQkey},
    {QpState::kRtr, QpState::kRts, kAttrSqPsn, kAttrQkey | kAttrCurrentState},
    {QpState::kRts, QpState::kRts, 0, kAttrQkey | kAttrCurrentState | kAttrRateLimit},
    {QpState::kRts, QpState::kSqd, 0, kAttrNotifyDrained},
    {QpState::kSqd, QpState::kRts, 0, kAttrQkey | kAttrCurrentState},
    {QpState::kSqd, QpState::kSqd, 0, kAttrQkey | kAttrPkeyIndex | kAttrNotifyDrained},
    {QpState::kSqe, QpState::kRts, 0, kAttrQkey | kAttrCurrentState},
};

// Of the two halves of an extended reliable connection one requests, the other responds.
constexpr Transition kXrcSendTransitions[] = {
    {QpState::kReset, QpState::kInit, kInitial, 0},
    {QpState::kInit, QpState::kInit, 0, kInitial},
    {QpState::kInit, QpState::kRtr, kPeer, kPeerOptions},
    {QpState::kRtr, QpState::kRts, kAttrSqPsn | kRetries | kAttrMaxRdAtomic,
     kPathOptions | kAttrCurrentState},
    {QpState::kRts, QpState::kRts, 0, kPathOptions | kAttrCurrentState},
    {QpState::kRts, QpState::kSqd, 0, kAttrNotifyDrained},
    {QpState::kSqd, QpState::kRts, 0, kPathOptions | kAttrCurrentState},
    {QpState::kSqd, QpState::kSqd, 0,
     kPathOptions | kAttrCurrentState | kAttrNotifyDrained | kAttrPkeyIndex | kAttrPort |
         kAttrAddress | kAttrMaxRdAtomic | kRetries},
    {QpState::kSqe, QpState::kRts, 0, kAttrAccess | kAttrCurrentState},
};
constexpr Transition kXrcReceiveTransitions[] = {
    {QpState::kReset, QpState::kInit, kInitial, 0},
    {QpState::kInit, QpState::kInit, 0, kInitial},
    {QpState::kInit, QpState::kRtr, kPeer | kAttrMaxDestRdAtomic | kAttrMinRnrTimer, kPeerOptions},
    {QpState::kRtr, QpState::kRts, kAttrSqPsn | kAttrTimeout,
     kConnectionOptions | kAttrCurrentState},
    {QpState::kRts, QpState::kRts, 0, kConnectionOptions | kAttrCurrentState},
    {QpState::kRts, QpState::kSqd, 0, kAttrNotifyDrained},
    {QpState::kSqd, QpState::kRts, 0, kConnectionOptions | kAttrCurrentState},
    {QpState::kSqd, QpState::kSqd, 0,
     kConnectionOptions | kAttrCurrentState | kAttrNotifyDrained | kAttrPkeyIndex | kAttrPort |
         kAttrAddress | kAttrMaxDestRdAtomic | kAttrTimeout},
    {QpState::kSqe, QpState::kRts, 0, kAttrAccess | kAttrCurrentState},
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

uint32_t meaningful_mask(Transport transport, uint32_t mask) {
  if (transport == Transport::kXrcSend) return mask & ~(kAttrMaxDestRdAtomic | kAttrMinRnrTimer);
  if (transport == Transport::kXrcReceive)
    return mask & ~(kAttrMaxRdAtomic | kAttrRetryCount | kAttrRnrRetry);
  return mask;
}

bool transition_allowed(Transport transport, QpState from, QpState to, uint32_t mask) {
  mask &= ~kAttrState;
  // From any state, with any other attributes.
  if (to == QpState::kReset || to == QpState::kErr) return true;
  for (const Transition& row : transitions(transport)) {
    if (row.from != from || row.to != to) continue;
    return (mask & row.required) == row.required && (mask & ~(row.required | row.optional)) == 0;
  }
  return false;
}

bool is_cm_mask(QpState to, uint32_t mask) {
  if (to != QpState::kInit && to != QpState::kRtr && to != QpState::kRts) return false;
  return mask == (kAttrState | kAttrAccess | kAttrPort);
}

void merge_attributes(QpAttributes& into, const QpAttributes& from, uint32_t mask) {
  const auto named = [mask](uint32_t bit) { return (mask & bit) != 0; };
  if (named(kAttrNotifyDrained)) into.notify_drained = from.notify_drained;
  if (named(kAttrAccess)) into.access = from.access;
  if (named(kAttrPkeyIndex)) into.pkey_index = from.pkey_index;
  if (named(kAttrPort)) into.port = from.port;
  if (named(kAttrAddress)) {
    into.has_address = from.has_address;
    std::memcpy(into.dgid, from.dgid, sizeof into.dgid);
    into.sgid_index = from.sgid_index;
    into.traffic_class = from.traffic_class;
  }
  if (named(kAttrQkey)) into.qkey = from.qkey;
  if (named(kAttrPathMtu)) into.path_mtu = from.path_mtu;
  if (named(kAttrTimeout)) into.timeout = from.timeout;
  if (named(kAttrRetryCount)) into.retry_count = from.retry_count;
  if (named(kAttrRnrRetry)) into.rnr_retry = from.rnr_retry;
  if (named(kAttrRqPsn)) into.rq_psn = from.rq_psn & 0xFFFFFF;
  if (named(kAttrMaxRdAtomic)) into.max_rd_atomic = from.max_rd_atomic;
  if (named(kAttrMinRnrTimer)) into.min_rnr_timer = from.min_rnr_timer;
  if (named(kAttrSqPsn)) into.sq_psn = from.sq_psn & 0xFFFFFF;
  if (named(kAttrMaxDestRdAtomic)) into.max_dest_rd_atomic = from.max_dest_rd_atomic;
  if (named(kAttrDestQpn)) into.dest_qp_num = from.dest_qp_num & 0xFFFFFF;
}

bool attributes_in_range(const QpAttributes& attributes, uint32_t mask) {
  const auto named = [mask](uint32_t bit) { return (mask & bit) != 0; };
  if (named(kAttrPort) && attributes.port != 1) return false;
  if (named(kAttrPkeyIndex) && attributes.pkey_index != 0) return false;
  if (named(kAttrPathMtu) && (attributes.path_mtu < 1 || attributes.path_mtu > 5)) return false;
  if (named(kAttrTimeout) && attributes.timeout > 31) return false;
  if (named(kAttrRetryCount) && attributes.retry_count > 7) return false;
  if (named(kAttrRnrRetry) && attributes.rnr_retry > 7) return false;
  if (named(kAttrMinRnrTimer) && attributes.min_rnr_timer > 31) return false;
  if (named(kAttrMaxRdAtomic) && attributes.max_rd_atomic > kMaxRdAtom) return false;
  if (named(kAttrMaxDestRdAtomic) && attributes.max_dest_rd_atomic > kMaxRdAtom) return false;
  return true;
}

}  // namespace uwarp
