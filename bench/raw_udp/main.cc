// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// raw_udp: what plain UDP does here, the limit to measure datagrams of uwarp against. Knows nothing
// of RDMA.
#include "ends/process.h"
#include "ends/run_mode.h"
#include "raw_udp/modes.h"

int main(int argc, char** argv) {
  using namespace uwarp::bench;
  const Modes<Options> modes = {{"ping-pong", ping_pong}, {"datagrams", datagrams}};
  const Options options = parse_options(argc, argv);
  raise_file_limit();
  return run_mode("raw_udp", modes, options);
}
