// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The modes of raw_tcp; each runs the server's or the client's part by its options.
#pragma once

#include "raw_tcp/options.h"

namespace uwarp::bench {

void ping_pong(const Options& options);
void memory_ping_pong(const Options& options);
void stream(const Options& options);
void duplex(const Options& options);
void both_ways(const Options& options);
void messages(const Options& options);
void pipeline(const Options& options);
void sockets(const Options& options);
void scale(const Options& options);
void connects(const Options& options);

}  // namespace uwarp::bench
