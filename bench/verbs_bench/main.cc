// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// verbs_bench: what perftest does not measure. Plain verbs, nothing of uwarp: under uwarp-run, or
// on any RDMA device.
#include <cstdio>
#include <cstdlib>
#include <map>

#include "verbs_bench/endpoint.h"
#include "verbs_bench/modes.h"

int main(int argc, char** argv) {
  using namespace uwarp::bench;
  static const std::map<std::string, void (*)(const Options&)> kModes = {
      {"rate", rate}, {"wake-up", wake_up}, {"qps", queue_pairs}, {"connects", connects}};
  const Options options = parse_options(argc, argv);
  const auto mode = kModes.find(options.mode);
  if (mode == kModes.end()) {
    std::fprintf(stderr, "verbs_bench: no mode %s\n", options.mode.c_str());
    return 2;
  }
  raise_file_limit();
  mode->second(options);
  return 0;
}
