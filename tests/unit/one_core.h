// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// For tests that depend on the core that a thread runs on.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <vector>

namespace uwarp {

/// The cores that the calling thread may use.
inline std::vector<int> usable_cores() {
  cpu_set_t usable;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &usable)) cores.push_back(core);
  return cores;
}

/// Keeps the calling thread on one core while this exists.
class OneCore {
 public:
  explicit OneCore(int core) {
    EXPECT_EQ(sched_getaffinity(0, sizeof before_, &before_), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  }
  ~OneCore() { EXPECT_EQ(sched_setaffinity(0, sizeof before_, &before_), 0); }
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;

 private:
  cpu_set_t before_;
};

}  // namespace uwarp
