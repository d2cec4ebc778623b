// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The modes of raw_memory; each runs the server's or the client's part by its options.
#pragma once

#include "raw_memory/options.h"

namespace uwarp::bench {

void ping_pong(const Options& options);
void write_ping_pong(const Options& options);
void read_alone(const Options& options);
void stream(const Options& options);
void messages(const Options& options);

}  // namespace uwarp::bench
