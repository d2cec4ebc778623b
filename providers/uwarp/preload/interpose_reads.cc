// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// read() in all its forms. On a completion channel the thread that waits for an event serves the
// sockets; a counter's file shows the value of the moment.
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "preload/engine_link.h"
#include "preload/fd_kinds.h"
#include "preload/real.h"

using namespace uwarp_preload;

namespace {

constinit Real<ssize_t(int, void*, size_t)> real_read("read");
constinit Real<ssize_t(int, const iovec*, int)> real_readv("readv");
constinit Real<ssize_t(int, const iovec*, int, off_t, int)> real_preadv2("preadv2");
constinit Real<ssize_t(int, void*, size_t, int)> real_recv("recv");
constinit Real<ssize_t(int, void*, size_t, int, sockaddr*, socklen_t*)> real_recvfrom("recvfrom");
constinit Real<ssize_t(int, msghdr*, int)> real_recvmsg("recvmsg");
constinit Real<int(int, mmsghdr*, unsigned, int, timespec*)> real_recvmmsg("recvmmsg");

/// sysfs shows the value of the moment to a reader that begins at the beginning.
[[gnu::noinline]] void refresh_counter(int fd) {
  const UncancelledEngineCall guard;
  host_if_loaded()->refresh(fd);
}

/// Into several buffers, as by one read(): an event is not split between two calls.
[[gnu::noinline]] ssize_t read_pieces(int fd, const iovec* pieces, size_t count) {
  char event[64];  // one is smaller
  size_t buffer_size = 0;
  for (size_t i = 0; i < count && buffer_size < sizeof event; ++i) buffer_size += pieces[i].iov_len;
  const ssize_t got = read(fd, event, std::min(buffer_size, sizeof event));
  size_t left = got > 0 ? static_cast<size_t>(got) : 0;
  const char* from = event;
  for (size_t i = 0; i < count && left > 0; ++i) {
    const size_t part = std::min(left, pieces[i].iov_len);
    memcpy(pieces[i].iov_base, from, part);
    from += part;
    left -= part;
  }
  return got;
}

/// A channel is read by any call of sockets too, as long as it asks for nothing but bytes. Those
/// with flags do not wait, or want what only the kernel knows.
bool reads_channel(int fd, int flags) {
  return flags == 0 && kind_of(fd) == UWARP_FD_EVENT_CHANNEL;
}

}  // namespace

extern "C" {

ssize_t read(int fd, void* bytes, size_t length) {
  const uwarp_fd_kind kind = kind_of(fd);
  if (kind != UWARP_FD_EVENT_CHANNEL && kind != UWARP_FD_COUNTER) [[likely]]
    return real_read(fd, bytes, length);
  const uwarp_host_table* engine = host_if_loaded();
  if (inside_engine() || !memory_is_ours()) return real_read(fd, bytes, length);
  const InsideEngine guard;
  return engine->read(fd, bytes, length);
}

ssize_t __read_chk(int fd, void* bytes, size_t length, size_t buffer_size) {
  if (length > buffer_size) abort();
  return read(fd, bytes, length);
}

ssize_t readv(int fd, const iovec* pieces, int count) {
  const uwarp_fd_kind kind = kind_of(fd);
  if (kind == UWARP_FD_EVENT_CHANNEL && count > 0) [[unlikely]]
    return read_pieces(fd, pieces, static_cast<size_t>(count));
  if (kind == UWARP_FD_COUNTER && memory_is_ours()) refresh_counter(fd);
  return real_readv(fd, pieces, count);
}

// At offset -1 this is readv().
ssize_t preadv2(int fd, const iovec* pieces, int count, off_t offset, int flags) {
  if (offset == -1 && flags == 0) return readv(fd, pieces, count);
  return real_preadv2(fd, pieces, count, offset, flags);
}

ssize_t recv(int fd, void* bytes, size_t length, int flags) {
  return reads_channel(fd, flags) ? read(fd, bytes, length) : real_recv(fd, bytes, length, flags);
}

ssize_t __recv_chk(int fd, void* bytes, size_t length, size_t buffer_size, int flags) {
  if (length > buffer_size) abort();
  return recv(fd, bytes, length, flags);
}

ssize_t recvfrom(int fd, void* bytes, size_t length, int flags, sockaddr* from,
                 socklen_t* from_size) {
  if (from != nullptr || !reads_channel(fd, flags)) [[likely]]
    return real_recvfrom(fd, bytes, length, flags, from, from_size);
  return read(fd, bytes, length);
}

ssize_t __recvfrom_chk(int fd, void* bytes, size_t length, size_t buffer_size, int flags,
                       sockaddr* from, socklen_t* from_size) {
  if (length > buffer_size) abort();
  return recvfrom(fd, bytes, length, flags, from, from_size);
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  if (!reads_channel(fd, flags)) [[likely]]
    return real_recvmsg(fd, message, flags);
  const ssize_t got = read_pieces(fd, message->msg_iov, message->msg_iovlen);
  if (got >= 0) message->msg_namelen = message->msg_controllen = message->msg_flags = 0;
  return got;
}

// The first message is waited for; without a timeout only, since it ends between messages.
int recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  if (count == 0 || timeout != nullptr || !reads_channel(fd, flags)) [[likely]]
    return real_recvmmsg(fd, messages, count, flags, timeout);
  const ssize_t got = recvmsg(fd, &messages->msg_hdr, flags);
  if (got < 0) return -1;
  messages->msg_len = static_cast<unsigned>(got);
  return 1;
}

// Further names of the same calls.
decltype(read) __read __attribute__((alias("read")));
decltype(preadv64v2) preadv64v2 __attribute__((alias("preadv2")));

}  // extern "C"
