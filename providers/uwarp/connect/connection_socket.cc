// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "connect/connection_socket.h"

#include <cerrno>
#include <utility>

namespace uwarp {

ConnectionSocket::~ConnectionSocket() {
  unwatch();
  socket_.close_gently();
}

void ConnectionSocket::take(TcpSocket socket, TcpSocket out) {
  socket_ = std::move(socket);
  out_ = std::move(out);
}

int ConnectionSocket::watch(Source& source) {
  const auto add = [&](const TcpSocket& socket, Progress::Ticket& ticket) {
    const auto added = progress_.add(source, socket.fd());
    if (!added) return added.error();
    ticket = *added;
    return 0;
  };
  const int error = add(socket_, ticket_);
  return error != 0 || !out_ ? error : add(out_, out_ticket_);
}

void ConnectionSocket::unwatch() {
  progress_.remove(std::exchange(ticket_, 0));
  progress_.remove(std::exchange(out_ticket_, 0));
}

void ConnectionSocket::begin_capture(Capture* capture, const sockaddr_storage& local,
                                     const sockaddr_storage& remote, bool active) {
  if (capture != nullptr)
    captured_ = std::make_unique<CapturedConnection>(*capture, local, remote, active);
}

ssize_t ConnectionSocket::send(std::span<const std::byte> octets) {
  const ssize_t sent = socket_.send(octets.data(), octets.size());
  if (captured_ != nullptr && sent > 0) {
    const iovec piece = {const_cast<std::byte*>(octets.data()), octets.size()};
    captured_->sent({&piece, 1}, static_cast<size_t>(sent));
  }
  return sent;
}

ssize_t ConnectionSocket::receive(std::span<std::byte> room) {
  const ssize_t count = socket_.receive(room.data(), room.size());
  if (captured_ != nullptr && count > 0) {
    const iovec piece = {room.data(), room.size()};
    captured_->received({&piece, 1}, static_cast<size_t>(count));
  } else if (captured_ != nullptr && count != -EAGAIN) {
    captured_->peer_ended(count < 0);
  }
  return count;
}

void ConnectionSocket::shutdown() {
  socket_.shutdown_write();
  if (captured_ != nullptr) captured_->end(false);
}

void ConnectionSocket::close(CloseMode mode) {
  unwatch();
  if (captured_ != nullptr) captured_->end(mode == CloseMode::kReset);
  switch (mode) {
    case CloseMode::kDone:
      socket_.close();
      break;
    case CloseMode::kGentle:
      socket_.close_gently();
      break;
    case CloseMode::kReset:
      socket_.reset();
      break;
  }
  out_.close();
}

}  // namespace uwarp
