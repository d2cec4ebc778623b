// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "os/pull_cost.h"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "base/fact.h"
#include "base/settings.h"
#include "os/clock.h"

namespace uwarp {
namespace {

/// A whole segment, as of any large message.
constexpr size_t kBytes = 64 << 10;

// The pages of this process take as long to look up as those of another one.
bool measure() {
  const std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[2 * kBytes]());
  if (memory == nullptr) return false;
  std::byte* const from = memory.get();
  std::byte* const to = from + kBytes;
  const iovec local{to, kBytes}, remote{from, kBytes};
  bool all = true;
  const uint64_t pull = cost_ns([&] {
    all &= syscall(SYS_process_vm_readv, getpid(), &local, 1UL, &remote, 1UL, 0UL) ==
           static_cast<long>(kBytes);
  });
  const uint64_t copy = cost_ns([&] {
    std::memcpy(to, from, kBytes);
    asm volatile("" ::"r"(to) : "memory");
  });
  return all && pull < 2 * copy;
}

}  // namespace

bool pulls_pay() {
  static constinit Fact<bool> pay;
  return pay.get([] {
    return settings().copies == SharedCopies::kMeasured ? measure()
                                                        : settings().copies == SharedCopies::kOne;
  });
}

}  // namespace uwarp
