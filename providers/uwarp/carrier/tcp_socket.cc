// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Raw system calls of TcpSocket.
#include "carrier/tcp_socket.h"

#include <linux/net.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/fact.h"
#include "base/settings.h"
#include "base/tuning.h"
#include "os/call_cost.h"
#include "os/engine_fds.h"
#include "os/raw_call.h"

namespace uwarp {
namespace {

/// Bytes that close_gently() reads away at most: a peer that sends faster than this is not going
/// to notice an RST any later.
constexpr size_t kGentleDiscardBytes = size_t{4} << 20;

/// How long the answer to a segment may take, and how exact TCP_INFO's times are.
constexpr uint32_t kAnswerMs = 1'000;
constexpr uint32_t kClockMs = 20;

struct Message : msghdr {
  explicit Message(std::span<const iovec> parts) : msghdr{} {
    msg_iov = const_cast<iovec*>(parts.data());
    msg_iovlen = parts.size();
  }
};

constexpr int kSocketFlags = SOCK_NONBLOCK | SOCK_CLOEXEC;

/// All zero if there is none.
tcp_info info_of(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  (void)raw_status(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &info, &size);
  return info;
}

sockaddr_storage address_by(long call, int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (raw_status(call, fd, &address, &length) != 0) address.ss_family = AF_UNSPEC;
  return address;
}

bool no_space_beyond(int fd) {
  int unsent = 0;
  return raw_status(SYS_ioctl, fd, SIOCOUTQNSD, &unsent) == 0 && unsent > 0 &&
         info_of(fd).tcpi_unacked == 0;
}

/// Reads away some of what has come, at most `size_bytes`. MSG_TRUNC on a TCP socket drops the
/// bytes in the kernel, which writes none: all pieces are the same few bytes. They exist for
/// valgrind, which reports a buffer at null.
ssize_t discard_from(int fd, size_t size_bytes) {
  constexpr size_t kPieces = 256;
  std::byte unused[4096];
  iovec pieces[kPieces];
  size_t count = 0;
  for (; count < kPieces && size_bytes != 0; ++count) {
    pieces[count] = {unused, std::min(size_bytes, sizeof unused)};
    size_bytes -= pieces[count].iov_len;
  }
  const Message message({pieces, count});
  return raw_call(SYS_recvmsg, fd, &message, MSG_DONTWAIT | MSG_TRUNC);
}

/// What has come and is not read would make close() a reset.
void discard_before_end(int fd) {
  for (size_t dropped = 0; dropped < kGentleDiscardBytes;) {
    const ssize_t count = discard_from(fd, kGentleDiscardBytes - dropped);
    if (count <= 0) break;
    dropped += static_cast<size_t>(count);
  }
}

}  // namespace

socklen_t address_length(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return sizeof(sockaddr_in);
  return address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : 0;
}

Result<TcpSocket> TcpSocket::open(int family) {
  const ssize_t fd = raw_call(SYS_socket, family, SOCK_STREAM | kSocketFlags, IPPROTO_TCP);
  if (fd < 0) return Error{static_cast<int>(-fd)};
  TcpSocket socket(adopt_engine_fd(static_cast<int>(fd)));
  socket.set_option(IPPROTO_TCP, TCP_NODELAY, 1);
  if (!calls_are_dear()) socket.set_option(IPPROTO_TCP, TCP_NOTSENT_LOWAT, tuning::kUnsentBytes);
  const Settings& chosen = settings();
  if (!chosen.congestion.empty()) {
    (void)socket.system_congestion_control();  // before the first socket has another one
    socket.set_congestion_control(chosen.congestion);
  }
  const auto set_buffer = [&](int name, uint32_t bytes) {
    if (bytes != 0)
      socket.set_option(SOL_SOCKET, name, static_cast<int>(std::min(bytes, 1u << 30)));
  };
  set_buffer(SO_SNDBUF, chosen.sndbuf_bytes);
  set_buffer(SO_RCVBUF, chosen.rcvbuf_bytes);
  return socket;
}

Result<TcpSocket> TcpSocket::open_datagram(int family) {
  const ssize_t fd = raw_call(SYS_socket, family, SOCK_DGRAM | kSocketFlags, IPPROTO_UDP);
  if (fd < 0) return Error{static_cast<int>(-fd)};
  return TcpSocket(adopt_engine_fd(static_cast<int>(fd)));
}

Result<std::pair<TcpSocket, TcpSocket>> TcpSocket::open_pair() {
  int ends[2];
  const int error = raw_status(SYS_socketpair, AF_UNIX, SOCK_STREAM | kSocketFlags, 0, ends);
  if (error != 0) return Error{error};
  return std::pair(TcpSocket(adopt_engine_fd(ends[0])), TcpSocket(adopt_engine_fd(ends[1])));
}

int TcpSocket::set_option(int level, int name, int value) {
  return raw_status(SYS_setsockopt, fd_, level, name, &value, sizeof value);
}

int TcpSocket::bind(const sockaddr_storage& address) {
  return raw_status(SYS_bind, fd_, &address, address_length(address));
}

int TcpSocket::listen(int backlog) { return raw_status(SYS_listen, fd_, backlog); }

int TcpSocket::connect(const sockaddr_storage& address) {
  // Not repeated after EINTR: the connection then goes on in the background.
  if (syscall(SYS_connect, fd_, &address, address_length(address)) == 0) return 0;
  return errno == EINTR ? EINPROGRESS : errno;
}

int TcpSocket::take_error() {
  int error = 0;
  socklen_t length = sizeof error;
  const int failed = raw_status(SYS_getsockopt, fd_, SOL_SOCKET, SO_ERROR, &error, &length);
  return failed != 0 ? failed : error;
}

Result<TcpSocket> TcpSocket::accept(sockaddr_storage& peer) {
  peer = {};
  socklen_t length = sizeof peer;
  const ssize_t fd = raw_call(SYS_accept4, fd_, &peer, &length, kSocketFlags);
  if (fd < 0) return Error{static_cast<int>(-fd)};
  TcpSocket socket(adopt_engine_fd(static_cast<int>(fd)));
  socket.chosen_ = chosen_;
  return socket;
}

sockaddr_storage TcpSocket::local_address() const { return address_by(SYS_getsockname, fd_); }

sockaddr_storage TcpSocket::remote_address() const { return address_by(SYS_getpeername, fd_); }

ssize_t TcpSocket::receive(std::span<const iovec> buffer) {
  // One place is by far the most frequent case, and the kernel then has no vector to copy.
  if (buffer.size() == 1) return receive(buffer[0].iov_base, buffer[0].iov_len);
  const Message message(buffer);
  return raw_call(SYS_recvmsg, fd_, &message, MSG_DONTWAIT);
}

ssize_t TcpSocket::receive(void* buffer, size_t size_bytes) {
  return raw_call(SYS_recvfrom, fd_, buffer, size_bytes, MSG_DONTWAIT, nullptr, nullptr);
}

ssize_t TcpSocket::discard(size_t size_bytes) { return discard_from(fd_, size_bytes); }

ssize_t TcpSocket::peek() {
  char byte;
  return raw_call(SYS_recvfrom, fd_, &byte, sizeof byte, MSG_DONTWAIT | MSG_PEEK, nullptr, nullptr);
}

ssize_t TcpSocket::send(std::span<const iovec> bytes) {
  if (bytes.size() == 1) return send(bytes[0].iov_base, bytes[0].iov_len);
  const Message message(bytes);
  return raw_call(SYS_sendmsg, fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ssize_t TcpSocket::send(const void* bytes, size_t size_bytes) {
  return raw_call(SYS_sendto, fd_, bytes, size_bytes, MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0);
}

int TcpSocket::incoming_cpu() const {
  int cpu = -1;
  socklen_t size = sizeof cpu;
  (void)raw_status(SYS_getsockopt, fd_, SOL_SOCKET, SO_INCOMING_CPU, &cpu, &size);
  return cpu;
}

void TcpSocket::set_muted(bool on) {
  (void)set_option(SOL_SOCKET, SO_RCVLOWAT, on ? tuning::kMutedBytes : 1);
}

void TcpSocket::shutdown_write() { (void)raw_status(SYS_shutdown, fd_, SHUT_WR); }

void TcpSocket::set_reset_on_close(bool on) {
  if (std::exchange(chosen_.reset_on_close, on) == on) return;
  const linger value{.l_onoff = on ? 1 : 0, .l_linger = 0};
  (void)raw_status(SYS_setsockopt, fd_, SOL_SOCKET, SO_LINGER, &value, sizeof value);
}

void TcpSocket::close() { close_engine_fd(std::exchange(fd_, -1)); }

void TcpSocket::close_gently() {
  if (fd_ < 0) return;
  set_reset_on_close(false);
  shutdown_write();
  discard_before_end(fd_);
  close();
}

void TcpSocket::end_in_order(int fd) {
  linger value{};
  socklen_t length = sizeof value;
  if (raw_status(SYS_getsockopt, fd, SOL_SOCKET, SO_LINGER, &value, &length) != 0) return;
  if (value.l_onoff == 0 || (settings().acknowledged() && no_space_beyond(fd))) return;
  value = {};
  (void)raw_status(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &value, sizeof value);
  (void)raw_status(SYS_shutdown, fd, SHUT_WR);
  discard_before_end(fd);
}

void TcpSocket::reset() {
  if (fd_ < 0) return;
  set_reset_on_close(true);
  close();
}

void TcpSocket::set_reuse_address(bool on) {
  if (std::exchange(chosen_.reuse_address, on) != on)
    set_option(SOL_SOCKET, SO_REUSEADDR, on ? 1 : 0);
}

void TcpSocket::set_reuse_port(bool on) {
  if (std::exchange(chosen_.reuse_port, on) != on) set_option(SOL_SOCKET, SO_REUSEPORT, on ? 1 : 0);
}

void TcpSocket::set_v6_only(bool on) { set_option(IPPROTO_IPV6, IPV6_V6ONLY, on ? 1 : 0); }

void TcpSocket::set_late_port() { set_option(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1); }

void TcpSocket::set_tos(int tos) {
  if (tos < 0) return;
  // Of the two exactly one fits the family, or both on a dual-stack socket.
  set_option(IPPROTO_IP, IP_TOS, tos);
  set_option(IPPROTO_IPV6, IPV6_TCLASS, tos);
}

void TcpSocket::set_keepalive(uint32_t timeout_ms) {
  // The kernel counts in whole seconds.
  constexpr uint32_t kProbes = 3;
  const int step_s = static_cast<int>(std::clamp(timeout_ms / 1000 / (kProbes + 1), 1u, 7200u));
  if (step_s == chosen_.keepalive_s) return;  // as the listening socket has it, mostly
  chosen_.keepalive_s = step_s;
  set_option(SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(IPPROTO_TCP, TCP_KEEPIDLE, step_s);
  set_option(IPPROTO_TCP, TCP_KEEPINTVL, step_s);
  set_option(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

bool TcpSocket::owes_acknowledgement() const { return unacknowledged_bytes() != 0; }

uint32_t TcpSocket::unacknowledged_bytes() const {
  int bytes = 0;
  return raw_status(SYS_ioctl, fd_, SIOCOUTQ, &bytes) == 0 ? static_cast<uint32_t>(bytes) : 0;
}

bool TcpSocket::silent_for(uint32_t timeout_ms) const {
  const tcp_info info = info_of(fd_);
  if (info.tcpi_last_ack_recv < timeout_ms) return false;
  // What a peer without room drops is sent again, and a closed window probed, at growing intervals
  // (RFC 6298 5.5, RFC 9293 3.8.6.1), so that the last answer may be old: was there none to the
  // last segment? Of probes the second tells that there was none to the first.
  const bool unanswered = info.tcpi_last_ack_recv > info.tcpi_last_data_sent + kClockMs &&
                          info.tcpi_last_data_sent >= kAnswerMs;
  return info.tcpi_unacked > 0 ? unanswered : info.tcpi_probes > 1;
}

bool TcpSocket::peer_has_no_space() const { return no_space_beyond(fd_); }

namespace {

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const in_addr_t v4 = reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr;
    return ntohl(v4) >> IN_CLASSA_NSHIFT == IN_LOOPBACKNET;
  }
  return address.ss_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

bool same_host(const sockaddr_storage& a, const sockaddr_storage& b) {
  if (a.ss_family != b.ss_family) return false;
  if (a.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(b).sin_addr.s_addr;
  }
  return std::memcmp(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(b).sin6_addr, sizeof(in6_addr)) == 0;
}

}  // namespace

std::string TcpSocket::congestion_control() const {
  char name[16] = {};  // TCP_CA_NAME_MAX, which is the kernel's own
  socklen_t size = sizeof name;
  (void)raw_status(SYS_getsockopt, fd_, IPPROTO_TCP, TCP_CONGESTION, name, &size);
  return {name, strnlen(name, sizeof name)};
}

void TcpSocket::set_congestion_control(const std::string& name) {
  (void)raw_status(SYS_setsockopt, fd_, IPPROTO_TCP, TCP_CONGESTION, name.data(), name.size());
}

const std::string& TcpSocket::system_congestion_control() const {
  static constinit Fact<std::string> of_system;
  return of_system.get([this] { return congestion_control(); });
}

bool TcpSocket::is_established() const { return info_of(fd_).tcpi_state == TCP_ESTABLISHED; }

TcpSocket::Distance TcpSocket::distance(const sockaddr_storage& own,
                                        const sockaddr_storage& peer) const {
  // A peer with this end's own address is on this machine; the others cost a look.
  if (same_host(own, peer) || is_local_address(peer)) return Distance::kSameHost;
  return info_of(fd_).tcpi_rtt < tuning::kNearRoundTripUs ? Distance::kNear : Distance::kFar;
}

void TcpSocket::settle(Distance distance) {
  if (distance == Distance::kFar) set_option(IPPROTO_TCP, TCP_NOTSENT_LOWAT, 0);  // the system's
  const std::string& chosen = settings().congestion;
  if (chosen.empty() || distance == Distance::kSameHost) return;
  const std::string& system = system_congestion_control();
  if (is_pacing(system) && distance == Distance::kNear) return;
  // Another one than was set is the route's own.
  if (congestion_control() == chosen) set_congestion_control(system);
}

uint32_t TcpSocket::segment_bytes() const {
  int value = 0;
  socklen_t length = sizeof value;
  if (raw_status(SYS_getsockopt, fd_, IPPROTO_TCP, TCP_MAXSEG, &value, &length) != 0) return 0;
  return static_cast<uint32_t>(std::max(value, 0));
}

bool is_pacing(const std::string& congestion_control) {
  return congestion_control.starts_with("bbr");
}

bool is_local_address(const sockaddr_storage& address) {
  if (is_loopback(address)) return true;
  // Whether a socket can be bound to it is the kernel's own definition of "local", and costs about
  // a microsecond; a route look-up would need netlink.
  sockaddr_storage any_port = address;
  if (address.ss_family == AF_INET)
    reinterpret_cast<sockaddr_in&>(any_port).sin_port = 0;
  else if (address.ss_family == AF_INET6)
    reinterpret_cast<sockaddr_in6&>(any_port).sin6_port = 0;
  else
    return false;
  const ssize_t fd = raw_call(SYS_socket, address.ss_family, SOCK_DGRAM | kSocketFlags, 0);
  if (fd < 0) return false;
  const bool local =
      raw_status(SYS_bind, static_cast<int>(fd), &any_port, address_length(any_port)) == 0;
  syscall(SYS_close, static_cast<int>(fd));
  return local;
}

}  // namespace uwarp
