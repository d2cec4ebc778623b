// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The client's way to a connection: names, addresses, route, request, reply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "verbs/cm_channel.h"
#include "verbs/connection.h"
#include "verbs/descriptor.h"

struct addrinfo;

namespace rpcrdma::verbs {

class Connector {
 public:
  /// Makes the connection's queue pair with its receives posted, when the device is known. 0 or a
  /// negative errno value.
  using Prepare = std::function<int(rdma_cm_id* id, std::unique_ptr<Connection>& connection)>;
  /// What to announce, once the queue pair is there.
  using Announce = std::function<std::vector<std::byte>()>;

  struct Outcome {
    int error = 0;  ///< negative errno value
    std::unique_ptr<Connection> connection;
    std::vector<std::byte> private_data;  ///< of the server
  };

  Connector(std::string host, std::string service, std::string source)
      : host_(std::move(host)), service_(std::move(service)), source_(std::move(source)) {}

  CmChannel& channel() { return channel_; }

  /// One attempt, which tries the addresses of the host in turn. Blocks for at most so long, or
  /// until `stop` is readable (-ECANCELED).
  Outcome connect(uint32_t limit_ms, const Prepare& prepare, const Announce& announce,
                  const WakeUp& stop);

 private:
  struct Attempt;

  Outcome connect_to(const addrinfo& address, const addrinfo* source, Attempt& attempt);
  int expect(rdma_cm_id* id, rdma_cm_event_type type, Attempt& attempt, CmEvent& event);

  std::string host_, service_, source_;
  CmChannel channel_;
};

}  // namespace rpcrdma::verbs
