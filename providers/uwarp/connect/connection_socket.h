// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a connection has of TCP: its socket, who is told of its edges, and its capture.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "carrier/tcp_socket.h"
#include "observe/capture.h"
#include "progress/progress.h"
#include "stream/stream.h"

namespace uwarp {

enum class CloseMode : uint8_t {
  kDone,    // both have sent their FIN, and no reset is due when the fd is closed
  kGentle,  // FIN; what has arrived is read away
  kReset,
};

/// Under the connection's mutex, but for what a Stream uses while it is attached.
class ConnectionSocket {
 public:
  explicit ConnectionSocket(Progress& progress) : progress_(progress) {}
  /// Ends it in order.
  ~ConnectionSocket();
  ConnectionSocket(const ConnectionSocket&) = delete;
  ConnectionSocket& operator=(const ConnectionSocket&) = delete;

  TcpSocket& tcp() { return socket_; }
  /// Where a queue pair is connected to itself, `out` is where it sends.
  void take(TcpSocket socket, TcpSocket out = {});
  /// From now on `source` is told of edges. 0 or an errno.
  int watch(Source& source);
  /// `active`: we have dialled. Null: no capture.
  void begin_capture(Capture* capture, const sockaddr_storage& local,
                     const sockaddr_storage& remote, bool active);
  Stream::Ends ends(StreamOwner& owner) {
    return {owner, socket_, out_ ? out_ : socket_, captured_.get()};
  }

  // ---- Octets of the start-up, also into the capture. Counts as those of TcpSocket.
  ssize_t send(std::span<const std::byte> octets);
  ssize_t receive(std::span<std::byte> room);

  /// Our FIN.
  void shutdown();
  void close(CloseMode mode);

 private:
  void unwatch();

  Progress& progress_;
  TcpSocket socket_;
  TcpSocket out_;
  Progress::Ticket ticket_ = 0;
  Progress::Ticket out_ticket_ = 0;
  std::unique_ptr<CapturedConnection> captured_;
};

}  // namespace uwarp
