// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// One message to and fro.
#include <vector>

#include "ends/process.h"
#include "ends/round_trips.h"
#include "raw_memory/channel.h"
#include "raw_memory/modes.h"

namespace uwarp::bench {

void ping_pong(const Options& options) {
  const std::unique_ptr<Channel> channel = open_channel(options);
  const std::vector<char> out(options.size, 'x');
  std::vector<char> in(options.size);
  if (!options.client()) {
    while (channel->receive(in.data(), in.size())) channel->send(out.data(), out.size());
    return;
  }
  RoundTrips trips(options.seconds);
  while (trips.go_on()) {
    trips.begin();
    channel->send(out.data(), out.size());
    if (!channel->receive(in.data(), in.size())) die("the other end is gone");
    trips.end();
  }
  trips.print_halves();
  channel->end();
}

}  // namespace uwarp::bench
