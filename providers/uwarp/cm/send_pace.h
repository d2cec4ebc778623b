// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Whether what has been posted goes out at once or waits for more. A system call costs as much as
// posting twenty small messages, so whoever posts one right after the other pays it once for
// several; whoever posts now and then is never made to wait. Time in, decision out.
#pragma once

#include <atomic>
#include <cstdint>

namespace uwarp {

/// One per queue pair. Any thread; threads that post at once may blur the figures, not the outcome.
class SendPace {
 public:
  /// Longest time between the end of one post and the next that counts as "right after".
  static constexpr uint64_t kDenseGapNs = 500;
  /// So many posts right after each other go out at once before others wait.
  static constexpr uint32_t kDenseRun = 4;
  static constexpr uint32_t kLongestRun = 64;  // what is remembered of it; a pause halves it
  /// While each post follows a pause, one of so many looks at the clock, which takes 25 ns.
  static constexpr uint32_t kPostsPerLook = 4;
  /// What waits at most: messages, and octets of payload.
  static constexpr uint32_t kMessages = 128;
  static constexpr uint64_t kBytes = 1 << 20;
  /// What is larger goes at once, with what waits: it is worth a system call of its own.
  static constexpr uint64_t kLargeBytes = 64 << 10;

  /// `messages` have been posted, with which `bytes` of payload in all go out; `clock()` is the
  /// time in ns. True if they may wait; otherwise the caller transmits and calls sent().
  template <typename Clock>
  bool may_wait(Clock clock, uint32_t messages, uint64_t bytes) {
    const uint32_t run = run_.load(std::memory_order_relaxed);
    if (run == 0 && !look_due()) return false;
    const uint64_t now_ns = clock();
    const uint64_t gap_ns = now_ns - last_ns_.load(std::memory_order_relaxed);
    last_ns_.store(now_ns, std::memory_order_relaxed);
    if (gap_ns > kDenseGapNs) {
      // Who sent in bulk a moment ago will do so again, but this one may be all for now.
      run_.store(run / 2, std::memory_order_relaxed);
      return false;
    }
    if (run < kLongestRun) run_.store(run + 1, std::memory_order_relaxed);
    if (run < kDenseRun || bytes > kLargeBytes) return false;
    const uint32_t waiting = messages_.load(std::memory_order_relaxed) + messages;
    const uint64_t waiting_bytes = bytes_.load(std::memory_order_relaxed) + bytes;
    if (waiting >= kMessages || waiting_bytes >= kBytes) return false;
    messages_.store(waiting, std::memory_order_relaxed);
    bytes_.store(waiting_bytes, std::memory_order_relaxed);
    return true;
  }

  /// Octets of payload that go out with the next post that may not wait.
  uint64_t waiting_bytes() const { return bytes_.load(std::memory_order_relaxed); }
  /// All that had been posted has been handed over.
  void sent(uint64_t now_ns) {
    last_ns_.store(now_ns, std::memory_order_relaxed);
    messages_.store(0, std::memory_order_relaxed);
    bytes_.store(0, std::memory_order_relaxed);
  }

 private:
  bool look_due() {
    const uint32_t posts = posts_.load(std::memory_order_relaxed) + 1;
    posts_.store(posts, std::memory_order_relaxed);
    return posts % kPostsPerLook == 0;
  }

  std::atomic<uint32_t> posts_{0};    // outside of runs
  std::atomic<uint64_t> last_ns_{0};  // end of the last post
  std::atomic<uint32_t> run_{0};      // posts in a row, each right after the one before
  std::atomic<uint32_t> messages_{0};
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace uwarp
