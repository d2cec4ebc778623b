// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Batches of messages on many connections.
#include "raw_tcp/batches.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

#include "ends/sockets.h"

namespace uwarp::bench {
namespace {

constexpr int kEvents = 256;
constexpr size_t kReadBytes = 64 << 10;

}  // namespace

UnitReader::UnitReader(size_t unit) : unit_(unit), bytes_(kReadBytes) {}

long UnitReader::take(int fd) {
  const ssize_t got = recv(fd, bytes_.data(), bytes_.size(), 0);
  if (got < 0 && errno == EAGAIN) return 0;
  if (got <= 0) return -1;
  const auto index = static_cast<size_t>(fd);
  if (partial_.size() <= index) partial_.resize(index + 1);
  const size_t have = partial_[index] + static_cast<size_t>(got);
  partial_[index] = have % unit_;
  return static_cast<long>(have / unit_);
}

bool BatchAnswerer::answer(int fd) {
  const long batches = reader_.take(fd);
  for (long each = 0; each < batches; ++each) send_all(fd, answer_.data(), answer_.size());
  return batches >= 0;
}

double batches_per_second(const Options& options, int epoll, const std::vector<int>& fds,
                          size_t active) {
  const std::vector<char> batch(options.size * options.batch, 'x');
  UnitReader answers(options.size);
  epoll_event events[kEvents];
  const auto start = Clock::now();
  double answered = 0;
  for (size_t i = 0; i < active; ++i) send_all(fds[i], batch.data(), batch.size());
  while (seconds_since(start) < options.seconds) {
    const int count = epoll_wait(epoll, events, kEvents, 0);
    for (int i = 0; i < count; ++i) {
      const long whole = answers.take(events[i].data.fd);
      if (whole < 0) die("the other end is gone");
      for (long each = 0; each < whole; ++each)
        send_all(events[i].data.fd, batch.data(), batch.size());
      answered += static_cast<double>(whole);
    }
  }
  return answered / seconds_since(start);
}

}  // namespace uwarp::bench
