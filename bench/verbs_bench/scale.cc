// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Many queue pairs of several processes, spread over threads with completion queues of their own.
// As many threads of as many servers poll, which serves what comes for them.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "ends/round_trips.h"
#include "ends/team.h"
#include "verbs_bench/batch.h"
#include "verbs_bench/endpoint.h"
#include "verbs_bench/modes.h"

namespace uwarp::bench {
namespace {

constexpr uint32_t kServerEntries = 16;  // of a completion queue in which nothing completes

/// Polls completion queues, a thread each, until it goes.
class QueuePollers {
 public:
  ~QueuePollers() {
    stop_.store(true);
    for (std::thread& each : threads_) each.join();
  }
  void add(ibv_cq* cq) {
    threads_.emplace_back([this, cq] {
      std::vector<ibv_wc> completions(1);
      while (!stop_.load(std::memory_order_relaxed)) (void)poll(cq, completions);
    });
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

void serve(Acceptor& acceptor, uint32_t threads) {
  QueuePollers pollers;
  std::vector<ibv_cq*> queues;
  size_t next = 0;
  acceptor.set_queue_of([&](ibv_context* context) {
    if (queues.size() < threads) {
      ibv_cq* made = ibv_create_cq(context, kServerEntries, nullptr, nullptr, 0);
      if (made == nullptr) die("ibv_create_cq");
      queues.push_back(made);
      pollers.add(made);
    }
    return queues[next++ % threads];
  });
  acceptor.run([](Resources&, ibv_qp*) {}, [](Resources&, ibv_qp*) {});
}

void work(const Options& options, uint32_t threads, Team& team, uint32_t process, uint32_t thread) {
  Shape shape;
  shape.send_wr = options.depth;
  const uint32_t share = part_of(options.count, process * options.threads + thread, threads);
  shape.cq_entries = share + 1;
  Options own = options;
  own.port = static_cast<uint16_t>(options.port + process);
  Connector connector(own, shape);
  // The server stays as long as the first connection.
  rdma_cm_id* control = nullptr;
  if (thread == 0) control = connector.open_one();
  team.meet();
  const std::vector<rdma_cm_id*> ids = open_all(connector, share, options.window);
  double rate = 0;
  team.meet();
  if (!ids.empty()) {
    Resources& resources = connector.resources();
    Batch batch(options, resources, connector.remote());
    rate = batches_per_second(batch, ids, ids.size(), resources.send_cq, options.seconds);
  }
  team.add(rate * options.depth);
  team.meet();
  if (control != nullptr) rdma_disconnect(control);
}

}  // namespace

void scale(const Options& options) {
  const auto processes = static_cast<uint32_t>(options.crowd.processes);
  if (!options.client()) {
    Team servers(processes, 1);
    servers.run([&](uint32_t process, uint32_t) {
      Options own = options;
      own.port = static_cast<uint16_t>(options.port + process);
      // The first one listens last: the client begins there.
      if (process == 0) servers.meet();
      Acceptor acceptor(own, Shape{});
      if (process != 0) servers.meet();
      serve(acceptor, options.threads);
    });
    std::_Exit(0);
  }
  Team team(processes, options.threads);
  team.run([&](uint32_t process, uint32_t thread) {
    work(options, processes * options.threads, team, process, thread);
  });
  print_figure("per_second", team.sum());
  std::fflush(stdout);
  std::_Exit(0);
}

}  // namespace uwarp::bench
