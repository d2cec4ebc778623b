// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Two ends of a byte stream like those of a connection, over TCP or over rings in shared memory.
// Both are in one process, or one is in a forked child.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "carrier/ring_carrier.h"
#include "carrier/tcp_socket.h"
#include "memory/fault_safe_copy.h"
#include "os/engine_fds.h"
#include "unit/carrier/ring_ends.h"

namespace uwarp {

enum class Way : uint8_t {
  kTcp,
  kRing,          // the reader copies large payloads out of the writer's memory
  kRingByCopies,  // the kernel does not permit that
};

inline sockaddr_storage any_loopback_port() {
  sockaddr_storage address{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(address);
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// What is made before the fork. Plain descriptors, because a forked child closes those of the
/// engine.
struct StreamParts {
  explicit StreamParts(Way way) : way(way) {
    auto listener = TcpSocket::open(AF_INET).value();
    EXPECT_EQ(listener.bind(any_loopback_port()), 0);
    EXPECT_EQ(listener.listen(1), 0);
    auto dialled = TcpSocket::open(AF_INET).value();
    (void)dialled.connect(listener.local_address());
    sockaddr_storage peer;
    pollfd waits = {listener.fd(), POLLIN, 0};
    EXPECT_EQ(poll(&waits, 1, 10'000), 1);
    auto accepted = listener.accept(peer).value();
    // Like the engine: when a process is killed, its connections are reset.
    for (TcpSocket* end : {&dialled, &accepted}) end->set_reset_on_close(true);
    sockets[0] = dup(dialled.fd());
    sockets[1] = dup(accepted.fd());
    if (way == Way::kTcp) return;
    memory = dup(SharedMemory::create(RingCarrier::kSharedBytes)->fd());
    const auto pair = WakeupSocket::pair().value();
    bells[0] = dup(pair.first.fd());
    bells[1] = dup(pair.second.fd());
    rung[0] = dup(pair.first.rung_fd());
    rung[1] = dup(pair.second.rung_fd());
    for (const int side : {0, 1}) {
      peers[side] = std::make_unique<PeerMemory>();
      secrets[side] = peers[side]->place();
    }
  }
  ~StreamParts() {
    for (const int fd : {sockets[0], sockets[1], memory, bells[0], bells[1], rung[0], rung[1]})
      if (fd >= 0) close(fd);
  }
  StreamParts(const StreamParts&) = delete;
  StreamParts& operator=(const StreamParts&) = delete;
  /// Called in the process that keeps only the other end.
  void close_socket(int side) { close(std::exchange(sockets[side], -1)); }

  const Way way;
  int sockets[2] = {-1, -1};
  int memory = -1;
  int bells[2] = {-1, -1};
  int rung[2] = {-1, -1};
  /// Forked processes find each other's where they were before the fork.
  mutable std::unique_ptr<PeerMemory> peers[2];
  PeerMemory::Place secrets[2];
};

class CarrierEnd {
 public:
  /// `peer`: the process that has the other end.
  CarrierEnd(const StreamParts& parts, int side, pid_t peer) : socket_(dup(parts.sockets[side])) {
    watch(socket_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    if (parts.way == Way::kTcp) return;
    ForeignFd bell = handed(parts.bells[side]), rung = handed(parts.rung[side]);
    ring_ = std::make_unique<RingCarrier>(mapped_again(parts.memory), side == 0,
                                          std::move(*WakeupSocket::adopt(bell, rung, errands_)),
                                          std::move(parts.peers[side]), errands_);
    awaits_rights_ = parts.way == Way::kRing && fault_safe_copy_works();  // an emulator has none
    if (awaits_rights_) ring_->ask_peer(peer, parts.secrets[1 - side]);
    watch(ring_->wakeup_fd(), WakeupSocket::kEdges);
  }
  /// Waits until the other end exists, whose answer gives the rights over its memory.
  void await_rights() {
    while (awaits_rights_ && !ring_->take_answer()) usleep(100);
  }

  RingCarrier* ring() { return ring_.get(); }
  /// Results are like those of TcpSocket. The carrier is used as Stream uses it.
  ssize_t send(std::span<const iovec> bytes) {
    return ring_ != nullptr ? ring_->send(bytes) : socket_.use().send(bytes);
  }
  ssize_t receive(std::span<const iovec> room) {
    if (ring_ == nullptr) return socket_.use().receive(room);
    if (has_ended()) return ring_->receive_to_end(room, socket_.use());
    return ring_->receive(room);
  }
  void set_muted(bool on) { ring_ != nullptr ? ring_->set_muted(on) : socket_.use().set_muted(on); }
  void shutdown() { socket_.use().shutdown_write(); }
  /// The effect of killing the process, and of reset() on a connection.
  void reset() { socket_.use().reset(); }

  /// The next edge, or 0 after `limit_ms`. A bell does not say for which direction it rings.
  uint32_t edge(int limit_ms) {
    epoll_event event{};
    if (epoll_wait(epoll_.get(), &event, 1, limit_ms) != 1) return 0;
    return (event.events & EPOLLRDNORM) != 0 ? EPOLLIN | EPOLLOUT : event.events;
  }
  /// Waits for one of the events in `wanted`; earlier edges are dropped.
  bool wait_for(uint32_t wanted, int limit_ms = 20'000) {
    for (uint32_t events; (events = edge(limit_ms)) != 0;)
      if ((events & wanted) != 0) return true;
    return false;
  }
  void forget_edges() {
    while (edge(0) != 0) {
    }
  }

 private:
  /// A TcpSocket of an existing descriptor; TcpSocket itself only makes new ones.
  class Borrowed {
   public:
    explicit Borrowed(int fd) {
      auto other = TcpSocket::open(AF_INET).value();
      EXPECT_GE(dup2(fd, other.fd()), 0);
      close(fd);
      socket_ = std::move(other);
    }
    int get() const { return socket_.fd(); }
    TcpSocket& use() { return socket_; }

   private:
    TcpSocket socket_;
  };

  void watch(int fd, uint32_t events) {
    epoll_event event{.events = events, .data = {}};
    EXPECT_EQ(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event), 0);
  }
  bool has_ended() {
    pollfd one = {socket_.get(), POLLRDHUP, 0};
    return poll(&one, 1, 0) == 1;
  }

  EngineFd epoll_{epoll_create1(EPOLL_CLOEXEC)};
  Borrowed socket_;
  /// Its own, so that no thread for errands runs at the next fork.
  Errands errands_;
  std::unique_ptr<RingCarrier> ring_;
  bool awaits_rights_ = false;
};

/// Both ends in this process.
struct StreamPair {
  explicit StreamPair(Way way) : StreamPair(StreamParts(way)) {}
  explicit StreamPair(const StreamParts& parts)
      : first(parts, 0, getpid()), second(parts, 1, getpid()) {
    first.await_rights();
    second.await_rights();
  }
  CarrierEnd first, second;
};

}  // namespace uwarp
