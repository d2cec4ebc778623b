// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The TCP part of a connection: its socket, the source that gets its edges, and its capture.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "carrier/ring_carrier.h"
#include "carrier/tcp_socket.h"
#include "carrier/tls_keys.h"
#include "carrier/tls_stream.h"
#include "observe/capture.h"
#include "os/clock.h"
#include "progress/progress.h"
#include "stream/stream.h"

namespace uwarp {

// Until when something waits.

/// A moment of the monotonic clock in nanoseconds; 0: nothing is waited for.
struct Deadline {
  uint64_t at_ns = 0;

  static Deadline after_ms(uint32_t wait_ms) { return {now_ns() + wait_ms * kNsPerMs}; }

  explicit operator bool() const { return at_ns != 0; }
  /// True once when it has passed.
  bool take_passed(uint64_t now_ns) {
    if (at_ns == 0 || at_ns > now_ns) return false;
    at_ns = 0;
    return true;
  }
};

/// The first of them that is waited for.
inline Deadline earliest(std::initializer_list<Deadline> deadlines) {
  // What is not waited for becomes the last of all.
  return std::min(deadlines, [](Deadline a, Deadline b) { return a.at_ns - 1 < b.at_ns - 1; });
}

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
    if (tls_ != nullptr) tls_->close();
    socket_.close_gently();
  }

  TcpSocket& tcp() { return socket_; }
  /// Where a queue pair is connected to itself, `out` is where it sends.
  void take(TcpSocket socket, TcpSocket out = {}) {
    socket_ = std::move(socket);
    out_ = std::move(out);
  }
  /// From now on `source` gets the edges. 0 or an errno.
  int watch(Source& source) {
    const auto add = [&](const TcpSocket& socket, Progress::Registration& registration) {
      const auto added = progress_.add(source, socket.fd());
      if (added) registration = *added;
      return added ? 0 : added.error();
    };
    const int error = add(socket_, registration_);
    return error != 0 || !out_ ? error : add(out_, out_registration_);
  }
  /// `active`: we have dialled. Null: no capture.
  void begin_capture(Capture* capture, const sockaddr_storage& local,
                     const sockaddr_storage& remote, bool active) {
    if (capture != nullptr)
      captured_ = std::make_unique<CapturedConnection>(*capture, local, remote, active);
  }
  Stream::Ends ends(StreamOwner& owner) {
    return {owner, socket_, out_ ? out_ : socket_, captured_.get(), tls_.get()};
  }

  // ---- TLS.
  /// From now on TLS protects what goes through this socket. ENOMEM, or 0.
  int secure(const TlsKeys& keys, bool active) {
    tls_ = keys.protect(socket_, active);
    securing_ = tls_ != nullptr;
    return securing_ ? 0 : ENOMEM;
  }
  /// The handshake goes on: nothing else is sent or received yet.
  bool securing() const { return securing_; }
  /// As TlsStream::shake_hands().
  int shake_hands() {
    const int error = tls_->shake_hands();
    if (error == 0) securing_ = false;
    return error;
  }
  bool tls_failed() const { return tls_ != nullptr && !tls_->failure().empty(); }
  /// Empty: the socket is not protected, or the peer is not proved yet.
  std::string peer_identity() const {
    return tls_ != nullptr && !securing_ ? tls_->identity() : std::string();
  }
  /// Null: the socket is not protected.
  TlsStream* tls() { return tls_.get(); }

  // ---- Bytes of the start-up, also into the capture. Counts as those of TcpSocket.
  ssize_t send(std::span<const std::byte> bytes) {
    const iovec piece = {const_cast<std::byte*>(bytes.data()), bytes.size()};
    const ssize_t sent = tls_ != nullptr ? tls_->send({&piece, 1}) : socket_.send({&piece, 1});
    if (captured_ != nullptr && sent > 0) captured_->sent({&piece, 1}, static_cast<size_t>(sent));
    return sent;
  }
  ssize_t receive(std::span<std::byte> buffer) {
    const iovec piece = {buffer.data(), buffer.size()};
    if (tls_ != nullptr) (void)tls_->flush();
    const ssize_t count =
        tls_ != nullptr ? tls_->receive({&piece, 1}) : socket_.receive({&piece, 1});
    if (captured_ == nullptr || count == -EAGAIN) return count;
    if (count > 0)
      captured_->received({&piece, 1}, static_cast<size_t>(count));
    else
      captured_->peer_ended(count < 0);
    return count;
  }

  /// Like receive() of one byte, but leaves it there.
  ssize_t peek() { return tls_ != nullptr ? tls_->peek() : socket_.peek(); }

  /// Our FIN.
  void shutdown() {
    if (tls_ != nullptr) tls_->close();
    socket_.shutdown_write();
    if (captured_ != nullptr) captured_->end(false);
  }
  // ---- Shared memory instead of TCP; the stream does not use it any more before close().
  /// 0 or an errno.
  int watch_ring(Source& source, std::unique_ptr<RingCarrier> ring) {
    const auto added = progress_.add(source, ring->wakeup_fd(), WakeupSocket::kEdges);
    if (!added) return added.error();
    wakeup_registration_ = *added;
    progress_.watch_wakeup(ring->wakeup_fd(), WakeupSocket::kEdges);
    ring_ = std::move(ring);
    return 0;
  }
  RingCarrier* ring() { return ring_.get(); }

  void close(CloseMode mode) {
    unwatch();
    if (captured_ != nullptr) captured_->end(mode == CloseMode::kReset);
    if (tls_ != nullptr && mode == CloseMode::kGentle) tls_->close();
    if (mode == CloseMode::kDone) socket_.close();
    if (mode == CloseMode::kGentle) socket_.close_gently();
    if (mode == CloseMode::kReset) socket_.reset();
    out_.close();
    ring_.reset();
    tls_.reset();
    securing_ = false;
  }

 private:
  void unwatch() {
    progress_.remove(std::exchange(registration_, 0));
    progress_.remove(std::exchange(out_registration_, 0));
    if (wakeup_registration_ != 0) progress_.forget_wakeup(ring_->wakeup_fd());
    progress_.remove(std::exchange(wakeup_registration_, 0));
  }

  Progress& progress_;
  TcpSocket socket_;
  TcpSocket out_;
  Progress::Registration registration_ = 0;
  Progress::Registration out_registration_ = 0;
  Progress::Registration wakeup_registration_ = 0;
  std::unique_ptr<RingCarrier> ring_;
  std::unique_ptr<TlsStream> tls_;
  bool securing_ = false;
  std::unique_ptr<CapturedConnection> captured_;
};

