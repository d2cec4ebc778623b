// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A descriptor whose last close() waits: what a hostile process hands over.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>
#include <vector>

namespace uwarp {

/// A TCP connection whose other end reads nothing, so that its last close() waits for a minute.
class LingeringSocket {
 public:
  LingeringSocket() {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof any;
    auto* const address = reinterpret_cast<sockaddr*>(&any);
    EXPECT_EQ(bind(listener_, address, size), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(getsockname(listener_, address, &size), 0);
    EXPECT_EQ(connect(fd_, address, size), 0);
    peer_ = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const linger wait = {1, 60};
    EXPECT_EQ(setsockopt(fd_, SOL_SOCKET, SO_LINGER, &wait, sizeof wait), 0);
    const std::vector<char> bytes(1 << 20);
    while (::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
  }
  ~LingeringSocket() { end(); }
  int fd() const { return fd_; }
  /// From now on only letters have it.
  void forget() { close(std::exchange(fd_, -1)); }
  void end() {
    close(std::exchange(peer_, -1));
    close(std::exchange(listener_, -1));
  }

 private:
  int listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int peer_ = -1;
};

}  // namespace uwarp
