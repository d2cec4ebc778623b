// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "carrier/wakeup_socket.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>

#include "os/raw_call.h"

namespace uwarp {
namespace {

int option_of(int fd, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  return raw_status(SYS_getsockopt, fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
}

/// Both ways and for ever, of both ends.
bool end_sending(int fd) { return raw_status(SYS_shutdown, fd, SHUT_RDWR) == 0; }

/// Bytes that were sent before. Descriptors come with at least one byte.
bool is_empty(int fd) {
  int bytes = -1;
  return raw_status(SYS_ioctl, fd, SIOCINQ, &bytes) == 0 && bytes == 0;
}

}  // namespace

Result<std::pair<WakeupSocket, WakeupSocket>> WakeupSocket::pair() {
  EngineFd fds[2][2];
  for (auto& [watched, rung] : fds) {
    int ends[2];
    constexpr int kType = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
    if (int error = raw_status(SYS_socketpair, AF_UNIX, kType, 0, ends)) return Error{error};
    watched = EngineFd(ends[0]);
    rung = EngineFd(ends[1]);
    if (!end_sending(watched.get())) return Error{EPERM};  // a policy refuses it
  }
  return std::pair(WakeupSocket(std::move(fds[0][0]), std::move(fds[1][1])),
                   WakeupSocket(std::move(fds[1][0]), std::move(fds[0][1])));
}

std::optional<WakeupSocket> WakeupSocket::adopt(ForeignFd& fd, ForeignFd& rung, Errands& errands) {
  for (const int number : {fd.get(), rung.get()})
    if (option_of(number, SO_DOMAIN) != AF_UNIX || option_of(number, SO_TYPE) != SOCK_STREAM ||
        option_of(number, SO_ACCEPTCONN) != 0 || !end_sending(number) || !is_empty(number))
      return std::nullopt;
  WakeupSocket wakeup;
  wakeup.foreign_ = std::make_shared<Foreign>();
  wakeup.foreign_->ends = {fd.adopt(), rung.adopt()};
  wakeup.errands_ = &errands;
  return wakeup;
}

WakeupSocket::~WakeupSocket() {
  if (foreign_ != nullptr) errands_->add(std::move(foreign_));
}

void WakeupSocket::ring() const { (void)raw_status(SYS_shutdown, rung_fd(), SHUT_WR); }

void WakeupSocket::ring_here() const { (void)raw_status(SYS_shutdown, fd(), SHUT_WR); }

}  // namespace uwarp
