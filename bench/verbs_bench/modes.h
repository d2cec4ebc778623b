// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The modes of verbs_bench; each runs the server's or the client's part by its options.
#pragma once

#include "verbs_bench/options.h"

namespace uwarp::bench {

void rate(const Options& options);
void wake_up(const Options& options);
void queue_pairs(const Options& options);
void scale(const Options& options);
void connects(const Options& options);
void datagrams(const Options& options);

}  // namespace uwarp::bench
