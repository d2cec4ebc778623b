// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/transmit/direct_requests.h"

#include <algorithm>
#include <cassert>

namespace uwarp {

DirectRequests::Outcome DirectRequests::try_copy() {
  const uint64_t position = queue_.started();
  const SendWqe& wqe = queue_.at(position);
  const bool read = wqe.opcode == SendOpcode::kRead;
  const bool suits = (read || wqe.opcode == SendOpcode::kWrite) && wqe.length_bytes != 0;
  const bool large = wqe.length_bytes >= tuning::kPullBytes;
  large_run_ = suits && large ? large_run_ + 1 : 0;
  if (sent_untried_ != 0) {
    --sent_untried_;
    if (suits) counters_.direct_refused.add(1);
    return Outcome::kSend;
  }
  if (!suits) return Outcome::kSend;
  if (!stream_.remote->reachable()) {
    counters_.direct_unreachable.add(1);
    return Outcome::kSend;
  }
  // Several small ones get there sooner by the ring: where a thread of the peer looks at it, and
  // where they are many or the application posts more before it polls what is complete, as two
  // threads do more than one.
  const uint64_t waiting = queue_.posted() - position;
  const uint64_t many = large ? tuning::kCopiedAtOnce : tuning::kShortList;
  if (!(large && stream_.remote->suits_bulk()) && waiting != 1 &&
      (waiting >= many || stream_.remote->attended() || !config_.send_cq->empty()))
    return Outcome::kSend;
  if (turn_.bytes >= tuning::kPassBytes) return Outcome::kLater;
  if (!completer_.all_placed()) {
    // A pipeline that never runs dry would never leave the ring.
    const bool waits = large_run_ > tuning::kCopiedAtOnce && stream_.remote->await_settled();
    return waits ? Outcome::kWait : Outcome::kSend;
  }
  RemoteCopy copy(wqe.rkey, read);
  uint64_t end = position;
  while (end != queue_.posted() && queue_.at(end).opcode == wqe.opcode &&
         queue_.at(end).rkey == wqe.rkey && add_to(copy, end))
    ++end;
  const size_t done = copy.requests().empty() ? 0 : stream_.remote->copy(copy);
  if (done == 0) {
    large_run_ = 0;
    sent_untried_ = tuning::kSentUntried;
    counters_.direct_refused.add(1);
    return Outcome::kSend;
  }
  turn_.bytes += copy.bytes();
  if (end == position) {  // a part of one
    copied_bytes_ += copy.bytes();
    return Outcome::kLater;
  }
  copied_bytes_ = 0;
  completer_.complete_direct(done);
  return Outcome::kDone;
}

// False: no request may follow it: it is not in, or only with a part.
bool DirectRequests::add_to(RemoteCopy& copy, uint64_t position) {
  const SendWqe& wqe = queue_.at(position);
  const uint32_t needed = copy.reads() ? uint32_t{kAccessLocalWrite} : 0;
  BufferList payload;
  if (wqe.length_bytes == 0 || !copy.has_space(kMaxSge) ||
      !queue_.gather(position, *config_.regions, *config_.domain, needed, payload) ||
      !payload.plain())
    return false;
  // Of the oldest one a part may be there already.
  const uint64_t skip = copy.requests().empty() ? copied_bytes_ : 0;
  assert(skip < wqe.length_bytes);
  const uint64_t left = wqe.length_bytes - skip;
  uint64_t bytes = std::min(left, tuning::kPassBytes - copy.bytes());
  if (bytes != left && !copy.requests().empty()) return false;
  const size_t pieces = payload.describe(skip, bytes, copy.space(), kMaxSge);
  copy.add(wqe.remote_address + skip, bytes, pieces);
  return bytes == left;
}

}  // namespace uwarp
