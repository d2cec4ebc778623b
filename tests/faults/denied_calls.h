// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Calls of libc, by this program and all its libraries, that fail as long as a test says so.
#pragma once

#include <atomic>

extern std::atomic<bool> no_threads;   ///< pthread_create(): EAGAIN
extern std::atomic<bool> no_eventfds;  ///< eventfd(): EMFILE
/// Exempts the calling thread.
extern thread_local bool nothing_denied;
/// Number of calls that have failed in this way.
unsigned denied_calls();
