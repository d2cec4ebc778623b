// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// operator new of this program and all C++ libraries in it. It counts live allocations, and fails
// once when a test asks for it.
#pragma once

#include <cstddef>
#include <cstdint>

/// The `count`-th allocation from now fails (1: the next one), counted in this thread or in all.
enum class Whose { kThisThread, kAnyThread };
void fail_allocation(int64_t count, Whose whose = Whose::kThisThread);
/// No further allocation fails. True if one has failed since fail_allocation().
bool stop_failing_allocations();
/// Allocations that have not been freed.
int64_t live_allocations();
/// All allocations since the program began.
int64_t allocations_made();
