// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// RpcChannel over librpcrdma.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "nfs/rpc_channel.h"
#include "rpcrdma/rpcrdma.hpp"

namespace uwarp::nfs {

struct RdmaChannelOptions {
  std::optional<uint32_t> inline_threshold;  // offered for both directions
  uint32_t credits = 32;
  bool announce = true;  // private data of RFC 8797
  std::optional<uint32_t> timeout_ms;
  std::optional<uint32_t> retries;
};

class RdmaChannel : public RpcChannel {
 public:
  /// Connects, or throws RpcError.
  RdmaChannel(const std::string& host, const std::string& port, const RdmaChannelOptions& options);

  uint32_t next_xid() override { return client_->next_xid(); }
  void start(RpcCall& call) override;
  void cancel(RpcCall& call) override;
  std::unique_ptr<RpcBuffer> make_buffer(size_t size) override;

  rpcrdma_settings settings() const { return client_->settings(); }
  rpcrdma_statistics statistics() const { return client_->statistics(); }

 private:
  struct CallState;
  class Buffer;

  std::unique_ptr<rpcrdma::Client> client_;
};

}  // namespace uwarp::nfs
