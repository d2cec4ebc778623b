// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Many queue pairs of one process, on one completion queue, to a server that sleeps. A batch is a
// list of Writes that ends with a Read, whose completion says that the target has it all.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <vector>

#include "ends/round_trips.h"
#include "verbs_bench/endpoint.h"
#include "verbs_bench/modes.h"

namespace uwarp::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPolled = 64;

double resident_bytes() {
  std::FILE* statm = std::fopen("/proc/self/statm", "r");
  long size = 0, resident = 0;
  if (statm == nullptr || std::fscanf(statm, "%ld %ld", &size, &resident) != 2) die("statm");
  std::fclose(statm);
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

class Batch {
 public:
  Batch(const Options& options, const Resources& resources, const RemoteMemory& remote)
      : sge_(resources.sge(options.size)), requests_(options.depth) {
    for (size_t i = 0; i < requests_.size(); ++i) {
      ibv_send_wr& request = requests_[i];
      request.opcode = IBV_WR_RDMA_WRITE;
      request.sg_list = &sge_;
      request.num_sge = 1;
      request.next = i + 1 < requests_.size() ? &requests_[i + 1] : nullptr;
      request.wr.rdma = {remote.address, remote.rkey};
    }
    requests_.back().opcode = IBV_WR_RDMA_READ;
    requests_.back().send_flags = IBV_SEND_SIGNALED;
  }
  void post(const std::vector<rdma_cm_id*>& ids, uint64_t index) {
    requests_.back().wr_id = index;
    ibv_send_wr* bad = nullptr;
    if ((errno = ibv_post_send(ids[index]->qp, requests_.data(), &bad)) != 0) die("ibv_post_send");
  }

 private:
  ibv_sge sge_;
  std::vector<ibv_send_wr> requests_;
};

std::vector<rdma_cm_id*> open_all(Connector& connector, const Options& options) {
  std::vector<rdma_cm_id*> ids;
  uint32_t started = std::min(options.count, options.window);
  for (uint32_t i = 0; i < started; ++i) connector.start();
  connector.wait(options.count, [&](rdma_cm_id* id) {
    ids.push_back(id);
    if (started < options.count) {
      ++started;
      connector.start();
    }
  });
  return ids;
}

}  // namespace

void queue_pairs(const Options& options) {
  Shape shape;
  shape.send_wr = options.depth;
  shape.cq_entries = options.count + 1;
  if (!options.client()) {
    // The server takes no completions: nothing is posted there.
    shape.send_wr = 1;
    shape.cq_entries = 1;
    Acceptor(options, shape).run([](Resources&, ibv_qp*) {}, [](Resources&, ibv_qp*) {});
    std::_Exit(0);
  }
  Connector connector(options, shape);
  rdma_cm_id* control = connector.open_one();
  const double before = resident_bytes();
  const std::vector<rdma_cm_id*> ids = open_all(connector, options);
  print_figure("kib_per_qp", (resident_bytes() - before) / options.count / 1024);

  Resources& resources = connector.resources();
  Batch batch(options, resources, connector.remote());
  std::vector<ibv_wc> completions(kPolled);
  const size_t active = options.all ? ids.size() : 1;
  for (uint64_t i = 0; i < active; ++i) batch.post(ids, i);
  const auto start = Clock::now();
  double elapsed = 0, done = 0;
  while (elapsed < options.seconds) {
    const uint32_t count = poll(resources.send_cq, completions);
    for (uint32_t i = 0; i < count; ++i) batch.post(ids, completions[i].wr_id);
    done += count;
    elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  }
  print_figure("per_second", done * options.depth / elapsed);
  // What a queue pair keeps that has been busy: those that came off TCP have rings in use.
  print_figure("kib_per_used_qp", (resident_bytes() - before) / options.count / 1024);
  std::fflush(stdout);
  // What is left ends with the process: closing each takes longer than measuring.
  rdma_disconnect(control);
  std::_Exit(0);
}

}  // namespace uwarp::bench
