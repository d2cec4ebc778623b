// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// CmId: addresses, options, listening, destruction. The connection half is in cm_id_connect.cc.
#include "rdma_cm/cm_id.h"

#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/log.h"
#include "base/mutex.h"
#include "base/settings.h"
#include "carrier/tcp_socket.h"
#include "connect/qp_attributes.h"
#include "datagram/multicast.h"
#include "inject/process_faults.h"
#include "rdma_cm/cm_address.h"

namespace uwarp {

// CmIdTable.

std::shared_ptr<CmId> CmIdTable::create(
    const std::function<std::shared_ptr<CmId>(uint32_t)>& make) {
  const Lock guard(lock_);
  for (uint32_t tried = 0; tried < kMaxNumber; ++tried) {
    const uint32_t number = next_;
    next_ = next_ == kMaxNumber ? 1 : next_ + 1;
    if (number >= ids_.size()) ids_.resize(number + 1);
    if (ids_[number] != nullptr) continue;
    return ids_[number] = make(number);
  }
  return nullptr;
}

std::shared_ptr<CmId> CmIdTable::find(uint32_t number) const {
  const Lock guard(lock_);
  return number < ids_.size() ? ids_[number] : nullptr;
}

std::shared_ptr<CmId> CmIdTable::remove(uint32_t number) {
  const Lock guard(lock_);
  return number < ids_.size() ? std::exchange(ids_[number], nullptr) : nullptr;
}

std::vector<std::shared_ptr<CmId>> CmIdTable::all() const {
  std::vector<std::shared_ptr<CmId>> found;
  const Lock guard(lock_);
  for (const auto& id : ids_) {
    if (id != nullptr) found.push_back(id);
  }
  return found;
}

namespace {

// The kernel's default for "as many as possible" (net.rdma_ucm.max_backlog).
constexpr int kMostRequests = 1024;
constexpr uint8_t kMaxAckTimeout = 31;  // 5 bits in a queue pair's attributes

/// An address of the family that the other end has: an IPv4 one in mapped form for AF_INET6.
sockaddr_storage in_family_of(const sockaddr_storage& other, const IpAddress& ip, uint16_t port) {
  sockaddr_storage out{};
  if (other.ss_family == AF_INET6) {
    const sockaddr_in6 in6 = ip.to_sockaddr_in6(port);
    std::memcpy(&out, &in6, sizeof in6);
  } else {
    ip.to_sockaddr(out, port);
  }
  return out;
}

/// The wildcard as destination is this host: the id's own address, or loopback.
sockaddr_storage reachable(const sockaddr_storage& destination,
                           const std::optional<IpAddress>& from) {
  const IpAddress ip = ip_of(destination);
  if (!ip.is_any()) return destination;
  const IpAddress loopback = ip.is_v4() ? IpAddress::from_v4({htonl(INADDR_LOOPBACK)})
                                        : IpAddress::from_v6(in6addr_loopback);
  return in_family_of(destination, from.value_or(loopback), port_of(destination));
}

template <typename T>
bool read_value(std::span<const std::byte> bytes, T& value) {
  if (bytes.size() != sizeof value) return false;
  std::memcpy(&value, bytes.data(), sizeof value);
  return true;
}

const char* cure_of_bind_error(int error) {
  switch (error) {
    case EADDRINUSE:
      return ". Choose another port, or set UWARP_PORT_OFFSET on both sides";
    case EADDRNOTAVAIL:
      return ". No network device of this host has the address: see ip address";
    case EACCES:
      return ". Choose a port from net.ipv4.ip_unprivileged_port_start on";
    default:
      return "";
  }
}

void log_bind_error(const sockaddr_storage& address, int error) {
  if (!log_enabled()) return;
  log_event("rdma_cm: cannot bind %s port %u: %s%s", ip_of(address).to_string().c_str(),
            port_of(address), std::strerror(error), cure_of_bind_error(error));
}

void log_unreachable(const sockaddr_storage& destination, int error) {
  if (!log_enabled()) return;
  log_event("rdma_cm: there is no way to %s: %s. Compare the address, and see ip route get ADDRESS",
            ip_of(destination).to_string().c_str(), std::strerror(error));
}

}  // namespace

CmId::CmId(CmIdTable& table, CmTransport& transport, uint32_t number, uint64_t uid,
           CmService service, Persona persona)
    : table_(table),
      transport_(transport),
      number_(number),
      service_(service),
      persona_(persona),
      events_(std::make_shared<CmEventSource>()),
      uid_(uid) {
  options_.datagram = service.datagram;
  options_.port_space = service.port_space;
}

CmIdState CmId::state() const {
  const Lock guard(lock_);
  return state_;
}

CmId::Addresses CmId::addresses() const {
  const Lock guard(lock_);
  return addresses_locked();
}

CmId::Addresses CmId::addresses_locked() const {
  Addresses all{local_, remote_, device_};
  all.has_path = is_roce() && device_ != nullptr && state_ >= CmIdState::kRouteResolved;
  if (options_.tos >= 0) all.traffic_class = static_cast<uint8_t>(options_.tos);
  return all;
}

int CmId::bind(const sockaddr_storage& address) {
  const Lock guard(lock_);
  return bind_locked(address);
}

int CmId::bind_locked(const sockaddr_storage& address) {
  if (state_ != CmIdState::kIdle) return EINVAL;
  if (address.ss_family == kAfIb) return bind_ib_locked(address);
  const IpAddress ip = ip_of(address);
  // A loopback address names no device, as in the kernel: libfabric asks for all devices by binding
  // "localhost", and is shown one only if that gets a device.
  const bool of_any_device = ip.is_any() || ip.is_loopback();
  auto device = of_any_device ? nullptr : net_devices()->by_address(ip);
  if (device == nullptr && !of_any_device) {
    // A netdev may have come up since the last look.
    device = refresh_net_devices()->by_address(ip);
    if (device == nullptr) {
      const int error = is_local_address(address) ? ENODEV : EADDRNOTAVAIL;
      log_bind_error(address, error);
      return error;
    }
  }
  if (device != nullptr && service_.port_space == RDMA_PS_IPOIB) return EINVAL;
  if (const int error = reserve_port_locked(address)) return error;
  device_ = std::move(device);
  source_fixed_ = !ip.is_any();
  state_ = CmIdState::kBound;
  return 0;
}

/// librdmacm probes for AF_IB with a wildcard; nothing more of that family makes sense here.
int CmId::bind_ib_locked(const sockaddr_storage& address) {
  if (!settings().af_ib) return EAFNOSUPPORT;
  SockaddrIb ib;
  std::memcpy(&ib, &address, sizeof ib);
  if (std::any_of(std::begin(ib.address), std::end(ib.address), [](uint8_t b) { return b != 0; })) {
    return EADDRNOTAVAIL;
  }
  // The device stays unknown: librdmacm deadlocks on itself when the answer to its probe has one.
  local_ = address;
  state_ = CmIdState::kBound;
  return 0;
}

/// The port is taken now, also when the kernel is to choose it: applications read it before they
/// listen.
int CmId::reserve_port_locked(const sockaddr_storage& address, bool to_connect) {
  const auto tcp = to_tcp(address);
  BindOptions options = options_;
  options.to_connect = to_connect;
  auto bound = tcp ? transport_.bind(*tcp, options) : Error{EADDRNOTAVAIL};
  if (!bound) {
    log_bind_error(address, bound.error());
    return bound.error();
  }
  // The kernel may have chosen one that rdma_cm has no number for.
  const auto local = from_tcp(bound->address);
  if (!local) {
    log_bind_error(address, EADDRNOTAVAIL);
    return EADDRNOTAVAIL;
  }
  bound_.emplace(std::move(*bound));
  local_ = *local;
  return 0;
}

int CmId::rebind_locked() {
  bound_.reset();
  return reserve_port_locked(local_);
}

int CmId::listen(int backlog) {
  Lock guard(lock_);
  if (const int error = datagrams_refused()) return error;
  if (state_ == CmIdState::kIdle) {
    sockaddr_storage any{};
    any.ss_family = AF_INET;
    if (const int error = bind_locked(any)) return error;
  }
  if (state_ != CmIdState::kBound) return EINVAL;
  if (local_.ss_family == kAfIb) return EADDRNOTAVAIL;
  if (!bound_) {  // rebind_locked() has failed
    if (const int error = rebind_locked()) return error;
  }
  backlog_ = static_cast<size_t>(backlog > 0 && backlog < kMostRequests ? backlog : kMostRequests);
  state_ = CmIdState::kListening;
  BoundPort bound = std::move(*bound_);
  bound_.reset();
  const BindOptions options = options_;
  guard.unlock();

  auto listener = transport_.listen(std::move(bound), options, shared());

  guard.lock();
  if (!listener) {
    log_bind_error(local_, listener.error());
    if (state_ == CmIdState::kListening) {
      state_ = CmIdState::kBound;
      (void)rebind_locked();
    }
    return listener.error();
  }
  if (state_ == CmIdState::kListening) {
    listener_ = std::move(*listener);
    counted_.emplace();
    return 0;
  }
  // Destroyed by another thread meanwhile, or its device is gone.
  guard.unlock();
  (*listener)->close();
  return EINVAL;
}

int CmId::resolve_address(const sockaddr_storage& source, const sockaddr_storage& destination,
                          uint32_t timeout_ms) {
  CmEventReservation reservation(1);
  Lock guard(lock_);
  if (ProcessFaults::injected(FaultKind::kAddressError)) {
    const auto event = event_locked(CmEventType::kAddressError, -ETIMEDOUT);
    guard.unlock();
    push(event, std::move(reservation));
    return 0;
  }
  const CmIdState before = state_;
  const int error = resolve_locked(source, destination);
  if (error == 0) {
    asked_from_ = before;
    const Route route{ip_of(local_), device_};
    const IpAddress to = ip_of(remote_);
    state_ = CmIdState::kAddressAsked;
    reservation_ = std::move(reservation);
    guard.unlock();
    // IP over InfiniBand is for links of InfiniBand. A group has no neighbours.
    if (service_.port_space == RDMA_PS_IPOIB)
      neighbour_known(-EINVAL);
    else if (is_multicast(to) || !waits_for_neighbour(to, route, timeout_ms))
      neighbour_known(0);
    return 0;
  }
  log_unreachable(destination, error);
  // A netdev that is no device is told by an event, other failures by the command itself.
  if (error != ENODEV) return error;
  const auto event = event_locked(CmEventType::kAddressError, -error);
  guard.unlock();
  push(event, std::move(reservation));
  return 0;
}

/// Without memory for it the id goes on, as where the kernel does not tell.
bool CmId::waits_for_neighbour(const IpAddress& destination, const Route& route,
                               uint32_t timeout_ms) {
  try {
    return transport_.wait_for_neighbour(destination, route, timeout_ms, shared());
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void CmId::neighbour_known(int status) {
  Lock guard(lock_);
  if (state_ != CmIdState::kAddressAsked) return;
  if (status == 0) {
    state_ = CmIdState::kAddressResolved;
  } else {
    log_unreachable(remote_, -status);
    unresolve_locked();
  }
  const auto event = event_locked(
      status == 0 ? CmEventType::kAddressResolved : CmEventType::kAddressError, status);
  CmEventReservation reservation = take_reservation_locked();
  guard.unlock();
  push(event, std::move(reservation));
}

/// As before resolve_address(): the next try may come with another source, or none.
void CmId::unresolve_locked() {
  remote_ = {};
  state_ = asked_from_;
  if (state_ == CmIdState::kIdle) {
    bound_.reset();
    local_ = {};
    source_fixed_ = false;
  } else if (bound_) {
    local_ = from_tcp(bound_->address).value_or(local_);
  }
  if (!source_fixed_) device_ = nullptr;
}

int CmId::resolve_locked(const sockaddr_storage& source, const sockaddr_storage& destination) {
  if (destination.ss_family != AF_INET && destination.ss_family != AF_INET6) return EAFNOSUPPORT;
  if (state_ == CmIdState::kIdle && source.ss_family != AF_UNSPEC) {
    if (source.ss_family != AF_INET && source.ss_family != AF_INET6) return EAFNOSUPPORT;
    if (source.ss_family != destination.ss_family) return EINVAL;
    const IpAddress ip = ip_of(source);
    if (port_of(source) != 0) {
      if (const int error = bind_locked(source)) return error;
    } else if (!ip.is_any()) {
      local_ = source;
      source_fixed_ = true;
    }
  }
  if (state_ != CmIdState::kIdle && state_ != CmIdState::kBound) return EINVAL;
  if (local_.ss_family == kAfIb) return EAFNOSUPPORT;
  if (state_ == CmIdState::kBound && local_.ss_family != destination.ss_family) return EINVAL;
  std::optional<IpAddress> from;
  if (source_fixed_) from = ip_of(local_);
  const sockaddr_storage to = reachable(destination, from);
  auto route = find_route(ip_of(to), from);
  // A source says through which device a group is reached, where the routes do not. Errno is kept
  // if it is of no device.
  if (!route && from && is_multicast(ip_of(to)))
    if (auto device = net_devices()->by_address(*from)) route = Route{*from, std::move(device)};
  if (!route) {
    const int error = errno;
    // The next try may come with another source, or none.
    if (state_ == CmIdState::kIdle) {
      local_ = {};
      source_fixed_ = false;
    }
    return error;
  }
  const uint16_t port = local_.ss_family == AF_UNSPEC ? 0 : port_of(local_);
  local_ = in_family_of(to, route->source, port);
  // Known from now on, as the kernel's rdma_cm has it. Where no port is left, TCP may still find
  // one at connect that it can share among several destinations.
  if (port == 0) (void)reserve_port_locked(local_, true);
  remote_ = to;
  device_ = route->device;
  state_ = CmIdState::kAddressResolved;
  return 0;
}

int CmId::resolve_route() {
  CmEventReservation reservation(1);
  Lock guard(lock_);
  if (state_ != CmIdState::kAddressResolved) return EINVAL;
  const bool fails = ProcessFaults::injected(FaultKind::kRouteError);
  if (!fails) state_ = CmIdState::kRouteResolved;
  const auto event = fails ? event_locked(CmEventType::kRouteError, -ETIMEDOUT)
                           : event_locked(CmEventType::kRouteResolved, 0);
  guard.unlock();
  push(event, std::move(reservation));
  return 0;
}

int CmId::write_event(CmEventType type, uint32_t status, uint64_t argument) {
  CmEventReservation reservation(1);
  Lock guard(lock_);
  auto event = event_locked(type, static_cast<int>(status));
  guard.unlock();
  std::memcpy(&event.param, &argument, sizeof argument);
  push(event, std::move(reservation));
  return 0;
}

int CmId::set_option(uint32_t level, uint32_t name, std::span<const std::byte> value) {
  // A path record takes an id of InfiniBand on, past the subnet manager.
  if (level == RDMA_OPTION_IB && name == RDMA_OPTION_IB_PATH) return EINVAL;
  if (level != RDMA_OPTION_ID) return ENOSYS;
  uint8_t byte = 0;
  int number = 0;
  const Lock guard(lock_);
  switch (name) {
    case RDMA_OPTION_ID_TOS:
      if (!read_value(value, byte)) return EINVAL;
      options_.tos = byte;
      return 0;
    case RDMA_OPTION_ID_REUSEADDR:
      if (!read_value(value, number)) return EINVAL;
      if (number != 0 ? state_ == CmIdState::kListening : state_ != CmIdState::kIdle) return EINVAL;
      options_.shared = number != 0;
      if (bound_) share_port(bound_->socket);
      return 0;
    case RDMA_OPTION_ID_AFONLY:
      if (!read_value(value, number)) return EINVAL;
      if (state_ != CmIdState::kIdle && state_ != CmIdState::kBound) return EINVAL;
      if (options_.v6_only == (number != 0)) return 0;
      options_.v6_only = number != 0;
      // A socket cannot change it any more once it is bound.
      return state_ == CmIdState::kBound && local_.ss_family == AF_INET6 ? rebind_locked() : 0;
    case RDMA_OPTION_ID_ACK_TIMEOUT:
      if (!read_value(value, byte) || service_.datagram) return EINVAL;
      retries_.timeout = std::min(byte, kMaxAckTimeout);
      return 0;
    default:
      return ENOSYS;
  }
}

int CmId::qp_attributes(uint32_t qp_state, ib_uverbs_qp_attr& out) {
  // Bits of ibv_qp_attr_mask.
  constexpr uint32_t kMaskState = 1u << 0;
  constexpr uint32_t kMaskAccess = 1u << 3;
  constexpr uint32_t kMaskPort = 1u << 5;
  // Values of ibv_qp_state and ibv_access_flags.
  enum : uint32_t { kInit = 1, kRtr = 2, kRts = 3 };
  constexpr uint32_t kRemoteWriteAndRead = (1u << 1) | (1u << 2);

  constexpr uint32_t kErr = 6;
  if (qp_state > kErr) return EINVAL;
  const Lock guard(lock_);
  if (device_ == nullptr) return EINVAL;
  if (is_roce() && service_.datagram) {
    if (qkey_ == 0) qkey_ = kCmQkey;
    datagram_attributes(qp_state, qkey_, out);
    return 0;
  }
  if (is_roce()) {
    return infiniband_attributes(addresses_locked(), qp_state, retries_, depths_, out);
  }
  out = {};
  out.port_num = 1;
  out.qp_state = qp_state;
  switch (qp_state) {
    case kInit:
    case kRtr:
      out.qp_attr_mask = kMaskState | kMaskAccess | kMaskPort;
      if (state_ >= CmIdState::kConnecting) out.qp_access_flags = kRemoteWriteAndRead;
      return 0;
    case kRts:
      // The connection itself moves the queue pair there.
      out.qp_attr_mask = kMaskPort;
      return 0;
    default:
      return EINVAL;
  }
}

uint32_t CmId::destroy() {
  Lock guard(lock_);
  const Ending ending = end_locked(CmIdState::kDestroyed);
  guard.unlock();

  // First, so that nothing that follows makes an event.
  CmEventReservation dropped;
  const uint32_t reported = CmEventQueue::close(*events_, dropped);
  if (ending.listener != nullptr) ending.listener->close();
  for (const auto& [source, event] : dropped) {
    const auto& request = event.request;
    if (request == nullptr) continue;
    table_.remove(request->number());
    request->destroy();
  }
  if (ending.connection != nullptr) end_connection(*ending.connection, ending.state);
  return reported;
}

CmId::Ending CmId::end_locked(CmIdState state) {
  counted_.reset();
  return {std::exchange(state_, state), std::move(listener_), std::move(connection_),
          std::move(silent_), std::exchange(bound_, std::nullopt)};
}

void CmId::netdevs_changed(const NetDeviceTable& devices) {
  Lock guard(lock_);
  if (device_ == nullptr || state_ >= CmIdState::kRemoved || devices.has_netdev(device_->ifindex))
    return;
  CmEventReservation reservation(1);
  const auto event = event_locked(CmEventType::kDeviceRemoval, 0);
  const Ending ending = end_locked(CmIdState::kRemoved);
  guard.unlock();

  // The application has no name yet for a request that it has not accepted.
  if (ending.state != CmIdState::kRequest) push(event, std::move(reservation));
  if (ending.listener != nullptr) ending.listener->close();
  if (ending.connection != nullptr && ending.state < CmIdState::kClosed) ending.connection->abort();
}

rdma_ucm_event_resp CmId::event_locked(CmEventType type, int status) const {
  rdma_ucm_event_resp event{};
  event.uid = uid_;
  event.id = number_;
  event.event = static_cast<uint32_t>(type);
  event.status = static_cast<uint32_t>(status);
  return event;
}

void CmId::push(const rdma_ucm_event_resp& event, CmEventReservation reservation) {
  CmEventQueue::push(events_, CmEvent{event, nullptr}, std::move(reservation));
}

CmEventReservation CmId::take_reservation_locked() {
  CmEventReservation one;
  one.splice(one.end(), reservation_, reservation_.begin());
  return one;
}

// CmId: multicast groups. librdmacm attaches the id's queue pair itself when it gets the event of
// the join.

int CmId::join_group(const IpAddress& group, uint64_t uid, uint16_t flags, uint32_t& number) {
  CmEventReservation reservation(1);
  auto reported = std::make_shared<uint32_t>(0);
  if (flags >= RDMA_MC_JOIN_FLAG_RESERVED) return EINVAL;
  Lock guard(lock_);
  if (device_ == nullptr || !service_.datagram) return EINVAL;
  if (state_ != CmIdState::kBound && state_ != CmIdState::kAddressResolved) return EINVAL;
  if (!is_roce()) return ENOSYS;
  if (group.is_any()) return EINVAL;
  // Quick, and calls nothing back: the lock may stay.
  const int error = transport_.check_group(*device_, ip_of(local_), group);
  number = table_.name_group();
  groups_.push_back({number, reported});
  if (qkey_ == 0) qkey_ = kCmQkey;
  auto event =
      event_locked(error == 0 ? CmEventType::kMulticastJoin : CmEventType::kMulticastError, -error);
  event.uid = uid;
  event.id = number;
  if (error == 0) {
    event.param.ud.ah_attr = group_address(addresses_locked(), group);
    event.param.ud.qp_num = kCmPeerQpn;  // which is also the number of all members of a group
    event.param.ud.qkey = qkey_;
  }
  guard.unlock();
  CmEventQueue::push(events_, CmEvent{event, nullptr, std::move(reported)}, std::move(reservation));
  return 0;
}

std::optional<uint32_t> CmId::leave_group(uint32_t number) {
  std::shared_ptr<uint32_t> reported;
  {
    const Lock guard(lock_);
    const auto found = std::ranges::find(groups_, number, &Group::number);
    if (found == groups_.end()) return std::nullopt;
    reported = std::move(found->reported);
    groups_.erase(found);
  }
  return CmEventQueue::forget_group(*events_, reported);
}

}  // namespace uwarp
