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

enum class Pulls : uint8_t { kRefused, kWork, kPay };

// The pages of this process take as long to look up as those of another one.
Pulls measure() {
  const std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[2 * kBytes]());
  if (memory == nullptr) return Pulls::kRefused;
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
  if (!all) return Pulls::kRefused;
  const bool pays = settings().copies == SharedCopies::kOne || pull < 2 * copy;
  return pays ? Pulls::kPay : Pulls::kWork;
}

Pulls pulls() {
  static constinit Fact<Pulls> known;
  return known.get(
      [] { return settings().copies == SharedCopies::kTwo ? Pulls::kRefused : measure(); });
}

}  // namespace

bool pulls_work() { return pulls() != Pulls::kRefused; }
bool pulls_pay() { return pulls() == Pulls::kPay; }

}  // namespace uwarp
