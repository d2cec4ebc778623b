// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Connections per second: address, route, queue pair, connect, disconnect, destroy; several under
// way at a time on one event channel.
#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "ends/round_trips.h"
#include "verbs_bench/endpoint.h"
#include "verbs_bench/modes.h"

namespace uwarp::bench {

void connects(const Options& options) {
  const Shape shape;
  if (!options.client()) {
    Acceptor(options, shape).run([](Resources&, ibv_qp*) {}, [](Resources&, ibv_qp*) {});
    std::_Exit(0);
  }
  Connector connector(options, shape);
  rdma_cm_id* control = connector.open_one();
  const auto start = std::chrono::steady_clock::now();
  uint32_t started = std::min(options.count, options.window);
  for (uint32_t i = 0; i < started; ++i) connector.start();
  connector.wait(
      options.count,
      [&](rdma_cm_id* id) {
        rdma_disconnect(id);
        if (started < options.count) {
          ++started;
          connector.start();
        }
      },
      true);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  print_figure("per_second", options.count / elapsed.count());
  rdma_disconnect(control);
}

}  // namespace uwarp::bench
