// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// TCP sockets as every mode of raw_tcp uses them. Whatever fails ends the program.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>

#include "raw_tcp/options.h"

namespace uwarp::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

[[noreturn]] void die(const char* what);

/// A socket that listens on the port of the options, nonblocking on request.
int listen_on(const Options& options, bool nonblocking = false);
/// The next connection, with TCP_NODELAY and the congestion control asked for.
int accept_on(int listener, const Options& options);
int connect_to(const Options& options);
/// A nonblocking socket whose connect() is under way.
int start_connect(const Options& options);

/// Server: the one connection of a run. Client: a connection to it.
int open_one(const Options& options);

void prepare(int fd, const Options& options);
void set_nonblocking(int fd);
/// As many open files as the hard limit allows.
void raise_file_limit();

/// Sends all; a nonblocking socket is tried again and again.
void send_all(int fd, const char* bytes, size_t size);
/// False at the end of the stream. A nonblocking socket is tried again and again.
bool receive_all(int fd, char* bytes, size_t size);

int make_epoll();
void watch(int epoll, int fd, unsigned events);
/// Server with one epoll: `readable(fd)` whenever a connection has something, until the first
/// connection, on which nothing is sent, ends. The connections are nonblocking; `readable` closes
/// them.
void serve_connections(const Options& options, const std::function<void(int fd)>& readable);

}  // namespace uwarp::bench
