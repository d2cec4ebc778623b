// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Batches of messages on many connections, each answered by one message.
#pragma once

#include <cstddef>
#include <vector>

#include "raw_tcp/options.h"

namespace uwarp::bench {

/// Counts whole units in what connections bring. Belongs to one thread.
class UnitReader {
 public:
  explicit UnitReader(size_t unit);
  /// Reads what a nonblocking socket has. How many units have become whole; -1 at the end of the
  /// stream.
  long take(int fd);

 private:
  const size_t unit_;
  std::vector<char> bytes_;
  std::vector<size_t> partial_;  // by the number of the socket: bytes of a unit that is not whole
};

/// The answering end.
class BatchAnswerer {
 public:
  BatchAnswerer(size_t message_bytes, size_t batch)
      : reader_(message_bytes * batch), answer_(message_bytes, 'x') {}
  /// Answers what a socket has. False at the end of the stream.
  bool answer(int fd);

 private:
  UnitReader reader_;
  std::vector<char> answer_;
};

/// Keeps one batch outstanding on each of the first `active` sockets, all of which `epoll` watches.
double batches_per_second(const Options& options, int epoll, const std::vector<int>& fds,
                          size_t active);

}  // namespace uwarp::bench