// A connection that has sent its FIN and left its queue pair. What the peer still sends is read and
// dropped until its FIN, so that no RST destroys a Terminate that is under way. Without IO.

/// How long a connection that ends waits for its peer: while it drains, and before its FIN for a
/// peer that takes nothing.
inline constexpr uint64_t kCloseWaitNs = 5'000'000'000;

class Draining {
 public:
  /// How long our FIN may wait for a peer to make room, where completions are acknowledged.
  static constexpr uint64_t kNoSpaceWaitNs = 250'000'000;

  Draining(bool acknowledged, uint64_t now_ns)
      : acknowledged_(acknowledged),
        close_{now_ns + kCloseWaitNs},
        peer_space_{acknowledged ? now_ns + kNoSpaceWaitNs : 0} {}

  Deadline deadline() const { return earliest({close_, peer_space_}); }
  /// How to close after the end of the stream (0) or an error. With acknowledgements a reset is
  /// still due then.
  CloseMode on_end(ssize_t count) const {
    return count == 0 && !acknowledged_ ? CloseMode::kDone : CloseMode::kGentle;
  }
  /// True: to be closed with a reset. A peer that holds messages back for which it has no receive
  /// may do so without end (rnr_retry 7) and sees no FIN behind them. Between InfiniBand adapters
  /// it would learn of the end. Nothing that was acknowledged is lost.
  bool on_deadline(const auto& socket, uint64_t now_ns) {
    if (peer_space_.take_passed(now_ns)) {
      if (socket.peer_has_no_space()) return true;
      peer_space_ = {now_ns + kNoSpaceWaitNs};
    }
    return close_.take_passed(now_ns);
  }

 private:
  bool acknowledged_;
  Deadline close_;
  Deadline peer_space_;  // when to look whether our FIN waits behind what the peer does not take
};

}  // namespace uwarp
