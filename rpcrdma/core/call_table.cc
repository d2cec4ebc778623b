// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "core/call_table.h"

#include <algorithm>

namespace rpcrdma::core {

bool CallTable::is_sent(uint32_t xid) const {
  const auto found = calls_.find(xid);
  return found != calls_.end() && found->second.sent;
}

bool CallTable::add(uint32_t xid) {
  if (!calls_.try_emplace(xid, Call{next_order_, false, false, std::nullopt}).second) return false;
  ++next_order_;
  queue_.push_back(xid);
  return true;
}

std::optional<uint32_t> CallTable::take_next() {
  if (queue_.empty() || !credits_.take()) return std::nullopt;
  const uint32_t xid = queue_.front();
  queue_.pop_front();
  calls_.at(xid).sent = true;
  return xid;
}

void CallTable::set_deadline(uint32_t xid, uint64_t deadline_ns) {
  const auto found = calls_.find(xid);
  if (found != calls_.end()) found->second.deadline_ns = deadline_ns;
}

bool CallTable::answered(uint32_t xid, uint32_t credits) {
  credits_.grant(credits);
  const auto found = calls_.find(xid);
  if (found == calls_.end() || !found->second.sent || found->second.answered) return false;
  found->second.answered = true;
  credits_.put_back();
  return true;
}

void CallTable::remove(uint32_t xid) {
  const auto found = calls_.find(xid);
  if (found == calls_.end()) return;
  if (found->second.sent && !found->second.answered) credits_.put_back();
  if (!found->second.sent) std::erase(queue_, xid);
  calls_.erase(found);
}

std::vector<uint32_t> CallTable::connection_lost() {
  credits_.restart();
  std::vector<uint32_t> again;
  for (auto& [xid, call] : calls_) {
    if (!call.sent) continue;
    call.sent = call.answered = false;
    call.deadline_ns.reset();
    again.push_back(xid);
  }
  std::sort(again.begin(), again.end(),
            [this](uint32_t a, uint32_t b) { return calls_.at(a).order < calls_.at(b).order; });
  queue_.insert(queue_.begin(), again.begin(), again.end());
  return again;
}

std::optional<uint64_t> CallTable::next_deadline() const {
  std::optional<uint64_t> next;
  for (const auto& [xid, call] : calls_)
    if (call.deadline_ns && (!next || *call.deadline_ns < *next)) next = call.deadline_ns;
  return next;
}

std::optional<uint32_t> CallTable::overdue(uint64_t now_ns) const {
  for (const auto& [xid, call] : calls_)
    if (call.deadline_ns && *call.deadline_ns <= now_ns) return xid;
  return std::nullopt;
}

std::vector<uint32_t> CallTable::all() const {
  std::vector<uint32_t> xids;
  for (const auto& [xid, call] : calls_) xids.push_back(xid);
  return xids;
}

}  // namespace rpcrdma::core
