// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// verbs_bench: what perftest does not measure. Plain verbs, nothing of uwarp: under uwarp-run, or
// on any RDMA device.
#include "ends/process.h"
#include "ends/run_mode.h"
#include "verbs_bench/modes.h"

int main(int argc, char** argv) {
  using namespace uwarp::bench;
  const Modes<Options> modes = {{"rate", rate},   {"wake-up", wake_up},   {"qps", queue_pairs},
                                {"scale", scale}, {"connects", connects}, {"datagrams", datagrams}};
  const Options options = parse_options(argc, argv);
  raise_file_limit();
  return run_mode("verbs_bench", modes, options);
}
