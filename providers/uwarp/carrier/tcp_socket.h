// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A non-blocking TCP socket that owns its fd. Every operation is a raw system call: a preloaded
// socket wrapper (librspreload turns each AF_INET stream socket of the process into an rsocket,
// which would lead back into the engine) must not see any of them.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"

namespace uwarp {

/// Move-only. Int results are 0 or a positive errno; byte counts are >= 0 or a negative errno.
class TcpSocket {
 public:
  TcpSocket() = default;
  TcpSocket(TcpSocket&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), chosen_(other.chosen_) {}
  TcpSocket& operator=(TcpSocket&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
      chosen_ = other.chosen_;
    }
    return *this;
  }
  ~TcpSocket() { close(); }

  /// A fresh socket of AF_INET or AF_INET6, tuned (no delay, buffer sizes of the settings).
  static Result<TcpSocket> open(int family);
  /// A UDP socket, which holds its port until a UdpSocket takes it.
  static Result<TcpSocket> open_datagram(int family);
  /// Two ends of one local byte stream, for a queue pair connected to itself.
  static Result<std::pair<TcpSocket, TcpSocket>> open_pair();

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

  int bind(const sockaddr_storage& address);
  int listen(int backlog);
  /// 0 when connected at once, EINPROGRESS when writability will tell.
  int connect(const sockaddr_storage& address);
  /// Error of a connect() that is over (SO_ERROR); 0 is success.
  int take_error();
  /// The next waiting connection, from `peer`; it has the options of this socket. EAGAIN: none.
  Result<TcpSocket> accept(sockaddr_storage& peer);
  /// Family AF_UNSPEC if there is none.
  sockaddr_storage local_address() const;
  sockaddr_storage remote_address() const;

  /// Bytes received: 0 is the end of the stream. -EAGAIN: nothing there. Never -EINTR.
  ssize_t receive(std::span<const iovec> buffer);
  ssize_t receive(void* buffer, size_t size_bytes);
  /// Reads and forgets up to `size_bytes`, without copying.
  ssize_t discard(size_t size_bytes);
  /// Like receive() of one byte, but leaves it there.
  ssize_t peek();
  /// Bytes the kernel took. -EAGAIN: the send buffer is full. Never -EINTR, no SIGPIPE.
  ssize_t send(std::span<const iovec> bytes);
  ssize_t send(const void* bytes, size_t size_bytes);

  /// The processor that took in what came last: where both ends are on this machine, the one that
  /// the peer sent it from. -1 if the kernel does not tell (SO_INCOMING_CPU).
  int incoming_cpu() const;

  /// True: epoll and poll() report only the end, errors, and data from tuning::kMutedBytes on.
  /// False: all data, also what is there already.
  void set_muted(bool on);

  void shutdown_write();
  /// True: closing the fd resets the connection, also where the process is killed. False: an
  /// orderly FIN.
  void set_reset_on_close(bool on);
  /// Closes. Unread bytes make the kernel answer by RST instead of FIN.
  void close();
  /// Orderly end towards a peer that may still be sending: sends FIN, then reads and drops what has
  /// arrived so that it causes no RST, then closes.
  void close_gently();
  /// Closes with RST.
  void reset();

  /// For the end of the process, on any fd: where set_reset_on_close() is on, does what
  /// close_gently() does but for the close itself, which the kernel is about to do. With
  /// acknowledged completions (Settings) a peer without room gets the reset.
  static void end_in_order(int fd);

  void set_reuse_address(bool on);
  void set_reuse_port(bool on);
  void set_v6_only(bool on);
  /// A bind() to port 0 leaves the choice of the port to connect(), which may then share ports
  /// between different peers.
  void set_late_port();
  /// Type of service or traffic class; negative: unchanged.
  void set_tos(int tos);
  /// The loss of a peer that owes nothing is noticed about `timeout_ms` after its last sign of
  /// life. For one that owes acknowledgements see owes_acknowledgement().
  void set_keepalive(uint32_t timeout_ms);
  /// Bytes have been sent, or wait for room, that the peer's TCP has not acknowledged.
  bool owes_acknowledgement() const;
  /// How many. Right behind a FIN of the peer: what it had not received when it sent that.
  uint32_t unacknowledged_bytes() const;
  /// Nothing has been acknowledged for `timeout_ms`. A peer that answers that it has no room yet is
  /// not silent (TCP_USER_TIMEOUT takes that for a loss).
  bool silent_for(uint32_t timeout_ms) const;
  /// Bytes wait to be sent and none is on its way: the peer has closed its window (RFC 9293
  /// 3.8.6.1). An end that stands behind them does not reach it, but a reset does.
  bool peer_has_no_space() const;
  /// The peer's system has answered, its application perhaps not yet.
  bool is_established() const;
  /// How far away the peer of an established connection is: near is a round trip of less than
  /// tuning::kNearRoundTripUs, to another network namespace, say.
  enum class Distance : uint8_t { kSameHost, kNear, kFar };
  Distance distance(const sockaddr_storage& own, const sockaddr_storage& peer) const;
  /// To be called once the connection is established. It has begun with the congestion control of
  /// UWARP_CONGESTION (reno), because a socket that has ever had one that paces goes on pacing.
  /// Connections inside this host keep that. So do those to near peers, if the system's paces
  /// (bbr): the timers of pacing are longer than the path. All others get the system's, or what
  /// their route asks for. Towards a far peer the kernel takes as many bytes as its buffers hold,
  /// so that it has something to send when a hole in what the peer has is filled.
  void settle(Distance distance);
  /// Largest segment in bytes towards this peer at the moment; 0 if unknown.
  uint32_t segment_bytes() const;

 private:
  explicit TcpSocket(int fd) : fd_(fd) {}

  int set_option(int level, int name, int value);
  std::string congestion_control() const;
  void set_congestion_control(const std::string& name);
  /// Of a socket on which none has been set, at the first call.
  const std::string& system_congestion_control() const;

  int fd_ = -1;
  /// Options as they are set: a call that changes nothing costs as much as another.
  struct {
    int keepalive_s = 0;  // between two probes; 0: off
    bool reset_on_close = false;
    bool reuse_address = false;
    bool reuse_port = false;
  } chosen_;
};

/// True if this congestion control spreads what is sent over time, which suits no short way.
bool is_pacing(const std::string& congestion_control);

/// True if `address` is an address of this host, in this network namespace.
bool is_local_address(const sockaddr_storage& address);

/// Bytes of the sockaddr for its family; 0 for AF_UNSPEC and unknown ones.
socklen_t address_length(const sockaddr_storage& address);

}  // namespace uwarp
