// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// How two processes come to share memory: they meet over TCP, and the client opens what the server
// has made.
#pragma once

#include <sys/types.h>

#include "ends/ends.h"
#include "raw_memory/ring.h"

namespace uwarp::bench {

struct Meeting {
  Ring& out;   // what this end writes
  Ring& in;    // what the other end writes
  pid_t peer;  // the other process
};

/// Of both ends, once each has the rings. They stay until the process ends.
Meeting meet(const Ends& ends);

}  // namespace uwarp::bench
