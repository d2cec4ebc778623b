// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The one fork handler of the library.
#include "base/fork.h"

#include <pthread.h>

#include "base/atomics.h"

namespace uwarp {
namespace {

/// Written while libraries are loaded, by one thread at a time.
constinit const InForkedChild* first = nullptr;

void begin_child() {
  fork_detail::generation.fetch_add(1, std::memory_order_relaxed);
  Atomics::sleepers.store(0);  // these were threads of the parent
  InForkedChild::run_all();
}

[[gnu::constructor]] void watch_forks() { pthread_atfork(nullptr, nullptr, begin_child); }

}  // namespace

InForkedChild::InForkedChild(Run run) noexcept : run_(run), next_(first) { first = this; }

void InForkedChild::run_all() {
  for (const InForkedChild* each = first; each != nullptr; each = each->next_) each->run_();
}

}  // namespace uwarp
