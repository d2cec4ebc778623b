// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// `nfs-rdma bench`: large sequential and small random READs of one file, several of them
// outstanding.
#pragma once

#include <cstdint>
#include <vector>

#include "nfs/session.h"
#include "nfs/url.h"

namespace uwarp::nfs {

struct BenchOptions {
  std::vector<uint32_t> thresholds;  // each measured on a connection of its own; none: the default
  size_t request_bytes = 1 << 20;
  size_t random_bytes = 4096;
  size_t outstanding = 8;
  double seconds = 3;
  uint64_t file_bytes = 256 << 20;
  bool json = false;
};

/// The exit status.
int bench_command(const Url& url, const SessionOptions& session, const BenchOptions& options);

}  // namespace uwarp::nfs
