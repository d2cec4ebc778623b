// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "datagram/multicast_way.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/settings.h"
#include "protocol/wire/multicast_mark.h"

namespace uwarp {
namespace {

/// Datagrams of one frame that go out by one call.
constexpr size_t kMostTogether = 32;

}  // namespace

bool is_multicast(const IpAddress& address) {
  return address.is_v4() ? (address.bytes()[12] & 0xF0) == 0xE0 : address.bytes()[0] == 0xFF;
}

Result<std::shared_ptr<MulticastWay>> MulticastWay::open(FramePool& frames, const NetDevice& device,
                                                         const Key& key) {
  sockaddr_storage own{}, group{};
  (void)key.own.to_sockaddr(own, 0);
  (void)key.group.to_sockaddr(group, static_cast<uint16_t>(settings().multicast_port));
  if (own.ss_family != group.ss_family) return Error{EAFNOSUPPORT};
  if (group.ss_family == AF_INET6)
    reinterpret_cast<sockaddr_in6&>(group).sin6_scope_id = static_cast<uint32_t>(device.ifindex);
  auto socket = UdpSocket::open(own.ss_family);
  if (!socket) return Error{socket.error()};
  if (int error = socket->bind(own)) return Error{error};
  // A hop limit of 0 would keep the datagram on this host.
  const uint8_t hop_limit = std::max<uint8_t>(key.hop_limit, 1);
  if (int error = socket->send_through(device.ifindex, hop_limit, key.traffic_class))
    return Error{error};
  if (int error = socket->connect(group)) return Error{error};
  return std::make_shared<MulticastWay>(frames, std::move(*socket));
}

MulticastWay::~MulticastWay() { frames_.give_back(take_filled()); }

DatagramWay::Taken MulticastWay::append(const DatagramHeader& header, BufferList& payload) {
  const std::lock_guard lock(lock_);
  if ((filling_ == nullptr || !filling_->has_room(header)) && !take_frame_locked())
    return Taken::kFull;
  return filling_->append(header, payload) ? Taken::kYes : Taken::kFault;
}

// False: there is no room, until flush() has made some.
bool MulticastWay::take_frame_locked() {
  if (filling_ != nullptr) {
    if (ready_.size() + 1 == kMostFrames) return false;
    ready_.push(*filling_);
  }
  filling_ = frames_.take();
  return filling_ != nullptr;
}

FrameQueue MulticastWay::take_filled() {
  const std::lock_guard lock(lock_);
  if (filling_ != nullptr) {
    ready_.push(*filling_);
    filling_ = nullptr;
  }
  return std::exchange(ready_, {});
}

bool MulticastWay::wait_for_room(std::shared_ptr<DatagramWaiter>) {
  flush();
  return false;
}

void MulticastWay::flush() {
  const std::lock_guard order(sending_);
  FrameQueue frames = take_filled();
  bool moves = true;
  while (!frames.empty()) {
    Frame& frame = frames.pop();
    moves = moves && send(frame);
    frames_.give_back(frame);
  }
}

// False: the device takes nothing.
bool MulticastWay::send(const Frame& frame) {
  const std::byte* at = frame.bytes;
  for (uint32_t left = frame.datagrams; left > 0;) {
    iovec some[kMostTogether];
    const size_t count = std::min<size_t>(left, kMostTogether);
    for (iovec& one : std::span(some).first(count)) {
      one.iov_base = const_cast<std::byte*>(at);
      one.iov_len = DatagramHeader::kWireSize + DatagramHeader::decode(at).payload_bytes;
      at += one.iov_len;
    }
    if (!send(std::span(some).first(count))) return false;
    left -= static_cast<uint32_t>(count);
  }
  return true;
}

bool MulticastWay::send(std::span<const iovec> datagrams) {
  while (!datagrams.empty()) {
    const ssize_t sent = socket_.send_each(kMulticastMark, datagrams);
    if (sent == -EAGAIN) {
      if (!socket_.wait_for_room(kMostPatienceMs)) return false;
      continue;
    }
    datagrams = datagrams.subspan(sent > 0 ? static_cast<size_t>(sent) : 1);  // one is lost
  }
  return true;
}

}  // namespace uwarp
