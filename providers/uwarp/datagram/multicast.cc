// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "datagram/multicast.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/mutex.h"
#include "base/settings.h"
#include "carrier/tls_keys.h"
#include "connect/connect_context.h"
#include "datagram/datagram_endpoint.h"
#include "os/output_file.h"
#include "protocol/wire/control_writes.h"
#include "protocol/wire/global_route_header.h"

namespace uwarp {

namespace {

/// Datagrams per turn: a busy group does not keep other sources waiting.
constexpr int kMulticastsPerPass = 16;
/// Socket buffer for what comes between two reads. The kernel gives less where its limit is lower
/// (net.core.rmem_max).
constexpr int kGroupBufferBytes = 1 << 20;
/// The queue pair number that stands for the members of a group (InfiniBand specification 10.5.1).
constexpr Qpn kGroupQpn{0xFFFFFF};

/// A socket that takes what is sent to `group` through `device`.
Result<UdpSocket> join_by_socket(const NetDevice& device, const IpAddress& group) {
  sockaddr_storage at{};
  (void)group.to_sockaddr(at, static_cast<uint16_t>(settings().multicast_port));
  if (at.ss_family == AF_INET6)
    reinterpret_cast<sockaddr_in6&>(at).sin6_scope_id = static_cast<uint32_t>(device.ifindex);
  auto socket = UdpSocket::open(at.ss_family);
  if (!socket) return socket;
  socket->share_port();
  socket->set_receive_buffer(kGroupBufferBytes);
  if (int error = socket->bind(at)) return Error{error};
  if (int error = socket->join(at, device.ifindex)) return Error{error};
  return socket;
}

}  // namespace

Result<std::shared_ptr<MulticastGroup>> MulticastGroup::join(ConnectContext& context,
                                                             const NetDevice& device,
                                                             const IpAddress& group) {
  if (int error = refuse_unprotected("multicast")) return Error{error};
  if (int error = context.progress.start_helper()) return Error{error};
  auto socket = join_by_socket(device, group);
  if (!socket) return Error{socket.error()};
  std::shared_ptr<MulticastGroup> made(new MulticastGroup(context, std::move(*socket), group));
  const Lock guard(made->mutex_);
  auto registration = context.progress.add(*made, made->socket_.fd(), EPOLLIN | EPOLLET);
  if (!registration) return Error{registration.error()};
  made->registration_ = *registration;
  return made;
}

MulticastGroup::~MulticastGroup() { context_.progress.remove(registration_); }

bool MulticastGroup::attach(std::shared_ptr<DatagramEndpoint> endpoint) {
  const Lock guard(mutex_);
  if (std::ranges::find(endpoints_, endpoint) != endpoints_.end()) return false;
  endpoints_.push_back(std::move(endpoint));
  return true;
}

bool MulticastGroup::detach(const DatagramEndpoint& endpoint) {
  const Lock guard(mutex_);
  return std::erase_if(endpoints_, [&](const auto& one) { return one.get() == &endpoint; }) != 0;
}

bool MulticastGroup::has(const DatagramEndpoint& endpoint) const {
  const Lock guard(mutex_);
  return std::ranges::any_of(endpoints_, [&](const auto& one) { return one.get() == &endpoint; });
}

size_t MulticastGroup::attached() const {
  const Lock guard(mutex_);
  return endpoints_.size();
}

bool MulticastGroup::ready(uint32_t /*events*/) {
  std::byte bytes[kMulticastMagic.size() + DatagramHeader::kWireSize + kMaxDatagramBytes];
  UdpPath path;
  const Lock guard(mutex_);
  for (int i = 0; i < kMulticastsPerPass; ++i) {
    const ssize_t length = socket_.receive(bytes, path);
    if (length < 0) return false;
    if (static_cast<size_t>(length) <= sizeof bytes)
      received({bytes, static_cast<size_t>(length)}, path);
  }
  return true;
}

void MulticastGroup::received(std::span<const std::byte> bytes, const UdpPath& path) {
  const IpAddress from = ip_of(path.peer);
  const bool allowed = settings().allow.allows(from.bytes());
  if (!allowed) {
    static CollapsedLog log;
    log.event("multicast: %s is not in UWARP_ALLOW", from.to_string().c_str());
  }
  const auto datagram = behind_multicast_magic(bytes);
  if (!allowed || !datagram || datagram->size() < DatagramHeader::kWireSize) return;
  const DatagramHeader header = DatagramHeader::decode(datagram->data());
  const auto payload = datagram->subspan(DatagramHeader::kWireSize);
  if (header.destination != kGroupQpn || header.payload_bytes != payload.size()) return;
  GlobalRouteHeader route(from.bytes(), group_.bytes());
  const auto written = route.of(header.payload_bytes, header.traffic_class, header.hop_limit);
  // Each of them, also the one that has sent it, as RoCE adapters do.
  for (const auto& endpoint : endpoints_) {
    if (!endpoint->takes_own_multicast() && endpoint->number() == header.source &&
        endpoint->device().owns(from))
      continue;
    DatagramQueuePair& qp = endpoint->qp();
    if (qp.deliver(header, written, payload.data()) == DatagramQueuePair::Delivery::kNoReceive)
      qp.count_drop();
  }
}

// --- All of them

int MulticastGroups::attach(const std::shared_ptr<DatagramEndpoint>& endpoint,
                            const IpAddress& group) {
  const GroupKey key{endpoint->device().ifindex, group};
  const Lock guard(mutex_);
  auto found = groups_.find(key);
  if (found == groups_.end()) {
    if (groups_.size() == kMostGroups) return ENOMEM;
    auto joined = MulticastGroup::join(context_, endpoint->device(), group);
    if (!joined) return joined.error();
    found = groups_.emplace(key, std::move(*joined)).first;
  }
  if (found->second->attached() == kMostAttached) return ENOMEM;
  (void)found->second->attach(endpoint);
  return 0;
}

int MulticastGroups::detach(const DatagramEndpoint& endpoint, const IpAddress& group) {
  std::shared_ptr<MulticastGroup> last;  // after the lock
  const Lock guard(mutex_);
  const auto found = groups_.find({endpoint.device().ifindex, group});
  if (found == groups_.end() || !found->second->detach(endpoint)) return EINVAL;
  if (found->second->attached() != 0) return 0;
  last = std::move(found->second);
  groups_.erase(found);
  return 0;
}

bool MulticastGroups::has(const DatagramEndpoint& endpoint) const {
  const Lock guard(mutex_);
  return std::ranges::any_of(groups_, [&](const auto& one) { return one.second->has(endpoint); });
}

void MulticastGroups::leave_all(const DatagramEndpoint& endpoint) {
  const Lock guard(mutex_);
  std::erase_if(groups_, [&](const auto& one) {
    return one.second->detach(endpoint) && one.second->attached() == 0;
  });
}

Result<std::shared_ptr<MulticastPath>> MulticastGroups::path_to(const NetDevice& device,
                                                                const MulticastPath::Key& key) {
  const Lock guard(mutex_);
  if (auto known = paths_[key].lock()) return known;
  auto made = MulticastPath::open(frames_, device, key);
  std::erase_if(paths_, [](const auto& one) { return one.second.expired(); });
  if (made) paths_[key] = *made;
  return made;
}

int MulticastGroups::check(const NetDevice& device, const MulticastPath::Key& key) {
  if (const auto path = MulticastPath::open(frames_, device, key); !path) return path.error();
  const auto joined = join_by_socket(device, key.group);
  return joined ? 0 : joined.error();
}

bool is_multicast(const IpAddress& address) {
  return address.is_v4() ? (address.bytes()[12] & 0xF0) == 0xE0 : address.bytes()[0] == 0xFF;
}

Result<std::shared_ptr<MulticastPath>> MulticastPath::open(FramePool& frames,
                                                           const NetDevice& device,
                                                           const Key& key) {
  if (int error = refuse_unprotected("multicast")) return Error{error};
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
  return std::make_shared<MulticastPath>(frames, std::move(*socket));
}

MulticastPath::~MulticastPath() { frames_.give_back(take_filled()); }

DatagramPath::Taken MulticastPath::append(const DatagramHeader& header, BufferList& payload) {
  const Lock lock(lock_);
  if (filling_ == nullptr || !filling_->has_space(header)) {
    if (filling_ != nullptr) {
      if (ready_.size() + 1 == kMostFrames) return Taken::kFull;  // until flush()
      ready_.push(*filling_);
    }
    filling_ = frames_.take();
    if (filling_ == nullptr) return Taken::kFull;
  }
  return filling_->append(header, payload) ? Taken::kYes : Taken::kFault;
}

FrameQueue MulticastPath::take_filled() {
  const Lock lock(lock_);
  if (filling_ != nullptr) {
    ready_.push(*filling_);
    filling_ = nullptr;
  }
  return std::exchange(ready_, {});
}

bool MulticastPath::wait_for_space(std::shared_ptr<DatagramWaiter>) {
  flush();
  return false;
}

void MulticastPath::flush() {
  const Lock order(sending_);
  FrameQueue frames = take_filled();
  bool moves = true;
  while (!frames.empty()) {
    Frame& frame = frames.pop();
    moves = moves && send(frame);
    frames_.give_back(frame);
  }
}

// False: the device takes nothing.
bool MulticastPath::send(const Frame& frame) {
  constexpr size_t kMostTogether = 32;  // datagrams that go out by one call
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

bool MulticastPath::send(std::span<const iovec> datagrams) {
  while (!datagrams.empty()) {
    const ssize_t sent = socket_.send_each(kMulticastMagic, datagrams);
    if (sent == -EAGAIN) {
      if (!socket_.wait_for_space(kMostPatienceMs)) return false;
      continue;
    }
    datagrams = datagrams.subspan(sent > 0 ? static_cast<size_t>(sent) : 1);  // one is lost
  }
  return true;
}

}  // namespace uwarp
