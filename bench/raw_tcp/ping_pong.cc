// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// One message to and fro, the same or a short one that asks for a long one. Both ends learn of
// bytes in the same way: by trying again and again, by a blocking recv(), or by poll() or epoll in
// front of it.
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "ends/round_trips.h"
#include "ends/sockets.h"
#include "raw_tcp/modes.h"

namespace uwarp::bench {
namespace {

class WaitingSocket {
 public:
  WaitingSocket(int fd, Wait how) : fd_(fd), how_(how) {
    if (how != Wait::kBlock) set_nonblocking(fd);
    if (how == Wait::kEpoll) watch(epoll_ = make_epoll(), fd, EPOLLIN);
  }

  bool receive(std::vector<char>& message) {
    wait();
    return receive_all(fd_, message.data(), message.size());
  }

 private:
  void wait() {
    if (how_ == Wait::kPoll) {
      pollfd one{fd_, POLLIN, 0};
      if (poll(&one, 1, -1) < 0 && errno != EINTR) die("poll");
    } else if (how_ == Wait::kEpoll) {
      epoll_event event{};
      if (epoll_wait(epoll_, &event, 1, -1) < 0 && errno != EINTR) die("epoll_wait");
    }
  }

  const int fd_;
  const Wait how_;
  int epoll_ = -1;
};

}  // namespace

void ping_pong(const Options& options) {
  const int fd = open_one(options);
  WaitingSocket socket(fd, options.wait);
  std::vector<char> request(options.request, 'x');
  std::vector<char> answer(options.size, 'x');
  if (!options.client()) {
    while (socket.receive(request)) send_all(fd, answer.data(), answer.size());
    return;
  }
  RoundTrips trips(options.seconds);
  while (trips.go_on()) {
    trips.begin();
    send_all(fd, request.data(), request.size());
    if (!socket.receive(answer)) die("the other end is gone");
    trips.end();
  }
  trips.print_halves();
}

}  // namespace uwarp::bench
