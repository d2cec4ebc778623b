// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Which callers of trunks are called back, and what is repeated to them. A port at an address is
// called by one call back at a time, however many callers say that it is theirs: they share it, and
// only the process that has the port sees the nonces.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "datagram/trunk_call.h"
#include "datagram/trunk_key.h"

namespace uwarp {

/// A value without sockets, time or locks. Throws std::bad_alloc where it says so.
class CallBacks {
 public:
  /// A caller says that it is `key`, and names `nonce`. True: the caller of this function begins a
  /// call back; false: the one under way is followed by another. Throws.
  bool ask(const TrunkKey& key, TrunkNonce nonce) {
    const auto [at, is_new] = waiting_.try_emplace(key);
    at->second.add(nonce);
    return is_new;
  }
  /// The nonces that the call back to `key` that begins now repeats. Throws.
  std::vector<TrunkNonce> take(const TrunkKey& key) {
    const auto found = waiting_.find(key);
    return found == waiting_.end() ? std::vector<TrunkNonce>{} : found->second.take();
  }
  /// The call back to `key` has been answered, or has failed. True: others have asked since it
  /// began, so that another one is due.
  bool over(const TrunkKey& key) {
    const auto found = waiting_.find(key);
    if (found == waiting_.end()) return false;
    if (found->second.count != 0) return true;
    waiting_.erase(found);
    return false;
  }
  /// No call back is under way, and none is due.
  void forget(const TrunkKey& key) { waiting_.erase(key); }
  size_t size() const { return waiting_.size(); }

 private:
  // Of more nonces than there is room for the last ones are kept: the right caller calls again.
  struct Waiting {
    std::array<TrunkNonce, TrunkCall::kMostNonces> nonces;
    size_t count = 0;
    void add(TrunkNonce nonce) { nonces[count++ % nonces.size()] = nonce; }
    std::vector<TrunkNonce> take() {
      const size_t held = std::min(std::exchange(count, 0), nonces.size());
      return {nonces.begin(), nonces.begin() + static_cast<ptrdiff_t>(held)};
    }
  };
  std::map<TrunkKey, Waiting> waiting_;
};

}  // namespace uwarp
