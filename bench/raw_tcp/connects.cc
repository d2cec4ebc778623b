// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Connections per second: connect, a frame as large as MPA's to and fro, close. Several are under
// way at a time, each end with one epoll.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "ends/round_trips.h"
#include "ends/sockets.h"
#include "raw_tcp/modes.h"

namespace uwarp::bench {
namespace {

constexpr int kEvents = 256;
constexpr size_t kFrameBytes = 24;  // MPA request or reply of revision 2 without private data

void serve(const Options& options) {
  char frame[kFrameBytes];
  serve_connections(options, [&](int fd) {
    if (recv(fd, frame, sizeof frame, MSG_PEEK) <= 0) {
      close(fd);
    } else if (receive_all(fd, frame, sizeof frame)) {
      send_all(fd, frame, sizeof frame);
    }
  });
}

void start_one(int epoll, const Options& options) {
  watch(epoll, start_connect(options), EPOLLIN | EPOLLOUT);
}

void await_answer(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) != 0) die("epoll_ctl");
}

}  // namespace

void connects(const Options& options) {
  raise_file_limit();
  if (!options.client()) return serve(options);
  connect_to(options);
  const int epoll = make_epoll();
  char frame[kFrameBytes] = {};
  epoll_event events[kEvents];
  int started = 0, finished = 0;
  const auto start = Clock::now();
  for (; started < options.count && started < options.window; ++started) start_one(epoll, options);
  while (finished < options.count) {
    const int count = epoll_wait(epoll, events, kEvents, -1);
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if ((events[i].events & EPOLLIN) == 0) {
        send_all(fd, frame, sizeof frame);
        await_answer(epoll, fd);
        continue;
      }
      if (!receive_all(fd, frame, sizeof frame)) die("the other end is gone");
      close(fd);
      ++finished;
      if (started < options.count) {
        ++started;
        start_one(epoll, options);
      }
    }
  }
  print_figure("per_second", options.count / seconds_since(start));
}

}  // namespace uwarp::bench
