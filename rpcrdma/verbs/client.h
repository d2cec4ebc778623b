// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A client: calls on their way over one connection at a time, which is made anew when it breaks.
// RFC 8166 3.3 to 3.5, 4; RFC 8797 4.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/call_plan.h"
#include "core/call_table.h"
#include "core/header.h"
#include "core/message.h"
#include "core/reply_check.h"
#include "rpcrdma/rpcrdma.h"
#include "verbs/announcement.h"
#include "verbs/connection.h"
#include "verbs/connector.h"
#include "verbs/descriptor.h"
#include "verbs/exposures.h"
#include "verbs/statistics.h"

namespace rpcrdma::verbs {

/// All public functions may be called by any thread. Lock order: one lock.
class Client {
 public:
  Client(const std::string& host, const std::string& service,
         const rpcrdma_client_options& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// The first connection, and the thread. 0 or a negative errno value.
  int open();

  int start(rpcrdma_call& call);
  int wait(rpcrdma_call& call);
  int cancel(rpcrdma_call& call);
  int register_memory(void* base, size_t length, rpcrdma_memory*& memory);

  uint32_t next_xid();
  rpcrdma_settings settings();
  rpcrdma_statistics statistics() { return statistics_.snapshot(); }

 private:
  using Lock = std::unique_lock<std::mutex>;

  /// A call between start and end.
  struct Outgoing {
    Outgoing(rpcrdma_call& its_call, core::Message its_message)
        : call(&its_call), message(std::move(its_message)) {}

    rpcrdma_call* call;  ///< null: its owner was told that it is cancelled
    core::Message message;
    uint32_t attempts = 0;  ///< connections it failed on
    bool transmitted = false;
    bool cancelled = false;
    // The present transmission.
    core::ChunkLists offered;
    std::unique_ptr<Exposures> exposures;
    std::shared_ptr<Buffer> bounce;  ///< of a long call
    bool replied = false;            ///< the outcome is known; memory is being closed
    bool in_reply_chunk = false;
    int status = 0;
    size_t reply_length = 0;
  };

  void run();
  void sleep(Lock& lock);
  void connect_again(Lock& lock);
  bool run_callbacks(Lock& lock);
  void install(Connector::Outcome outcome);
  Connector::Outcome connect_once();
  int prepare(rdma_cm_id* id, std::unique_ptr<Connection>& connection);
  void take_cm_events();
  void take_completions();
  void lose_connection(int reason);
  void expire();
  void abort_all();

  void send_waiting();
  void transmit(uint32_t xid);
  bool expose(Outgoing& outgoing, const core::CallPlan& plan);
  bool expose_items(Outgoing& outgoing);
  bool expose_results(Outgoing& outgoing);

  void take_reply(const Connection::Received& received);
  void take_invalidation(uint32_t xid, uint32_t handle);
  static void accept(Outgoing& outgoing, const core::ReplyCheck& check,
                     std::span<const std::byte> inline_message);
  void close_memory(uint32_t xid);
  void memory_closed(uint32_t xid);
  void retry_or_finish(uint32_t xid, int reason);
  void finish(uint32_t xid, int status);
  void tell(rpcrdma_call& call, int status, size_t reply_length);

  const rpcrdma_client_options options_;
  Connector connector_;
  WakeUp wake_;
  WakeUp stop_;
  Statistics statistics_;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable ended_;
  std::shared_ptr<Domain> domain_;
  bool use_windows_ = false;
  std::unique_ptr<Announcement> announcement_;
  std::unique_ptr<WindowPool> windows_;
  std::unique_ptr<Connection> connection_;
  rpcrdma_settings settings_{};
  core::CallTable table_;
  std::unordered_map<uint32_t, Outgoing> calls_;
  std::unordered_map<const rpcrdma_call*, uint32_t> xids_;  ///< calls that have not ended
  std::vector<rpcrdma_call*> callbacks_;                    ///< calls that have, and want to know
  uint64_t connection_number_ = 0;
  uint32_t last_xid_;
  uint32_t failed_attempts_ = 0;  ///< to connect, since the last connection
  unsigned waiters_ = 0;
  bool closing_ = false;
};

}  // namespace rpcrdma::verbs

/// Of the C interface.
struct rpcrdma_client {
  rpcrdma::verbs::Client client;
};
