// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// operator new of this program and of all C++ libraries in it: counts what is live, and fails once
// when it is told to.
#pragma once

#include <cstddef>
#include <cstdint>

/// From now on the `count`-th allocation fails (1: the next one), one of this thread or of any.
enum class Whose { kThisThread, kAnyThread };
void fail_allocation(int64_t count, Whose whose = Whose::kThisThread);
/// No more fails. True if one has failed since.
bool stop_failing_allocations();
/// Allocations that have not been freed.
int64_t live_allocations();
/// All that have been asked for since the program began.
int64_t allocations_made();
