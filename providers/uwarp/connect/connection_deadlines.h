// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Until when a connection waits, and for what.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace uwarp {

enum class Deadline : uint8_t {
  kStartup,  // the start-up must be over
  kHold,     // a receive must have been posted
  kClose,    // what disconnect() or a failure waits for
  kRedial,   // the next attempt to connect
  kSilence,  // a peer that left without a word is given up
  kPeer,     // it is looked whether the peer acknowledges what was sent
  kNudge,    // an empty Write goes to a peer that has not been heard of
  kFault,    // a FaultScript holds a direction
  kRoom,     // it is looked whether our FIN waits behind what the peer does not take
  kPost,     // posts that wait for others go out
};

/// Moments of the monotonic clock in nanoseconds; 0: not waited for. Under the connection's mutex.
class ConnectionDeadlines {
 public:
  uint64_t& operator[](Deadline kind) { return at_ns_[static_cast<size_t>(kind)]; }
  uint64_t operator[](Deadline kind) const { return at_ns_[static_cast<size_t>(kind)]; }
  /// The next of all, 0 if there is none.
  uint64_t earliest_ns() const {
    // What is not waited for becomes the last of all.
    return *std::ranges::min_element(at_ns_, {}, [](uint64_t at_ns) { return at_ns - 1; });
  }
  /// True once when that one has passed.
  bool take_passed(Deadline kind, uint64_t now_ns) {
    uint64_t& at_ns = (*this)[kind];
    if (at_ns == 0 || at_ns > now_ns) return false;
    at_ns = 0;
    return true;
  }
  void clear() { at_ns_.fill(0); }

 private:
  std::array<uint64_t, static_cast<size_t>(Deadline::kPost) + 1> at_ns_{};
};

}  // namespace uwarp
