// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// What plain TCP does here: the limit to measure uwarp against.
//
//   raw_tcp lat BYTES ROUNDS [CONGESTION]    half round trip in us; both ends poll nonblocking sockets
//   raw_tcp bw BYTES SECONDS [CONGESTION]    MB/s of one stream of writes of BYTES each
//
// Two processes over loopback, TCP_NODELAY. Prints one number.

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmUpRounds = 1000;
constexpr size_t kReceiveBytes = 1 << 20;

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void prepare(int fd, const std::string& congestion, bool blocking) {
  const int on = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) die("TCP_NODELAY");
  if (!congestion.empty() &&
      setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion.data(), congestion.size()) != 0) {
    die("TCP_CONGESTION");
  }
  if (!blocking && fcntl(fd, F_SETFL, O_NONBLOCK) != 0) die("O_NONBLOCK");
}

void send_all(int fd, const char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) die("send");
    if (sent > 0) {
      bytes += sent;
      size -= static_cast<size_t>(sent);
    }
  }
}

/// False at the end of the stream.
bool receive_all(int fd, char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t got = recv(fd, bytes, size, 0);
    if (got == 0) return false;
    if (got < 0 && errno != EAGAIN) die("recv");
    if (got > 0) {
      bytes += got;
      size -= static_cast<size_t>(got);
    }
  }
  return true;
}

void echo(int fd, size_t size) {
  std::vector<char> message(size);
  while (receive_all(fd, message.data(), size)) send_all(fd, message.data(), size);
}

double half_round_trip_us(int fd, size_t size, int rounds) {
  std::vector<char> message(size, 'x');
  Clock::time_point start;
  for (int i = -kWarmUpRounds; i < rounds; ++i) {
    if (i == 0) start = Clock::now();
    send_all(fd, message.data(), size);
    if (!receive_all(fd, message.data(), size)) die("the other end is gone");
  }
  return seconds_since(start) / rounds / 2 * 1e6;
}

void drain(int fd) {
  std::vector<char> bytes(kReceiveBytes);
  while (recv(fd, bytes.data(), bytes.size(), 0) > 0) {
  }
}

double megabytes_per_second(int fd, size_t size, double seconds) {
  std::vector<char> message(size, 'x');
  const auto start = Clock::now();
  double total = 0;
  double elapsed = 0;
  while (elapsed < seconds) {
    for (int i = 0; i < 16; ++i) send_all(fd, message.data(), size);
    total += 16.0 * static_cast<double>(size);
    elapsed = seconds_since(start);
  }
  return total / elapsed / 1e6;
}

int listen_on_loopback(sockaddr_in& where) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof where;
  if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&where), length) != 0 ||
      listen(listener, 1) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&where), &length) != 0) {
    die("listen");
  }
  return listener;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 3 ? argv[1] : "";
  if (mode != "lat" && mode != "bw") {
    std::fprintf(stderr, "usage: raw_tcp lat BYTES ROUNDS [CONGESTION] | bw BYTES SECONDS [CONGESTION]\n");
    return 2;
  }
  const auto size = static_cast<size_t>(std::atoll(argv[2]));
  const std::string congestion = argc > 4 ? argv[4] : "";
  // A blocking stream is the faster one; a ping-pong wants nobody asleep.
  const bool blocking = mode == "bw";
  sockaddr_in where{};
  const int listener = listen_on_loopback(where);
  const pid_t child = fork();
  if (child < 0) die("fork");
  if (child == 0) {
    const int fd = accept(listener, nullptr, nullptr);
    prepare(fd, congestion, blocking);
    if (mode == "lat") {
      echo(fd, size);
    } else {
      drain(fd);
    }
    std::_Exit(0);
  }
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&where), sizeof where) != 0) die("connect");
  prepare(fd, congestion, blocking);
  std::printf("%.3f\n", mode == "lat" ? half_round_trip_us(fd, size, std::atoi(argv[3]))
                                      : megabytes_per_second(fd, size, std::atof(argv[3])));
  close(fd);
  waitpid(child, nullptr, 0);
  return 0;
}
