// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// TCP sockets between two ends. Any failure ends the program.
#pragma once

#include <netinet/in.h>

#include <chrono>
#include <cstddef>
#include <functional>

#include "ends/ends.h"
#include "ends/process.h"

namespace uwarp::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The server's address; for the server itself, all of its own.
sockaddr_in where(const Ends& ends);

/// A socket that listens on the port of the ends, nonblocking on request.
int listen_on(const Ends& ends, bool nonblocking = false);
/// The next connection, with TCP_NODELAY and the congestion control asked for.
int accept_on(int listener, const Ends& ends);
int connect_to(const Ends& ends);
/// A nonblocking socket whose connect() is under way.
int start_connect(const Ends& ends);

/// Server: the one connection of a run. Client: a connection to it.
int open_one(const Ends& ends);

void prepare(int fd, const Ends& ends);
void set_nonblocking(int fd);

/// Sends all; a nonblocking socket is tried again and again.
void send_all(int fd, const char* bytes, size_t size);
/// False at the end of the stream. A nonblocking socket is tried again and again.
bool receive_all(int fd, char* bytes, size_t size);

int make_epoll();
void watch(int epoll, int fd, unsigned events);
/// Server with one epoll: `readable(fd)` whenever a connection has something, until the first
/// connection, on which nothing is sent, ends. The connections are nonblocking; `readable` closes
/// them.
void serve_connections(const Ends& ends, const std::function<void(int fd)>& readable);

}  // namespace uwarp::bench
