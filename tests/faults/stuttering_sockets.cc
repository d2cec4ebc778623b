// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "faults/stuttering_sockets.h"

#include <dlfcn.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <random>

namespace {

using Arguments = std::array<long, 6>;

std::atomic<bool> stuttering{false};
std::atomic<uint32_t> course{0};
std::atomic<uint32_t> interrupted{0}, shortened{0}, without_memory{0}, shuffled{0};

constexpr size_t kFewBytes = 3;

/// True once in `chances` calls on average.
bool happens(uint32_t chances) {
  std::minstd_rand random(course.fetch_add(1) * 2654435761u + 1);
  random.discard(2);
  return random() % chances == 0;
}

long real(long number, const Arguments& a) {
  using Call = long (*)(long, ...);
  static const auto libc = reinterpret_cast<Call>(dlsym(RTLD_NEXT, "syscall"));
  return libc(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

long failed(int error, std::atomic<uint32_t>& count) {
  ++count;
  errno = error;
  return -1;
}

/// Sends only the first bytes of the first piece that is not empty.
long send_few(const Arguments& a) {
  const auto* message = reinterpret_cast<const msghdr*>(a[1]);
  for (size_t i = 0; i < message->msg_iovlen; ++i) {
    iovec piece = message->msg_iov[i];
    if (piece.iov_len == 0) continue;
    piece.iov_len = std::min(piece.iov_len, kFewBytes);
    msghdr few{};
    few.msg_iov = &piece;
    few.msg_iovlen = 1;
    ++shortened;
    return real(SYS_sendmsg, {a[0], reinterpret_cast<long>(&few), a[2], 0, 0, 0});
  }
  return real(SYS_sendmsg, a);
}

long stutter(long number, Arguments a) {
  const bool sends = number == SYS_sendmsg || number == SYS_sendto;
  const bool receives = number == SYS_recvmsg || number == SYS_recvfrom;
  if ((sends || receives) && happens(5)) return failed(EINTR, interrupted);
  if (sends && happens(7)) return failed(ENOBUFS, without_memory);
  if (number == SYS_sendmsg && happens(3)) return send_few(a);
  if (number == SYS_sendto && happens(3)) {
    a[2] = std::min(a[2], static_cast<long>(kFewBytes));
    ++shortened;
  }
  const long result = real(number, a);
  if (number == SYS_epoll_pwait && result > 1) {
    auto* events = reinterpret_cast<epoll_event*>(a[1]);
    std::reverse(events, events + result);
    ++shuffled;
  }
  return result;
}

}  // namespace

/// Replaces libc's function, for this program and all its libraries.
extern "C" long syscall(long number, ...) noexcept {
  Arguments arguments;
  va_list list;
  va_start(list, number);
  for (long& each : arguments) each = va_arg(list, long);
  va_end(list);
  return stuttering.load(std::memory_order_relaxed) ? stutter(number, arguments)
                                                    : real(number, arguments);
}

StutteringSockets::StutteringSockets(uint32_t seed) {
  course.store(seed);
  interrupted = shortened = without_memory = shuffled = 0;
  stuttering.store(true);
}

StutteringSockets::~StutteringSockets() { stuttering.store(false); }

StutteringSockets::Counts StutteringSockets::counts() const {
  return {interrupted.load(), shortened.load(), without_memory.load(), shuffled.load()};
}
