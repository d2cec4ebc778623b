// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The verbs objects of one end, and the queue pairs that share them. Plain libibverbs and
// librdmacm: runs on any RDMA device. Any failure ends the program.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "ends/process.h"
#include "verbs_bench/options.h"

namespace uwarp::bench {

/// How much of everything an end needs.
struct Shape {
  uint32_t send_wr = 1;
  uint32_t recv_wr = 1;
  uint32_t cq_entries = 1;
  size_t memory_bytes = 4096;
  uint32_t buffers = 1;  // of the memory, that are used in turn
};

/// What an acceptor says about its memory, as private data.
struct RemoteMemory {
  uint64_t address = 0;
  uint32_t rkey = 0;
};

/// Protection domain, completion queues and registered memory; one per process, made when the
/// first connection has told which device.
class Resources {
 public:
  Resources(ibv_context* context, const Shape& shape);
  /// Answers that are still under way must not be placed in memory that is freed.
  ~Resources();
  Resources(const Resources&) = delete;
  Resources& operator=(const Resources&) = delete;

  /// `cq`: for both directions; null: those of the resources.
  void make_queue_pair(rdma_cm_id* id, ibv_cq* cq = nullptr) const;
  ibv_pd* pd() const { return pd_; }
  ibv_sge sge(uint32_t bytes) const;
  /// The next one of the buffers, which are of that size.
  ibv_sge next_buffer(uint32_t bytes);
  RemoteMemory advertised() const;

  /// Posts `count` receives as one list, each into the next buffer.
  void post_receives(ibv_qp* qp, uint32_t count, uint32_t bytes, uint64_t wr_id = 0);

  ibv_comp_channel* channel = nullptr;  // of recv_cq
  ibv_cq* send_cq = nullptr;
  ibv_cq* recv_cq = nullptr;

 private:
  const Shape shape_;
  ibv_pd* pd_ = nullptr;
  std::vector<std::byte> memory_;
  ibv_mr* region_ = nullptr;
  uint32_t next_buffer_ = 0;
  std::vector<ibv_sge> places_;  // of receives that are posted, as their requests
  std::vector<ibv_recv_wr> receives_;
};

/// How many completions `cq` had, up to the size of `out`; all must be good.
uint32_t poll(ibv_cq* cq, std::span<ibv_wc> out);

/// The client's connections.
class Connector {
 public:
  Connector(const Options& options, const Shape& shape);

  using Established = std::function<void(rdma_cm_id*)>;
  /// Starts a connection; wait() goes on with it.
  void start();
  /// Serves events until `count` further connections have been established or, with `closed`, have
  /// ended. Each is given to `established`.
  void wait(uint32_t count, const Established& established, bool closed = false);
  /// One connection, established.
  rdma_cm_id* open_one();

  Resources& resources() { return *resources_; }
  const RemoteMemory& remote() const { return remote_; }

 private:
  void resolve_route(rdma_cm_id* id);
  void connect(rdma_cm_id* id);

  const Options& options_;
  const Shape shape_;
  rdma_event_channel* channel_;
  rdma_addrinfo* where_ = nullptr;
  std::unique_ptr<Resources> resources_;
  RemoteMemory remote_;
};

/// The server: accepts connections until the first one has ended.
class Acceptor {
 public:
  Acceptor(const Options& options, const Shape& shape);

  /// `accepting` is called for the first connection before it is accepted, `established` when it is
  /// up.
  void run(const std::function<void(Resources&, ibv_qp*)>& accepting,
           const std::function<void(Resources&, ibv_qp*)>& established);
  /// Says which completion queue the next connection has; by default that of the resources.
  using QueueOf = std::function<ibv_cq*(ibv_context*)>;
  void set_queue_of(QueueOf queue_of) { queue_of_ = std::move(queue_of); }

 private:
  void accept(rdma_cm_id* id);

  const Shape shape_;
  rdma_event_channel* channel_;
  std::unique_ptr<Resources> resources_;
  QueueOf queue_of_;
};

}  // namespace uwarp::bench
