// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Batches of requests on many queue pairs.
#include "verbs_bench/batch.h"

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "ends/process.h"

namespace uwarp::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPolled = 64;

}  // namespace

Batch::Batch(const Options& options, const Resources& resources, const RemoteMemory& remote)
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

void Batch::post(const std::vector<rdma_cm_id*>& ids, uint64_t index) {
  requests_.back().wr_id = index;
  ibv_send_wr* bad = nullptr;
  if ((errno = ibv_post_send(ids[index]->qp, requests_.data(), &bad)) != 0) die("ibv_post_send");
}

std::vector<rdma_cm_id*> open_all(Connector& connector, uint32_t count, uint32_t window) {
  std::vector<rdma_cm_id*> ids;
  uint32_t started = std::min(count, window);
  for (uint32_t i = 0; i < started; ++i) connector.start();
  connector.wait(count, [&](rdma_cm_id* id) {
    ids.push_back(id);
    if (started < count) {
      ++started;
      connector.start();
    }
  });
  return ids;
}

double batches_per_second(Batch& batch, const std::vector<rdma_cm_id*>& ids, size_t active,
                          ibv_cq* cq, double seconds) {
  std::vector<ibv_wc> completions(kPolled);
  for (uint64_t i = 0; i < active; ++i) batch.post(ids, i);
  const auto start = Clock::now();
  double elapsed = 0, done = 0;
  while (elapsed < seconds) {
    const uint32_t count = poll(cq, completions);
    for (uint32_t i = 0; i < count; ++i) batch.post(ids, completions[i].wr_id);
    done += count;
    elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  }
  return done / elapsed;
}

}  // namespace uwarp::bench
