// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// One datagram to and fro. Both ends poll.
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "ends/round_trips.h"
#include "ends/sockets.h"
#include "raw_udp/modes.h"
#include "raw_udp/udp_socket.h"

namespace uwarp::bench {
namespace {

/// Two sockets that are connected with each other; the ends tell each other where by TCP.
int open_pair(const Options& options) {
  const int control = open_one(options);
  const int fd = make_udp_socket(any_port());
  const sockaddr_in own = own_address(fd);
  sockaddr_in peer{};
  send_all(control, reinterpret_cast<const char*>(&own), sizeof own);
  if (!receive_all(control, reinterpret_cast<char*>(&peer), sizeof peer)) die("no peer");
  connect_udp(fd, peer);
  // Neither sends before both are connected.
  char ready = 0;
  send_all(control, &ready, 1);
  if (!receive_all(control, &ready, 1)) die("no peer");
  return fd;
}

/// How many bytes: none say that the client has ended.
ssize_t take_one(int fd, std::vector<char>& message) {
  for (;;) {
    const ssize_t got = recv(fd, message.data(), message.size(), 0);
    if (got >= 0) return got;
    if (errno != EAGAIN && errno != EINTR) die("recv");
  }
}

void send_one(int fd, const std::vector<char>& message, size_t size) {
  if (send(fd, message.data(), size, 0) < 0) die("send");
}

}  // namespace

void ping_pong(const Options& options) {
  const int fd = open_pair(options);
  std::vector<char> message(options.size, 'x');
  if (!options.client()) {
    while (take_one(fd, message) > 0) send_one(fd, message, message.size());
    return;
  }
  RoundTrips trips(options.seconds);
  while (trips.go_on()) {
    trips.begin();
    send_one(fd, message, message.size());
    take_one(fd, message);
    trips.end();
  }
  trips.print_halves();
  send_one(fd, message, 0);
}

}  // namespace uwarp::bench
