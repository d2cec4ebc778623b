// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Many queue pairs of one process, on one completion queue, to a server that sleeps.
#include <unistd.h>

#include <cstdio>
#include <vector>

#include "ends/round_trips.h"
#include "verbs_bench/batch.h"
#include "verbs_bench/endpoint.h"
#include "verbs_bench/modes.h"

namespace uwarp::bench {
namespace {

double resident_bytes() {
  std::FILE* statm = std::fopen("/proc/self/statm", "r");
  long size = 0, resident = 0;
  if (statm == nullptr || std::fscanf(statm, "%ld %ld", &size, &resident) != 2) die("statm");
  std::fclose(statm);
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
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
  const std::vector<rdma_cm_id*> ids = open_all(connector, options.count, options.window);
  print_figure("kib_per_qp", (resident_bytes() - before) / options.count / 1024);

  Resources& resources = connector.resources();
  Batch batch(options, resources, connector.remote());
  const double rate = batches_per_second(batch, ids, options.all ? ids.size() : 1,
                                         resources.send_cq, options.seconds);
  print_figure("per_second", rate * options.depth);
  // What a queue pair keeps that has been busy: those that came off TCP have rings in use.
  print_figure("kib_per_used_qp", (resident_bytes() - before) / options.count / 1024);
  std::fflush(stdout);
  // What is left ends with the process: closing each takes longer than measuring.
  rdma_disconnect(control);
  std::_Exit(0);
}

}  // namespace uwarp::bench
