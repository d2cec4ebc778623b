// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Batches of requests on many queue pairs. A batch is a list of Writes that ends with a Read, whose
// completion says that the target has it all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "verbs_bench/endpoint.h"

namespace uwarp::bench {

class Batch {
 public:
  Batch(const Options& options, const Resources& resources, const RemoteMemory& remote);
  /// On the queue pair of `ids[index]`.
  void post(const std::vector<rdma_cm_id*>& ids, uint64_t index);

 private:
  ibv_sge sge_;
  std::vector<ibv_send_wr> requests_;
};

/// So many connections, `window` under way at a time.
std::vector<rdma_cm_id*> open_all(Connector& connector, uint32_t count, uint32_t window);

/// Keeps one batch outstanding on each of the first `active` queue pairs, whose completion queue is
/// `cq`.
double batches_per_second(Batch& batch, const std::vector<rdma_cm_id*>& ids, size_t active,
                          ibv_cq* cq, double seconds);

}  // namespace uwarp::bench
