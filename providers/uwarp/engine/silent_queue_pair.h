// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A queue pair that no application sees, for connections of rdma_cm ids that have none. With
// InfiniBand an id connects with any number, and nothing of that queue pair is looked at; here a
// connection always has a queue pair.
#pragma once

#include <memory>

#include "base/result.h"
#include "connect/endpoint.h"
#include "memory/memory_region.h"
#include "net/net_device.h"
#include "qp/completion_queue.h"

namespace uwarp {

class Engine;

/// In INIT. It sends nothing and has no memory and no receives, so a peer that sends to it loses
/// the connection.
class SilentQueuePair {
 public:
  /// Errors: ENOMEM, EADDRINUSE, EMFILE.
  static Result<std::unique_ptr<SilentQueuePair>> create(Engine& engine, const NetDevice& device);
  /// Ends the connection.
  ~SilentQueuePair();

  const std::shared_ptr<Endpoint>& endpoint() const { return endpoint_; }

 private:
  ProtectionDomain domain_;
  CompletionQueue completions_{1, nullptr};
  std::shared_ptr<Endpoint> endpoint_;
};

}  // namespace uwarp
