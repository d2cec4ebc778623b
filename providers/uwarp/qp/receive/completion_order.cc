// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/receive/completion_order.h"

#include <unistd.h>

#include "base/spinlock.h"

namespace uwarp {
namespace {

// A send call takes some 2 to 50 us. A holder that has lost its core gets it by the yields; where
// yielding does not help (real-time priorities) the caller sleeps.
constexpr int kSpins = 200;
constexpr int kYields = 200;
constexpr unsigned kSleepUs = 50;

void wait_a_little(int round) {
  if (round < kSpins)
    cpu_relax();
  else if (round < kSpins + kYields)
    sched_yield();
  else
    usleep(kSleepUs);
}

}  // namespace

bool CompletionOrder::wait() {
  // Whoever leaves the transmit side has noted what it sent.
  if (!acknowledged_ && !gate_.taken()) [[likely]]
    return false;
  const uint32_t wish = completer_.ask_to_retire();
  for (int round = 0; !completer_.has_retired(wish); ++round) {
    if (gate_.try_lock()) {
      completer_.retire();
      return gate_.end();
    }
    wait_a_little(round);
  }
  return false;
}

}  // namespace uwarp
