// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The modes of raw_udp; each runs the server's or the client's part by its options.
#pragma once

#include "raw_udp/options.h"

namespace uwarp::bench {

void ping_pong(const Options& options);
void datagrams(const Options& options);

}  // namespace uwarp::bench
