// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "base/atomics.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace uwarp {
namespace {

constexpr long kNapNs = 50'000;

bool barrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

// Old kernels and seccomp filters refuse it; a fork's child has what its parent registered.
bool Atomics::fence_all_threads() {
  return barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) ||
         (barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
          barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED));
}

// Not by libc, where it would be a place to be cancelled at.
void Atomics::nap() {
  const timespec span{0, kNapNs};
  syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &span, nullptr);
}

}  // namespace uwarp
