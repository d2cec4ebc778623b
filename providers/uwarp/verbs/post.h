// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Posting: lists of ibv work requests into the engine's terms, one at a time, without a copy of the
// scatter/gather lists. The hot path of the application's side.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdint>
#include <span>

#include "base/limits.h"
#include "qp/work_request.h"

namespace uwarp {

/// The request has a valid scatter/gather list.
template <typename Request>
bool has_sges(const Request& wr) {
  return static_cast<uint32_t>(wr.num_sge) <= kMaxSge && (wr.num_sge == 0 || wr.sg_list != nullptr);
}
/// That list (the layouts are equal: status_map.h).
template <typename Request>
std::span<const Sge> sges_of(const Request& wr) {
  return {reinterpret_cast<const Sge*>(wr.sg_list), static_cast<size_t>(wr.num_sge)};
}

/// Posts receives in order by `post(wr_id, sges)`; at the first failure stops and tells which it
/// was.
template <typename Post>
int post_receive_list(ibv_recv_wr* wr, ibv_recv_wr** bad_wr, Post&& post) {
  for (; wr != nullptr; wr = wr->next) {
    const int error = has_sges(*wr) ? post(wr->wr_id, sges_of(*wr)) : EINVAL;
    if (error != 0) [[unlikely]] {
      if (bad_wr != nullptr) *bad_wr = wr;
      return error;
    }
  }
  return 0;
}

/// Converts a send request; its spans point into `wr`. 0; EINVAL (unknown flag or opcode, bad
/// list), EOPNOTSUPP (an opcode of other transports).
int send_request_from_verbs(const ibv_send_wr& wr, SendRequest& out);

}  // namespace uwarp
