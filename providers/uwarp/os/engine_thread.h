// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Threads of the engine's own inside the application's process.
#pragma once

#include <pthread.h>

#include <cstddef>

#include "base/result.h"

namespace uwarp {

/// Starts one that runs `body(argument)` with all signals blocked, and keeps this library loaded
/// for the rest of the process. `name`: 15 bytes at most, for `ps` and debuggers. Errors: EAGAIN.
Result<pthread_t> start_engine_thread(const char* name, void* (*body)(void*), void* argument,
                                      size_t stack_bytes);

}  // namespace uwarp
