// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Finding one port that is free on several addresses.
#include "connect/rendezvous_port.h"

#include <cerrno>

#include "base/log.h"
#include "base/random.h"
#include "base/settings.h"
#include "connect/connect_context.h"
#include "connect/endpoint.h"
#include "connect/held_call.h"
#include "connect/rendezvous_message.h"

namespace uwarp {
namespace {

/// Ports that the kernel proposes for the first address and another address refuses.
constexpr int kProposals = 64;

sockaddr_storage socket_address(const IpAddress& address, uint16_t port) {
  sockaddr_storage out{};
  (void)address.to_sockaddr(out, port);
  return out;
}

uint16_t port_of_socket(const TcpSocket& socket) {
  const sockaddr_storage address = socket.local_address();
  return port_of(reinterpret_cast<const sockaddr*>(&address));
}

/// Binds `port` on every address. The errno that stopped it, 0 for success. Addresses that have
/// gone, or are not usable yet (IPv6 duplicate detection), are left out.
int bind_everywhere(const NetDevice& device, uint16_t port, std::vector<TcpSocket>& sockets) {
  sockets.clear();
  for (const IpAddress& address : device.gids) {
    auto socket = TcpSocket::open(address.is_v4() ? AF_INET : AF_INET6);
    if (!socket) return socket.error();
    if (!address.is_v4()) socket->set_v6_only(true);
    const int error = socket->bind(socket_address(address, port));
    if (error == EADDRNOTAVAIL) continue;
    if (error != 0) return error;
    if (port == 0) port = port_of_socket(*socket);  // the others must take the same
    sockets.push_back(std::move(*socket));
  }
  return sockets.empty() ? EADDRNOTAVAIL : 0;
}

/// Tries all ports of the range, from a random one on.
int bind_in_range(const NetDevice& device, PortRange range, std::vector<TcpSocket>& sockets) {
  const uint32_t count = static_cast<uint32_t>(range.high - range.low) + 1;
  const uint32_t start = static_cast<uint32_t>(random_word() % count);
  int error = EADDRINUSE;
  for (uint32_t i = 0; i < count; ++i) {
    const auto port = static_cast<uint16_t>(range.low + (start + i) % count);
    error = bind_everywhere(device, port, sockets);
    if (error != EADDRINUSE && error != EACCES) return error;
  }
  log_event("rendezvous: no free port in UWARP_PORT_RANGE");
  return error;
}

}  // namespace

Result<std::shared_ptr<RendezvousPort>> RendezvousPort::reserve(ConnectContext& context,
                                                                const NetDevice& device) {
  const PortRange range = settings().port_range;
  std::vector<TcpSocket> sockets;
  int error = EADDRINUSE;
  if (!range.empty()) {
    error = bind_in_range(device, range, sockets);
  } else {
    for (int i = 0; i < kProposals && error == EADDRINUSE; ++i)
      error = bind_everywhere(device, 0, sockets);
  }
  if (error != 0) return Error{error};
  const uint16_t port = port_of_socket(sockets.front());
  return std::shared_ptr<RendezvousPort>(
      new RendezvousPort(context, device.ifindex, port, std::move(sockets)));
}

std::optional<Qpn> RendezvousPort::take_number() {
  const std::lock_guard guard(mutex_);
  if (used_.all()) return std::nullopt;
  uint32_t index = next_index_ % kQpsPerPort;
  while (used_.test(index)) index = (index + 1) % kQpsPerPort;
  used_.set(index);
  next_index_ = index + 1;
  return Qpn{static_cast<uint32_t>(port_) << 8 | index};
}

bool RendezvousPort::give_back(Qpn number) {
  const std::lock_guard guard(mutex_);
  used_.reset(number.value % kQpsPerPort);
  return used_.none();
}

bool RendezvousPort::spare() {
  const std::lock_guard guard(mutex_);
  return used_.none() && listeners_.empty();
}

int RendezvousPort::listen() {
  const std::lock_guard guard(mutex_);
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
  if (call && (call->capabilities & RendezvousCall::kTrunk) != 0) {
    if (TrunkCalls* const trunks = context_.trunk_calls.load(std::memory_order_acquire)) {
      trunks->trunk_called(std::move(request), *call);
      return true;
    }
    refuse(*request, RendezvousVerdict::kNoSuchQp);
    return true;
  }
  const auto endpoint = call && port_of_number(call->target) == port_
                            ? context_.endpoints.find(call->target)
                            : nullptr;
  if (endpoint != nullptr) {
    endpoint->answer(std::move(request), *call);
    return true;
  }
  refuse(*request, call ? RendezvousVerdict::kNoSuchQp : RendezvousVerdict::kUnknownVersion);
  return true;
}

}  // namespace uwarp
