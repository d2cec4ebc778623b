// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#pragma once

#include <gtest/gtest.h>

#include <new>

#include "faults/failing_allocations.h"

/// Runs `call` while its next allocation fails; `call` must not throw. True if it tried to
/// allocate.
template <typename Call>
bool without_memory(Call call) {
  fail_allocation(1);
  bool thrown = false;
  try {
    call();
  } catch (const std::bad_alloc&) {
    thrown = true;
  }
  const bool asked = stop_failing_allocations();
  EXPECT_FALSE(thrown) << "std::bad_alloc";
  return asked;
}
