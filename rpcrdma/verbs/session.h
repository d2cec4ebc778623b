// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A server's side of one connection: calls come in, are put together and given to the handler, and
// replies go out. RFC 8166 3.3 to 3.5, 4; RFC 8797 4.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "core/call_layout.h"
#include "core/header.h"
#include "core/message.h"
#include "core/reply_plan.h"
#include "rpcrdma/rpcrdma.h"
#include "verbs/connection.h"
#include "verbs/descriptor.h"
#include "verbs/statistics.h"

namespace rpcrdma::verbs {
class Session;
}

/// Of the C interface: a call from its receipt to the reply.
struct rpcrdma_request {
  std::shared_ptr<rpcrdma::verbs::Session> session;
  rpcrdma::core::Header header;
  uint32_t slot = 0;  ///< the receive that brought it, taken until the reply
  /// What the message is in: the receives, or memory of its own.
  std::shared_ptr<rpcrdma::verbs::Buffer> memory;
  std::span<const std::byte> message;
  std::vector<std::shared_ptr<rpcrdma::verbs::Buffer>> result_memory;
};

namespace rpcrdma::verbs {

class Session : public std::enable_shared_from_this<Session> {
 public:
  using Request = std::unique_ptr<rpcrdma_request>;

  struct Config {
    uint32_t credits;
    uint32_t call_max;
    rpcrdma_handler handler;
    void* context;
  };
  /// `reads`: the client lets itself be read from.
  Session(uint64_t number, const Config& config, std::shared_ptr<Statistics> statistics,
          std::unique_ptr<Connection> connection, std::unique_ptr<WakeUp> wake,
          const rpcrdma_settings& settings, bool reads, std::function<void()> on_end);

  /// The connection is established: the thread begins. Without one the session has ended.
  void start();
  /// Ends the connection soon, from any thread.
  void stop();
  /// The thread is about to end, or there never was one and stop() has been called.
  bool ended() const { return ended_; }
  /// Waits for the thread. After this nothing of the connection is left.
  void join();

  int reply(Request request, std::span<const rpcrdma_piece> pieces, void (*done)(void*),
            void* context);
  void drop(Request request);
  std::shared_ptr<Buffer> take_buffer(size_t size) { return domain_->take(size); }

  uint64_t number() const { return number_; }
  const rpcrdma_settings& settings() const { return settings_; }
  const sockaddr_storage& peer() const { return peer_; }

 private:
  struct Keep;

  void run();
  void take_call(const Connection::Received& received);
  void answer_error(const Connection::Received& received, const core::Header& header,
                    core::HeaderError error);
  void discard(const Connection::Received& received);
  void assemble(const core::CallLayout& layout, std::span<const std::byte> inline_part,
                Request request);
  void deliver(Request request);

  int prepare(const core::Message& message, const core::ReplyPlan& plan, Keep& keep);
  void post_reply(const core::Message& message, const core::ReplyPlan& plan,
                  const core::ChunkLists& call, const std::shared_ptr<Keep>& keep);
  void count_reply(const core::ReplyPlan& plan, bool invalidates);
  void post_error_locked(uint32_t xid, uint32_t credits, core::HeaderError error);
  uint32_t grant(uint32_t wanted) const;

  const uint64_t number_;
  const Config config_;
  const std::shared_ptr<Statistics> statistics_;
  const std::shared_ptr<Domain> domain_;
  const rpcrdma_settings settings_;
  const bool reads_;
  const std::function<void()> on_end_;
  sockaddr_storage peer_{};
  const std::unique_ptr<WakeUp> wake_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> ended_ = false;
  std::thread thread_;

  std::mutex mutex_;
  std::unique_ptr<Connection> connection_;
};

}  // namespace rpcrdma::verbs
