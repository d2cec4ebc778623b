// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Datagrams from one socket to one or many, in batches.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "ends/crowd.h"
#include "ends/sockets.h"
#include "raw_udp/batch.h"
#include "raw_udp/modes.h"
#include "raw_udp/udp_socket.h"

namespace uwarp::bench {
namespace {

constexpr int kWaitMs = 10;
constexpr int kEvents = 256;

class UdpReceivers final : public Receivers {
 public:
  UdpReceivers(const Options& options, int count)
      : wait_ms_(options.crowd.polls ? 0 : kWaitMs), batch_(options.batch, options.size) {
    for (int i = 0; i < count; ++i) {
      fds_.push_back(make_udp_socket(any_port()));
      watch(epoll_, fds_.back(), EPOLLIN);
    }
  }

  std::vector<char> addresses() const override {
    std::vector<char> all;
    for (const int fd : fds_) {
      const sockaddr_in own = own_address(fd);
      const auto* bytes = reinterpret_cast<const char*>(&own);
      all.insert(all.end(), bytes, bytes + sizeof own);
    }
    return all;
  }

  uint64_t take() override {
    if (fds_.size() == 1 && wait_ms_ == 0) return batch_.receive(fds_.front());
    epoll_event events[kEvents];
    const int count = epoll_wait(epoll_, events, kEvents, wait_ms_);
    if (count < 0 && errno != EINTR) die("epoll_wait");
    uint64_t taken = 0;
    for (int i = 0; i < count; ++i) taken += batch_.receive(events[i].data.fd);
    return taken;
  }

 private:
  const int wait_ms_;
  const int epoll_ = make_epoll();
  std::vector<int> fds_;
  DatagramBatch batch_;
};

/// Sends batches to one receiver after the other.
class UdpSender {
 public:
  UdpSender(const Options& options, const Audience& audience)
      : audience_(audience), batch_(options.batch, options.size) {
    // With one receiver the socket is connected, so the kernel needs no address.
    if (audience.size() == 1) connect_udp(fd_, address_of(0));
  }

  void send(size_t count) {
    for (size_t part; count > 0; count -= part) {
      part = std::min(count, batch_.size());
      for (size_t i = 0; audience_.size() > 1 && i < part; ++i) {
        batch_.address_to(i, reinterpret_cast<const sockaddr&>(address_of(next_)),
                          sizeof(sockaddr_in));
        next_ = next_ + 1 < audience_.size() ? next_ + 1 : 0;
      }
      batch_.send(fd_, part);
    }
  }

 private:
  const sockaddr_in& address_of(size_t receiver) const {
    return *reinterpret_cast<const sockaddr_in*>(audience_.address(receiver));
  }

  const Audience& audience_;
  DatagramBatch batch_;
  const int fd_ = make_udp_socket(any_port());
  size_t next_ = 0;
};

}  // namespace

void datagrams(const Options& options) {
  measure_crowd<UdpReceivers, UdpSender, sockaddr_in>(options);
}

}  // namespace uwarp::bench
