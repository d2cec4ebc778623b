// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A server: listens, accepts connections, and gives each a Session.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>

#include "rpcrdma/rpcrdma.h"
#include "verbs/cm_channel.h"
#include "verbs/descriptor.h"
#include "verbs/session.h"

namespace rpcrdma::verbs {

class Server {
 public:
  Server(const rpcrdma_server_options& options, rpcrdma_handler handler, void* context);
  /// Ends all sessions.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Listens, and begins the thread. 0 or a negative errno value.
  int listen(const char* host, const char* service);

  uint16_t port() const;
  unsigned connections() const { return open_; }
  rpcrdma_statistics statistics() { return statistics_->snapshot(); }

 private:
  int bind(const char* host, const char* service);
  void run();
  void take(const CmEvent& event);
  void take_request(const CmEvent& event);
  int accept(const CmEvent& event);
  void reap();
  std::shared_ptr<Domain> domain_of(ibv_context* context);

  const rpcrdma_server_options options_;
  const Session::Config session_config_;
  const std::shared_ptr<Statistics> statistics_ = std::make_shared<Statistics>();
  CmChannel channel_;
  rdma_cm_id* listener_ = nullptr;
  WakeUp wake_;
  std::thread thread_;
  std::atomic<bool> closing_ = false;
  std::atomic<unsigned> open_ = 0;
  // The thread's own.
  std::map<ibv_context*, std::shared_ptr<Domain>> domains_;
  std::map<rdma_cm_id*, std::shared_ptr<Session>> sessions_;
  uint64_t next_number_ = 1;
};

}  // namespace rpcrdma::verbs

/// Of the C interface.
struct rpcrdma_server {
  rpcrdma::verbs::Server server;
};
