// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Numbers that no other process can guess.
#pragma once

#include <sys/syscall.h>

#include <cstdint>

#include "os/raw_call.h"

namespace uwarp {

/// Waits only where the system has just started and has no entropy yet (getrandom(2)).
inline uint64_t random_word() {
  uint64_t word = 0;
  while (raw_call(SYS_getrandom, &word, sizeof word, 0) != sizeof word) {
  }
  return word;
}

}  // namespace uwarp
