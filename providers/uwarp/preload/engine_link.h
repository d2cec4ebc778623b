// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The way to libuwarp.so: loaded when the process first touches something of RDMA.
#pragma once

#include "host/host_table.h"

namespace uwarp_preload {

/// The engine's functions, loading it if need be. Null when it cannot be loaded (said once on
/// stderr), while this thread is inside the engine (what the engine itself opens is not ours to
/// look at), and in a child of which libc's fork() knows nothing: there the engine's locks may be
/// held by threads that do not exist, so such a child has no RDMA until it executes a program.
/// Keeps errno.
const uwarp_host_table* host();

/// The same, but never loads: for calls that matter only if there is an engine.
const uwarp_host_table* host_if_loaded();

/// While one exists on this thread, host() gives null to it.
class InsideEngine {
 public:
  InsideEngine();
  ~InsideEngine();
  InsideEngine(const InsideEngine&) = delete;
  InsideEngine& operator=(const InsideEngine&) = delete;
};
bool inside_engine();

/// The same, and the thread cannot be cancelled: the calls that we answer need not be cancellation
/// points, and a half-built tree must not stay behind.
class UncancelledEngineCall {
 public:
  UncancelledEngineCall();
  ~UncancelledEngineCall();

 private:
  InsideEngine inside_;
  int cancel_state_;
};

/// Loads the libibverbs plugin that lies beside this library, if there is one (a build tree or a
/// moved copy; an installed one is found by libibverbs itself) and if libibverbs is there to take
/// it. It registers itself in time, because libibverbs asks for the device node before it matches
/// drivers.
void load_plugin();

}  // namespace uwarp_preload
