// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The calls of a client by XID, whose turn it is under the server's credits, and when each runs out
// of time. Sans-IO: the caller brings the clock. RFC 8166 3.3; RFC 5531 9.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

namespace rpcrdma::core {

/// Calls that may be outstanding on a connection. RFC 8166 3.3.1.
class Credits {
 public:
  explicit Credits(uint32_t wanted) : wanted_(wanted) {}

  uint32_t wanted() const { return wanted_; }
  uint32_t granted() const { return granted_; }
  uint32_t outstanding() const { return outstanding_; }

  [[nodiscard]] bool take() {
    if (outstanding_ >= granted_) return false;
    ++outstanding_;
    return true;
  }
  void put_back() { --outstanding_; }
  /// A server must not grant none; one that does would never be called again, so it means one.
  /// More than asked for has no receives behind it on this side.
  void grant(uint32_t credits) {
    granted_ = credits < 1 ? 1 : credits < wanted_ ? credits : wanted_;
  }
  /// A new connection: one call, until its reply says more.
  void restart() { granted_ = 1, outstanding_ = 0; }

 private:
  uint32_t wanted_;
  uint32_t granted_ = 1;
  uint32_t outstanding_ = 0;
};

class CallTable {
 public:
  explicit CallTable(uint32_t credits_wanted) : credits_(credits_wanted) {}

  const Credits& credits() const { return credits_; }
  size_t size() const { return calls_.size(); }
  bool contains(uint32_t xid) const { return calls_.count(xid) != 0; }
  bool is_sent(uint32_t xid) const;

  /// A new call, behind those that wait. False: the XID is in use.
  [[nodiscard]] bool add(uint32_t xid);
  /// The next call that may be sent now; it counts as sent from here on.
  std::optional<uint32_t> take_next();
  /// When the call that was sent runs out of time, in the caller's clock.
  void set_deadline(uint32_t xid, uint64_t deadline_ns);
  /// The server answered this call. False: it never was sent. The credits count in any case.
  bool answered(uint32_t xid, uint32_t credits);
  /// Forgets the call.
  void remove(uint32_t xid);
  /// The connection has gone: what was sent waits again, in the order in which it first came, and
  /// before the others. These XIDs.
  std::vector<uint32_t> connection_lost();

  std::optional<uint64_t> next_deadline() const;
  /// A call whose deadline is not after `now`.
  std::optional<uint32_t> overdue(uint64_t now_ns) const;
  bool waiting() const { return !queue_.empty(); }
  std::vector<uint32_t> all() const;

 private:
  struct Call {
    uint64_t order;         ///< of arrival
    bool sent = false;      ///< holds a credit
    bool answered = false;  ///< gave it back, and still is in the table
    std::optional<uint64_t> deadline_ns;
  };

  Credits credits_;
  std::unordered_map<uint32_t, Call> calls_;
  std::deque<uint32_t> queue_;  ///< not sent yet
  uint64_t next_order_ = 0;
};

}  // namespace rpcrdma::core
