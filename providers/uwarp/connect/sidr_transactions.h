// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The requests of service ID resolution that a listener knows: those that wait for the
// application's answer, and the replies to the last ones, for peers that have not got them and ask
// again. Bounded. A value without sockets or time; its owner locks.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "net/ip_address.h"

namespace uwarp {

class SidrTransactions {
 public:
  /// Of one listener. A peer whose reply is no longer kept repeats a request that was answered
  /// `kMostAnswered` requests ago: it is then told to the application once more.
  static constexpr size_t kMostWaiting = 4096;
  static constexpr size_t kMostAnswered = 1024;

  /// The peer that asks, and the number that it gave its request.
  struct Key {
    IpAddress address;
    uint16_t port = 0;
    uint64_t transaction = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  enum class Outcome : uint8_t {
    kNew,       ///< is entered, and waits from now on
    kWaiting,   ///< a repetition of one that waits: nothing to do
    kAnswered,  ///< a repetition: `reply` is sent again
    kNoRoom,    ///< not entered
  };
  struct Entry {
    Outcome outcome;
    const std::vector<std::byte>* reply = nullptr;  ///< until the next call
  };
  /// Throws std::bad_alloc, and has done nothing then.
  Entry enter(const Key& key) {
    const auto known = replies_.find(key);
    if (known != replies_.end()) {
      if (known->second.empty()) return {Outcome::kWaiting};
      return {Outcome::kAnswered, &known->second};
    }
    if (waiting_ == kMostWaiting) return {Outcome::kNoRoom};
    replies_.emplace(key, std::vector<std::byte>());
    ++waiting_;
    return {Outcome::kNew};
  }

  /// A request that waits has got this reply, which is not empty. The oldest reply may be dropped
  /// for it. Throws std::bad_alloc, and has done nothing then.
  void answered(const Key& key, std::vector<std::byte> reply) {
    const auto known = replies_.find(key);
    if (known == replies_.end() || !known->second.empty()) return;
    answered_.push_back(key);
    known->second = std::move(reply);
    --waiting_;
    if (answered_.size() <= kMostAnswered) return;
    replies_.erase(answered_.front());
    answered_.pop_front();
  }

  /// Forgets a request that waits, as if it had not come.
  void forget(const Key& key) {
    const auto known = replies_.find(key);
    if (known == replies_.end() || !known->second.empty()) return;
    replies_.erase(known);
    --waiting_;
  }

  size_t waiting() const { return waiting_; }

 private:
  std::map<Key, std::vector<std::byte>> replies_;  ///< empty: it waits
  std::deque<Key> answered_;                       ///< the oldest first
  size_t waiting_ = 0;
};

}  // namespace uwarp
