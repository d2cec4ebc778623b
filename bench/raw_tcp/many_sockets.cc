// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Many connections between two processes, each end with one epoll: the server sleeps in it, the
// client polls it. A batch of messages is answered by one message, and then the next may go.
#include <sys/epoll.h>
#include <unistd.h>

#include <vector>

#include "ends/round_trips.h"
#include "ends/sockets.h"
#include "raw_tcp/batches.h"
#include "raw_tcp/modes.h"

namespace uwarp::bench {
namespace {

void serve(const Options& options) {
  BatchAnswerer answerer(options.size, options.batch);
  serve_connections(options, [&](int fd) {
    if (!answerer.answer(fd)) close(fd);
  });
}

}  // namespace

void sockets(const Options& options) {
  raise_file_limit();
  if (!options.client()) return serve(options);
  connect_to(options);
  const int epoll = make_epoll();
  std::vector<int> fds;
  for (int i = 0; i < options.count; ++i) {
    fds.push_back(connect_to(options));
    set_nonblocking(fds.back());
    watch(epoll, fds.back(), EPOLLIN);
  }
  const double batches = batches_per_second(options, epoll, fds, options.all ? fds.size() : 1);
  print_figure("per_second", batches * static_cast<double>(options.batch));
}

}  // namespace uwarp::bench
