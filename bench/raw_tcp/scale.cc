// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Many connections of several processes, spread over threads with an epoll each. The servers'
// threads sleep in theirs, those of the clients poll.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "ends/round_trips.h"
#include "ends/sockets.h"
#include "ends/team.h"
#include "raw_tcp/batches.h"
#include "raw_tcp/modes.h"

namespace uwarp::bench {
namespace {

constexpr int kEvents = 256;

/// One thread of a server; does not return.
void answer_all(const Options& options, int epoll) {
  BatchAnswerer answerer(options.size, options.batch);
  epoll_event events[kEvents];
  for (;;) {
    const int count = epoll_wait(epoll, events, kEvents, -1);
    for (int i = 0; i < count; ++i)
      if (!answerer.answer(events[i].data.fd)) close(events[i].data.fd);
  }
}

/// Ends the process with its first connection, on which nothing is sent.
void serve(const Options& options, int listener) {
  const int control = accept_on(listener, options);
  std::vector<int> epolls;
  for (uint32_t i = 0; i < options.threads; ++i) {
    epolls.push_back(make_epoll());
    std::thread([&options, epoll = epolls.back()] { answer_all(options, epoll); }).detach();
  }
  std::thread([&] {
    for (size_t next = 0;; ++next) {
      const int made = accept_on(listener, options);
      set_nonblocking(made);
      watch(epolls[next % epolls.size()], made, EPOLLIN);
    }
  }).detach();
  char none;
  (void)receive_all(control, &none, 1);
  std::_Exit(0);
}

void work(const Options& options, Team& team, uint32_t process, uint32_t thread) {
  const int control = thread == 0 ? connect_to(options) : -1;
  team.meet();
  const int epoll = make_epoll();
  std::vector<int> fds;
  const auto all = static_cast<uint32_t>(options.count);
  const uint32_t threads = options.processes * options.threads;
  for (uint32_t i = part_of(all, process * options.threads + thread, threads); i > 0; --i) {
    fds.push_back(connect_to(options));
    set_nonblocking(fds.back());
    watch(epoll, fds.back(), EPOLLIN);
  }
  team.meet();
  const double batches = batches_per_second(options, epoll, fds, fds.size());
  team.add(batches * static_cast<double>(options.batch));
  team.meet();
  if (control >= 0) close(control);
}

}  // namespace

void scale(const Options& options) {
  raise_file_limit();
  Team team(options.processes, options.client() ? options.threads : 1);
  team.run([&](uint32_t process, uint32_t thread) {
    Options own = options;
    own.port = static_cast<uint16_t>(options.port + process);
    if (options.client()) return work(own, team, process, thread);
    // The first server listens last: the clients begin there.
    if (process == 0) team.meet();
    const int listener = listen_on(own);
    if (process != 0) team.meet();
    serve(own, listener);
  });
  print_figure("per_second", team.sum());
}

}  // namespace uwarp::bench
