// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Brings the calls that librpcrdma receives to a dispatcher, and its replies back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "nfs/rpc_dispatcher.h"
#include "rpcrdma/rpcrdma.hpp"

namespace uwarp::nfs {

struct RdmaServerOptions {
  std::string host;
  std::string port;
  std::optional<uint32_t> inline_threshold;
  bool announce = true;
};

class RdmaServer {
 public:
  /// Listens, or throws RpcError. The dispatcher outlives the server.
  RdmaServer(RpcDispatcher& dispatcher, const RdmaServerOptions& options);

  uint16_t port() const { return server_->port(); }
  rpcrdma_statistics statistics() const { return server_->statistics(); }

 private:
  void serve(rpcrdma::Request request);

  RpcDispatcher& dispatcher_;
  std::unique_ptr<rpcrdma::Server> server_;
};

}  // namespace uwarp::nfs
