// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// `nfs-rdma serve`: our server, until a signal comes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "nfs/rdma_server.h"

namespace uwarp::nfs {

struct ServeOptions {
  RdmaServerOptions server;
  std::string directory;
  std::string export_path = "/export";
  uint64_t memory_bytes = 0;  // 0: half of the machine's memory
  bool read_only = false;
  bool verbose = false;
};

/// The exit status.
int serve_command(const ServeOptions& options);

}  // namespace uwarp::nfs
