// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The TCP part of a connection: its socket, the source that gets its edges, and its capture.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "carrier/ring_carrier.h"
#include "carrier/tcp_socket.h"
#include "observe/capture.h"
#include "progress/progress.h"
#include "stream/stream.h"

namespace uwarp {

enum class CloseMode : uint8_t {
  kDone,    // both have sent their FIN, and no reset is due when the fd is closed
  kGentle,  // FIN; what has arrived is read and dropped
  kReset,
};

/// Under the connection's mutex, except for what a Stream uses while it is attached.
class ConnectionSocket {
 public:
  explicit ConnectionSocket(Progress& progress) : progress_(progress) {}
  ~ConnectionSocket() {
    unwatch();
    socket_.close_gently();
  }
  ConnectionSocket(const ConnectionSocket&) = delete;
  ConnectionSocket& operator=(const ConnectionSocket&) = delete;

  TcpSocket& tcp() { return socket_; }
  /// Where a queue pair is connected to itself, `out` is where it sends.
  void take(TcpSocket socket, TcpSocket out = {}) {
    socket_ = std::move(socket);
    out_ = std::move(out);
  }
  /// From now on `source` gets the edges. 0 or an errno.
  int watch(Source& source) {
    const auto add = [&](const TcpSocket& socket, Progress::Ticket& ticket) {
      const auto added = progress_.add(source, socket.fd());
      if (added) ticket = *added;
      return added ? 0 : added.error();
    };
    const int error = add(socket_, ticket_);
    return error != 0 || !out_ ? error : add(out_, out_ticket_);
  }
  /// `active`: we have dialled. Null: no capture.
  void begin_capture(Capture* capture, const sockaddr_storage& local,
                     const sockaddr_storage& remote, bool active) {
    if (capture != nullptr)
      captured_ = std::make_unique<CapturedConnection>(*capture, local, remote, active);
  }
  Stream::Ends ends(StreamOwner& owner) {
    return {owner, socket_, out_ ? out_ : socket_, captured_.get()};
  }

  // ---- Bytes of the start-up, also into the capture. Counts as those of TcpSocket.
  ssize_t send(std::span<const std::byte> bytes) {
    const ssize_t sent = socket_.send(bytes.data(), bytes.size());
    const iovec piece = {const_cast<std::byte*>(bytes.data()), bytes.size()};
    if (captured_ != nullptr && sent > 0) captured_->sent({&piece, 1}, static_cast<size_t>(sent));
    return sent;
  }
  ssize_t receive(std::span<std::byte> room) {
    const iovec piece = {room.data(), room.size()};
    const ssize_t count = socket_.receive({&piece, 1});
    if (captured_ == nullptr || count == -EAGAIN) return count;
    if (count > 0)
      captured_->received({&piece, 1}, static_cast<size_t>(count));
    else
      captured_->peer_ended(count < 0);
    return count;
  }

  /// Our FIN.
  void shutdown() {
    socket_.shutdown_write();
    if (captured_ != nullptr) captured_->end(false);
  }
  // ---- Shared memory instead of TCP; the stream does not use it any more before close().
  /// 0 or an errno.
  int watch_ring(Source& source, std::unique_ptr<RingCarrier> ring) {
    const auto added = progress_.add(source, ring->bell_fd(), RingBell::kEdges);
    if (!added) return added.error();
    bell_ticket_ = *added;
    progress_.watch_bell(ring->bell_fd(), RingBell::kEdges);
    ring_ = std::move(ring);
    return 0;
  }
  RingCarrier* ring() { return ring_.get(); }

  void close(CloseMode mode) {
    unwatch();
    if (captured_ != nullptr) captured_->end(mode == CloseMode::kReset);
    if (mode == CloseMode::kDone) socket_.close();
    if (mode == CloseMode::kGentle) socket_.close_gently();
    if (mode == CloseMode::kReset) socket_.reset();
    out_.close();
    ring_.reset();
  }

 private:
  void unwatch() {
    progress_.remove(std::exchange(ticket_, 0));
    progress_.remove(std::exchange(out_ticket_, 0));
    if (bell_ticket_ != 0) progress_.forget_bell(ring_->bell_fd());
    progress_.remove(std::exchange(bell_ticket_, 0));
  }

  Progress& progress_;
  TcpSocket socket_;
  TcpSocket out_;
  Progress::Ticket ticket_ = 0;
  Progress::Ticket out_ticket_ = 0;
  Progress::Ticket bell_ticket_ = 0;
  std::unique_ptr<RingCarrier> ring_;
  std::unique_ptr<CapturedConnection> captured_;
};

}  // namespace uwarp
