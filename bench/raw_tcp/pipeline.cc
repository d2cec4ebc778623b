// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Requests and answers with several outstanding: what a requester of small RDMA Reads does. Both
// ends take what one recv() gives and send as many messages at once.
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "ends/round_trips.h"
#include "ends/sockets.h"
#include "raw_tcp/modes.h"

namespace uwarp::bench {

void pipeline(const Options& options) {
  const int fd = open_one(options);
  set_nonblocking(fd);
  std::vector<char> bytes(options.size * options.batch, 'x');
  const auto start = Clock::now();
  double total = 0;
  size_t partial = 0;  // bytes of a message that has not come as a whole
  if (options.client()) send_all(fd, bytes.data(), bytes.size());
  while (!options.client() || seconds_since(start) < options.seconds) {
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EAGAIN) continue;
    if (got <= 0) break;
    const size_t whole = (partial + static_cast<size_t>(got)) / options.size * options.size;
    partial = (partial + static_cast<size_t>(got)) % options.size;
    send_all(fd, bytes.data(), whole);
    total += static_cast<double>(whole / options.size);
  }
  if (options.client()) print_figure("per_second", total / seconds_since(start));
}

}  // namespace uwarp::bench
