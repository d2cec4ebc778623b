// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "raw_udp/batch.h"

#include <cerrno>

#include "ends/process.h"

namespace uwarp::bench {

DatagramBatch::DatagramBatch(size_t datagrams, size_t bytes)
    : memory_(datagrams * bytes, 'x'), places_(datagrams), messages_(datagrams) {
  for (size_t i = 0; i < datagrams; ++i) {
    places_[i] = {memory_.data() + i * bytes, bytes};
    messages_[i].msg_hdr.msg_iov = &places_[i];
    messages_[i].msg_hdr.msg_iovlen = 1;
  }
}

void DatagramBatch::address_to(size_t number, const sockaddr& address, socklen_t bytes) {
  messages_[number].msg_hdr.msg_name = const_cast<sockaddr*>(&address);
  messages_[number].msg_hdr.msg_namelen = bytes;
}

void DatagramBatch::send(int fd, size_t count) {
  for (size_t done = 0; done < count;) {
    const int sent = sendmmsg(fd, &messages_[done], static_cast<unsigned>(count - done), 0);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) die("sendmmsg");
    if (sent > 0) done += static_cast<size_t>(sent);
  }
}

size_t DatagramBatch::receive(int fd) {
  const int got = recvmmsg(fd, messages_.data(), static_cast<unsigned>(size()), 0, nullptr);
  if (got < 0 && errno != EAGAIN && errno != EINTR) die("recvmmsg");
  return got < 0 ? 0 : static_cast<size_t>(got);
}

}  // namespace uwarp::bench
