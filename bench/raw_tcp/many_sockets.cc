// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Many connections between two processes, each end with one epoll: the server sleeps in it, the
// client polls it. A batch of messages is answered by one message, and then the next may go.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "ends/round_trips.h"
#include "ends/sockets.h"
#include "raw_tcp/modes.h"

namespace uwarp::bench {
namespace {

constexpr int kEvents = 256;
constexpr size_t kReadBytes = 64 << 10;

/// Reads what a socket has. The number of whole units of `unit` bytes among it and what was left
/// over before; -1 at the end of the stream.
long take(int fd, size_t unit, std::vector<char>& bytes, std::vector<size_t>& partial) {
  const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
  if (got < 0 && errno == EAGAIN) return 0;
  if (got <= 0) return -1;
  const auto index = static_cast<size_t>(fd);
  if (partial.size() <= index) partial.resize(index + 1);
  const size_t have = partial[index] + static_cast<size_t>(got);
  partial[index] = have % unit;
  return static_cast<long>(have / unit);
}

void serve(const Options& options) {
  std::vector<char> bytes(kReadBytes);
  std::vector<size_t> partial;
  serve_connections(options, [&](int fd) {
    const long batches = take(fd, options.size * options.batch, bytes, partial);
    if (batches < 0) close(fd);
    for (long each = 0; each < batches; ++each) send_all(fd, bytes.data(), options.size);
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
  const std::vector<char> batch(options.size * options.batch, 'x');
  std::vector<char> bytes(kReadBytes);
  std::vector<size_t> partial;
  epoll_event events[kEvents];
  const size_t active = options.all ? fds.size() : 1;
  const auto start = Clock::now();
  double answered = 0;
  for (size_t i = 0; i < active; ++i) send_all(fds[i], batch.data(), batch.size());
  while (seconds_since(start) < options.seconds) {
    const int count = epoll_wait(epoll, events, kEvents, 0);
    for (int i = 0; i < count; ++i) {
      const long answers = take(events[i].data.fd, options.size, bytes, partial);
      if (answers < 0) die("the other end is gone");
      for (long each = 0; each < answers; ++each) {
        send_all(events[i].data.fd, batch.data(), batch.size());
      }
      answered += static_cast<double>(answers);
    }
  }
  print_figure("per_second", answered * static_cast<double>(options.batch) / seconds_since(start));
}

}  // namespace uwarp::bench
