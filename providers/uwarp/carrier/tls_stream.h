// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A TCP socket whose bytes are protected by TLS: a carrier beside TcpSocket and RingCarrier.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/mutex.h"
#include "base/spinlock.h"
#include "carrier/tcp_socket.h"
#include "tls/session.h"

namespace uwarp {

/// Belongs to one connection. One thread may send while another one receives: shake_hands(),
/// close() and leave() count as sending. Counts are as those of TcpSocket; -ECONNRESET also if the
/// session has failed, and failure() says why then.
class TlsStream {
 public:
  /// What one send() takes at most.
  static constexpr size_t kMostRecords = 8;
  /// More plaintext cannot be in what is kept and a record of which the socket has a part.
  static constexpr size_t kMostKept = (kMostRecords + 1) * kTlsRecordBytes;

  /// `socket` outlives it.
  TlsStream(TcpSocket& socket, std::unique_ptr<TlsSession> session);
  ~TlsStream();

  /// 0: the peer is proved, see identity(). EAGAIN: at the next edge. Errors: ENOMEM, ECONNRESET.
  /// Receiving must wait for it.
  int shake_hands();
  /// The handshake has taken too long.
  void note_stall() { session_->cut(); }
  const std::string& identity() const { return session_->identity(); }
  /// Empty: nothing is wrong. Any thread.
  std::string failure() const {
    const Lock guard(lock_);
    return session_->failure();
  }

  /// Bytes that are taken: encrypted, and mostly sent. What the socket has no room for is kept,
  /// see carries(). -EAGAIN: nothing is taken before that has gone.
  ssize_t send(std::span<const iovec> bytes);
  /// Sends what is kept. 0, or a negative errno.
  ssize_t flush();
  /// What the socket has said to what is kept: a negative errno; 0: nothing is kept.
  ssize_t kept() const { return kept_; }
  /// Something is kept. Any thread.
  bool carries() const { return carries_.load(std::memory_order_acquire); }
  /// Less than there is room for: the socket was empty.
  ssize_t receive(std::span<const iovec> buffer);
  /// Like receive() of one byte, but leaves it there.
  ssize_t peek() { return session_->pending() != 0 ? 1 : socket_.peek(); }

  /// From here on another carrier has what this end sends; the stream ends without a close_notify.
  void leave() { left_ = true; }
  /// Tells the peer that nothing more comes (RFC 8446 6.1), if the socket has room for that.
  void close();

 private:
  struct Buffer;

  /// Takes a buffer of this thread for out_. False: there is no memory.
  bool borrow_output();
  int write_record(std::span<const std::byte> bytes);
  ssize_t decrypt(std::span<std::byte> place);
  ssize_t feed(size_t space, bool& drained);

  TcpSocket& socket_;
  const std::unique_ptr<TlsSession> session_;
  mutable SpinLock
      lock_;  // leaf: one call to the session at a time, where both directions make them
  std::unique_ptr<Buffer> out_;  // null: nothing is kept
  ssize_t kept_ = 0;
  std::atomic<bool> carries_{false};  // the same
  bool left_ = false;
  // Receiving.
  bool has_plaintext_ = false;  // perhaps: the session is asked before the socket
  ssize_t end_ = -EAGAIN;       // how the stream has ended, as a count
};

}  // namespace uwarp
