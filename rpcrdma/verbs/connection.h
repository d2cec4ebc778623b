// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A queue pair with its completion queue, its posted receives, and work that waits for room in the
// send queue. It knows nothing of RPC. Not thread-safe: its owner has a lock.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "verbs/domain.h"

namespace rpcrdma::verbs {

/// A work request of at most one scatter element.
struct Work {
  /// Called when the work and all before it are complete, or with false when they never will be.
  using Done = std::function<void(bool completed)>;

  ibv_send_wr request{};
  ibv_sge element{};
  Done done;
};

class Connection {
 public:
  struct Config {
    uint32_t receive_size;  ///< bytes of each receive buffer
    uint32_t receives;      ///< buffers, all of which are posted at once
  };
  struct Received {
    uint32_t slot;  ///< to be given to repost() in the end
    std::span<const std::byte> message;
    std::optional<uint32_t> invalidated;  ///< handle that came with a Send with invalidation
  };
  /// What one look at the completion queue brought.
  struct Turn {
    std::vector<Received> received;
    std::vector<Work::Done> done;
  };

  /// Makes the queue pair of `id` and posts all receives. Takes over the id, if it succeeds.
  /// 0 or a negative errno value.
  static int make(std::shared_ptr<Domain> domain, rdma_cm_id* id, const Config& config,
                  std::unique_ptr<Connection>& made);
  /// The id goes with it: all its events must be acknowledged.
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  rdma_cm_id* id() const { return id_; }
  const std::shared_ptr<Domain>& domain() const { return domain_; }
  /// Readable when poll() may have something.
  int fd() const { return channel_->fd; }
  /// Something failed, or the peer has gone.
  bool broken() const { return broken_; }
  void set_broken() { broken_ = true; }

  void repost(uint32_t slot);
  void post(Work work);
  /// False: there was nothing.
  bool poll(Turn& turn);
  /// Takes the notification that made fd() readable, and asks for the next one: to be called
  /// before poll().
  void arm();
  /// Ends the connection; completions still come, flushed.
  void disconnect();
  /// Ends everything a peer could do, and all work. What is returned is to be called with false,
  /// and may hold what its owner wants back.
  [[nodiscard]] std::vector<Work::Done> tear_down();
  /// Leaves the id to the caller, without the queue pair.
  void give_up_id();
  /// Where received messages are, even when the connection is not any more.
  const std::shared_ptr<Buffer>& receive_buffer() const { return receive_buffer_; }

  /// Work requests for this connection, with no element yet.
  static Work work(ibv_wr_opcode opcode, Work::Done done = nullptr);
  static Work transfer(ibv_wr_opcode opcode, const void* local, uint32_t length, uint32_t lkey,
                       Work::Done done = nullptr);

 private:
  struct Posted {
    Work::Done done;
    bool signaled;
  };

  Connection(std::shared_ptr<Domain> domain, const Config& config)
      : domain_(std::move(domain)), config_(config) {}
  int set_up(rdma_cm_id* id);
  void post_waiting();
  void take_send_completion(Turn& turn);

  std::shared_ptr<Domain> domain_;
  Config config_;
  rdma_cm_id* id_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  std::shared_ptr<Buffer> receive_buffer_;
  std::deque<Work> waiting_;
  std::deque<Posted> posted_;
  size_t send_depth_ = 0;
  size_t unsignaled_ = 0;  ///< posted since the last one that reports its completion
  bool broken_ = false;
};

}  // namespace rpcrdma::verbs
