// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Calls of libc, by this program and all libraries in it, that fail as long as a test says so.
#pragma once

#include <atomic>

extern std::atomic<bool> no_threads;   ///< pthread_create(): EAGAIN
extern std::atomic<bool> no_eventfds;  ///< eventfd(): EMFILE
/// Not for the calling thread.
extern thread_local bool nothing_denied;
/// Calls that have failed so.
unsigned denied_calls();
