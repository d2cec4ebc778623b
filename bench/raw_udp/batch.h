// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Datagrams that go to the kernel, or come from it, in one call.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <vector>

namespace uwarp::bench {

/// Buffers of as many datagrams as one call takes.
class DatagramBatch {
 public:
  DatagramBatch(size_t datagrams, size_t bytes);
  DatagramBatch(const DatagramBatch&) = delete;

  /// Where the datagram of this number goes; `address` outlives the batch.
  void address_to(size_t number, const sockaddr& address, socklen_t bytes);
  /// Sends the first `count`.
  void send(int fd, size_t count);
  /// How many a nonblocking socket had.
  size_t receive(int fd);
  size_t size() const { return messages_.size(); }

 private:
  std::vector<char> memory_;
  std::vector<iovec> places_;
  std::vector<mmsghdr> messages_;
};

}  // namespace uwarp::bench
