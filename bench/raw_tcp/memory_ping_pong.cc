// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The shape of ib_write_lat on plain TCP: the application's thread sends, then spins on memory,
// into which a second thread, asleep in epoll, receives. No thread is pinned.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "ends/round_trips.h"
#include "ends/sockets.h"
#include "raw_tcp/modes.h"

namespace uwarp::bench {
namespace {

/// Receives in a thread of its own and publishes how many bytes are in memory.
class Receiver {
 public:
  Receiver(int fd, size_t size) : fd_(fd), memory_(size), thread_([this] { run(); }) {}
  ~Receiver() { thread_.join(); }

  /// Spins until `total` bytes have come. False at the end of the stream.
  bool wait_for(uint64_t total) const {
    while (arrived_.load(std::memory_order_acquire) < total) {
      if (ended_.load(std::memory_order_relaxed)) return false;
    }
    return true;
  }

 private:
  void run() {
    const int epoll = make_epoll();
    watch(epoll, fd_, EPOLLIN | EPOLLET);
    epoll_event event{};
    while (!ended_.load(std::memory_order_relaxed)) {
      if (epoll_wait(epoll, &event, 1, -1) < 0 && errno != EINTR) die("epoll_wait");
      drain();
    }
    close(epoll);
  }

  void drain() {
    for (;;) {
      const uint64_t before = arrived_.load(std::memory_order_relaxed);
      const size_t offset = before % memory_.size();
      const ssize_t got = recv(fd_, memory_.data() + offset, memory_.size() - offset, 0);
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) {
        ended_.store(true);
        return;
      }
      arrived_.store(before + static_cast<uint64_t>(got), std::memory_order_release);
    }
  }

  const int fd_;
  std::vector<char> memory_;
  alignas(64) std::atomic<uint64_t> arrived_{0};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace

void memory_ping_pong(const Options& options) {
  const int fd = open_one(options);
  set_nonblocking(fd);
  const std::vector<char> message(options.size, 'x');
  Receiver receiver(fd, options.size);
  uint64_t total = 0;
  if (!options.client()) {
    while (receiver.wait_for(total += options.size)) send_all(fd, message.data(), message.size());
    return;
  }
  RoundTrips trips(options.seconds);
  while (trips.go_on()) {
    trips.begin();
    send_all(fd, message.data(), message.size());
    if (!receiver.wait_for(total += options.size)) die("the other end is gone");
    trips.end();
  }
  trips.print_halves();
  std::fflush(stdout);
  shutdown(fd, SHUT_RDWR);
}

}  // namespace uwarp::bench
