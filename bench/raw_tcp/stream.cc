// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Bulk: one stream, two streams in opposite directions, on a connection each or on one, and small
// messages many per send.
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "ends/buffers.h"
#include "ends/round_trips.h"
#include "ends/sockets.h"
#include "raw_tcp/modes.h"

namespace uwarp::bench {
namespace {

constexpr int kSendsPerLook = 16;  // between two looks at the clock

/// Sends for so long, then ends the stream. Returns the bytes.
double send_for(int fd, Buffers& buffers, double seconds) {
  const auto start = Clock::now();
  double total = 0;
  while (seconds_since(start) < seconds) {
    for (int i = 0; i < kSendsPerLook; ++i) send_all(fd, buffers.next(), buffers.size());
    total += kSendsPerLook * static_cast<double>(buffers.size());
  }
  shutdown(fd, SHUT_WR);
  return total;
}

/// Bytes per second from the first send until the receiver has all of it.
double send_stream(int fd, Buffers buffers, double seconds) {
  const auto start = Clock::now();
  const double total = send_for(fd, buffers, seconds);
  char end;
  while (recv(fd, &end, 1, 0) > 0) {
  }
  return total / seconds_since(start);
}

/// Bytes per second until the end of the stream.
double receive_to_end(int fd, const Options& options) {
  Buffers buffers(options.read, options.size * (options.buffers - 1) / options.read + 1);
  Clock::time_point start;
  double total = 0;
  for (ssize_t got; (got = recv(fd, buffers.next(), buffers.size(), 0)) > 0;) {
    if (total == 0) start = Clock::now();
    total += static_cast<double>(got);
  }
  return total / seconds_since(start);
}

/// The same, and the receiver confirms it to the sender.
double receive_stream(int fd, const Options& options) {
  const double rate = receive_to_end(fd, options);
  shutdown(fd, SHUT_WR);
  return rate;
}

/// Both rates together, of a thread each.
template <typename Send, typename Receive>
double at_once(Send send, Receive receive) {
  double received = 0;
  std::thread receiver([&] { received = receive(); });
  const double sent = send();
  receiver.join();
  return sent + received;
}

/// What stream() does, with sends of `size` bytes; meaningful for the client.
double one_stream(const Options& options, size_t size) {
  const int fd = open_one(options);
  if (options.client()) return send_stream(fd, {size, options.buffers}, options.seconds);
  receive_stream(fd, options);
  return 0;
}

}  // namespace

void stream(const Options& options) {
  const double rate = one_stream(options, options.size);
  if (options.client()) print_figure("mb_per_second", rate / 1e6);
}

void messages(const Options& options) {
  const double rate = one_stream(options, options.size * options.batch);
  if (options.client()) print_figure("per_second", rate / static_cast<double>(options.size));
}

void duplex(const Options& options) {
  int first, second;
  if (options.client()) {
    first = connect_to(options);
    second = connect_to(options);
  } else {
    const int listener = listen_on(options);
    first = accept_on(listener, options);
    second = accept_on(listener, options);
  }
  const int out = options.client() ? first : second;
  const int in = options.client() ? second : first;
  const double rate = at_once(
      [&] {
        return send_stream(out, {options.size, 1}, options.seconds);
      },
      [&] { return receive_stream(in, options); });
  if (options.client()) print_figure("mb_per_second", rate / 1e6);
}

void both_ways(const Options& options) {
  const int fd = open_one(options);
  Buffers buffers(options.size, 1);
  // Neither direction can tell the other end that all has come. What TCP still holds when the
  // sender ends counts as sent: a few megabytes.
  const auto send = [&] {
    const auto start = Clock::now();
    return send_for(fd, buffers, options.seconds) / seconds_since(start);
  };
  const double rate = at_once(send, [&] { return receive_to_end(fd, options); });
  if (options.client()) print_figure("mb_per_second", rate / 1e6);
}

}  // namespace uwarp::bench
