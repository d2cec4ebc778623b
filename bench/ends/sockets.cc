// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// TCP sockets between two ends.
#include "ends/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>

namespace uwarp::bench {
namespace {

constexpr int kBacklog = 4096;

bool again(ssize_t result) { return result < 0 && (errno == EAGAIN || errno == EINTR); }

}  // namespace

sockaddr_in where(const Ends& ends) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(ends.port);
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  if (ends.client() && inet_pton(AF_INET, ends.address.c_str(), &address.sin_addr) != 1) {
    die("address");
  }
  return address;
}

void prepare(int fd, const Ends& ends) {
  const int on = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) die("TCP_NODELAY");
  const std::string& name = ends.congestion;
  if (!name.empty() && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                                  static_cast<socklen_t>(name.size())) != 0) {
    die("TCP_CONGESTION");
  }
}

void set_nonblocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) die("O_NONBLOCK");
}

int listen_on(const Ends& ends, bool nonblocking) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  const sockaddr_in address = where(ends);
  if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener, kBacklog) != 0) {
    die("listen");
  }
  if (nonblocking) set_nonblocking(listener);
  return listener;
}

int accept_on(int listener, const Ends& ends) {
  const int fd = accept(listener, nullptr, nullptr);
  if (fd < 0) die("accept");
  prepare(fd, ends);
  return fd;
}

int connect_to(const Ends& ends) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = where(ends);
  if (fd < 0) die("socket");
  prepare(fd, ends);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) die("connect");
  return fd;
}

int start_connect(const Ends& ends) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const sockaddr_in address = where(ends);
  if (fd < 0) die("socket");
  prepare(fd, ends);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
      errno != EINPROGRESS) {
    die("connect");
  }
  return fd;
}

int open_one(const Ends& ends) {
  if (ends.client()) return connect_to(ends);
  const int listener = listen_on(ends);
  const int fd = accept_on(listener, ends);
  close(listener);
  return fd;
}

void send_all(int fd, const char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
    if (again(sent)) continue;
    if (sent < 0) die("send");
    bytes += sent;
    size -= static_cast<size_t>(sent);
  }
}

bool receive_all(int fd, char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t got = recv(fd, bytes, size, 0);
    if (again(got)) continue;
    if (got < 0 && errno != ECONNRESET) die("recv");
    if (got <= 0) return false;
    bytes += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

int make_epoll() {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) die("epoll_create1");
  return epoll;
}

void watch(int epoll, int fd, unsigned events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) die("epoll_ctl");
}

void serve_connections(const Ends& ends, const std::function<void(int fd)>& readable) {
  const int listener = listen_on(ends);
  const int control = accept_on(listener, ends);
  const int epoll = make_epoll();
  set_nonblocking(listener);
  watch(epoll, listener, EPOLLIN);
  watch(epoll, control, EPOLLIN);
  epoll_event events[256];
  for (;;) {
    const int count = epoll_wait(epoll, events, std::size(events), -1);
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == control) return;
      if (fd != listener) {
        readable(fd);
        continue;
      }
      for (int made; (made = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK)) >= 0;) {
        prepare(made, ends);
        watch(epoll, made, EPOLLIN);
      }
    }
  }
}

}  // namespace uwarp::bench
