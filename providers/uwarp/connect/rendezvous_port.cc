// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Finding one port that is free on several addresses.
#include "connect/rendezvous_port.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/settings.h"
#include "connect/connect_context.h"
#include "connect/endpoint.h"
#include "connect/listener.h"
#include "connect/rendezvous.h"
#include "os/clock.h"

namespace uwarp {

Result<QpNumberLease> QpNumberLease::reserve(ConnectContext& context, const NetDevice& device) {
  auto port = context.ports.reserve(context, device);
  if (!port) return Error{port.error()};
  QpNumberLease place(context, std::move(*port));
  place.slot_ = SlotLease<QueuePairSlot>(context.stat_page);
  return place;
}

QpNumberLease::QpNumberLease(QpNumberLease&& other) noexcept
    : context_(other.context_),
      port_(std::move(other.port_)),
      has_port_(std::exchange(other.has_port_, false)),
      slot_(std::move(other.slot_)) {}

QpNumberLease::~QpNumberLease() {
  if (!context_.alive())
    slot_.abandon();
  else if (has_port_)
    give_back();
}

QpConfig QpNumberLease::complete(QpConfig config) const {
  config.number = number();
  config.slot = slot_.get();
  config.trace = context_.trace;
  return config;
}

void QpNumberLease::show(const QpConfig& config, const NetDevice& device) {
  const uint32_t index = context_.stat_page.device(device.verbs_name);
  const bool shared = config.shares_receives();
  const SlotChange change(slot_->head);
  slot_->number = number().value;
  slot_->device = index;
  slot_->created_ns = wall_clock_ns();
  slot_->send_depth = config.max_send_wr;
  slot_->receive_depth = shared ? 0 : config.max_recv_wr;
  slot_->send_queue = slot_->receive_queue = kNoSlot;
  slot_->flags = shared ? uint32_t{QueuePairSlot::kSharedReceive} : 0;
  slot_->head.live.store(1, std::memory_order_release);
}

void QpNumberLease::name_queues(uint32_t send_queue, uint32_t receive_queue) {
  const SlotChange change(slot_->head);
  slot_->send_queue = send_queue;
  slot_->receive_queue = receive_queue;
}

int QpNumberLease::become_callable() {
  try {
    if (int error = context_.progress.start_helper()) return error;
    return port_.port->listen();
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

void QpNumberLease::give_back() {
  has_port_ = false;
  context_.ports.give_back(port_);
}

// Giving numbers out and back.

Result<RendezvousPorts::Place> RendezvousPorts::reserve(ConnectContext& context,
                                                        const NetDevice& device) {
  const Lock guard(mutex_);
  for (const auto& port : ports_) {
    if (port->ifindex() != device.ifindex) continue;
    if (const auto number = port->take_number()) return Place{port, *number};
  }
  auto made = RendezvousPort::reserve(context, device);
  if (!made) return Error{made.error()};
  ports_.push_back(*made);
  return Place{*made, *(*made)->take_number()};
}

std::shared_ptr<RendezvousPort> RendezvousPorts::find(int ifindex, uint16_t port) {
  const Lock guard(mutex_);
  for (const auto& one : ports_)
    if (one->ifindex() == ifindex && one->port() == port) return one;
  return nullptr;
}

void RendezvousPorts::give_back(const Place& place) {
  std::shared_ptr<RendezvousPort> unused;  // closed after the lock
  const Lock guard(mutex_);
  if (!place.port->give_back(place.number)) return;
  // One that never listened stays for the next queue pair: those of rdma_cm come and go.
  const auto spare = [&](const auto& port) {
    return port->ifindex() == place.port->ifindex() && port->spare();
  };
  if (place.port->spare() && std::count_if(ports_.begin(), ports_.end(), spare) == 1) return;
  const auto found = std::find(ports_.begin(), ports_.end(), place.port);
  if (found == ports_.end()) return;
  unused = std::move(*found);
  ports_.erase(found);
}

namespace {

/// Ports that the kernel proposes for the first address and another address refuses.
constexpr int kProposals = 64;

/// Which ports are free: those of no socket, or also those that only connections have, most of them
/// ended a minute ago at most (TIME_WAIT). A host that connects a lot may have no others.
enum class FreePorts : bool { kUnused, kBesideConnections };

/// Binds `port` on every address. The errno that stopped it, 0 for success. Addresses that have
/// gone, or are not usable yet (IPv6 duplicate detection), are left out.
int bind_everywhere(const NetDevice& device, uint16_t port, FreePorts free,
                    std::vector<TcpSocket>& sockets) {
  sockets.clear();
  for (const IpAddress& address : device.gids) {
    auto socket = TcpSocket::open(address.is_v4() ? AF_INET : AF_INET6);
    if (!socket) return socket.error();
    if (!address.is_v4()) socket->set_v6_only(true);
    sockaddr_storage at;
    (void)address.to_sockaddr(at, port);
    socket->set_reuse_address(free == FreePorts::kBesideConnections);
    const int error = socket->bind(at);
    if (error == EADDRNOTAVAIL) continue;
    if (error != 0) return error;
    // Else another socket with this option could bind the port, too, until this one listens.
    socket->set_reuse_address(false);
    if (port == 0) port = port_of(socket->local_address());  // the others must take the same
    sockets.push_back(std::move(*socket));
  }
  return sockets.empty() ? EADDRNOTAVAIL : 0;
}

int bind_any_port(const NetDevice& device, FreePorts free, std::vector<TcpSocket>& sockets) {
  const bool beside = free == FreePorts::kBesideConnections;
  // Such ports the kernel does not propose.
  const PortRange range =
      beside && settings().port_range.empty() ? any_ports() : settings().port_range;
  if (!range.empty())
    return each_port(range,
                     [&](uint16_t port) { return bind_everywhere(device, port, free, sockets); });
  int error = EADDRINUSE;
  for (int i = 0; i < kProposals && error == EADDRINUSE; ++i)
    error = bind_everywhere(device, 0, free, sockets);
  return error;
}

}  // namespace

Result<std::shared_ptr<RendezvousPort>> RendezvousPort::reserve(ConnectContext& context,
                                                                const NetDevice& device) {
  std::vector<TcpSocket> sockets;
  int error = bind_any_port(device, FreePorts::kUnused, sockets);
  if (error == EADDRINUSE) error = bind_any_port(device, FreePorts::kBesideConnections, sockets);
  if (error != 0) {
    log_event("rendezvous: no free port in %s: %s",
              settings().port_range.empty() ? "ip_local_port_range" : "UWARP_PORT_RANGE",
              std::strerror(error));
    return Error{error};
  }
  const uint16_t port = port_of(sockets.front().local_address());
  return std::shared_ptr<RendezvousPort>(
      new RendezvousPort(context, device.ifindex, port, std::move(sockets)));
}

std::optional<Qpn> RendezvousPort::take_number() {
  const Lock guard(mutex_);
  if (used_.all()) return std::nullopt;
  uint32_t index = next_index_ % kQpsPerPort;
  while (used_.test(index)) index = (index + 1) % kQpsPerPort;
  used_.set(index);
  next_index_ = index + 1;
  return Qpn{static_cast<uint32_t>(port_) << 8 | index};
}

bool RendezvousPort::give_back(Qpn number) {
  const Lock guard(mutex_);
  used_.reset(number.value % kQpsPerPort);
  return used_.none();
}

bool RendezvousPort::spare() {
  const Lock guard(mutex_);
  return used_.none() && listeners_.empty();
}

int RendezvousPort::listen() {
  const Lock guard(mutex_);
  // What fails on the way is tried again by the next queue pair.
  listeners_.reserve(listeners_.size() + bound_.size());
  while (!bound_.empty()) {
    auto listener = Listener::start(context_, bound_.back(), weak_from_this());
    if (!listener) return listener.error();
    bound_.pop_back();
    listeners_.push_back(std::move(*listener));
  }
  return 0;
}

bool RendezvousPort::connection_requested(std::shared_ptr<Connection> request) {
  const auto call = RendezvousCall::decode(request->request_parameters().private_data);
  TrunkCalls* trunks = nullptr;
  std::shared_ptr<Endpoint> endpoint;
  if (call && (call->capabilities & RendezvousCall::kTrunk) != 0)
    trunks = context_.trunk_calls.load(std::memory_order_acquire);
  else if (call && port_of_number(call->target) == port_)
    endpoint = context_.endpoints.find(call->target);
  if (trunks != nullptr)
    trunks->trunk_called(std::move(request), *call);
  else if (endpoint != nullptr)
    endpoint->answer(std::move(request), *call);
  else
    refuse(*request, call ? RendezvousVerdict::kNoSuchQp : RendezvousVerdict::kUnknownVersion);
  return true;
}

}  // namespace uwarp
