// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/settings.h"
#include "connect/qp_attributes.h"
#include "inject/process_faults.h"
#include "net/net_watch.h"
#include "protocol/wire/sidr_message.h"
#include "rdma_cm/cm_address.h"
#include "rdma_cm/cm_id.h"

namespace uwarp {

// CmId: the life of a connection, from request to end.

namespace {

// Of one connection: how the attempt went, DISCONNECTED, and TIMEWAIT_EXIT.
constexpr size_t kConnectionEvents = 3;

/// Peers send as many requests as they like to an address that is no device's.
constinit CachedDeviceScan request_scan;

/// librdmacm checks what it echoes against the device's limits, and keeps 8 bits.
uint8_t clamp_depth(uint16_t depth, uint32_t most) {
  return static_cast<uint8_t>(std::min<uint32_t>(depth, most));
}

/// Reads of the peer, then those of this side.
void clamp_depths(auto& to, const auto& from) {
  const AdapterProfile& most = settings().adapter;
  to.responder_resources = clamp_depth(from.responder_resources, most.max_qp_rd_atom);
  to.initiator_depth = clamp_depth(from.initiator_depth, most.max_qp_init_rd_atom);
}

ConnectParameters parameters_of(const rdma_ucm_conn_param& from) {
  ConnectParameters parameters;
  clamp_depths(parameters, from);
  const auto* bytes = reinterpret_cast<const std::byte*>(from.private_data);
  parameters.private_data.assign(bytes, bytes + from.private_data_len);
  return parameters;
}

/// `to`: rdma_ucm_conn_param, or rdma_ucm_ud_param.
void fill(auto& to, std::span<const std::byte> private_data) {
  const size_t length = std::min(private_data.size(), kPrivateDataAppMax);
  static_assert(sizeof to.private_data > kPrivateDataAppMax);
  if (length != 0) std::memcpy(to.private_data, private_data.data(), length);
  to.private_data_len = static_cast<uint8_t>(length);
}

void fill(rdma_ucm_conn_param& to, const ConnectParameters& from) {
  fill(to, from.private_data);
  clamp_depths(to, from);
}

}  // namespace

int CmId::connect(const rdma_ucm_conn_param& parameters) {
  // All that needs memory of ours comes first, while nothing has happened yet.
  CmEventReservation reservation(kConnectionEvents);
  CmTransport::ConnectRequest request;
  request.parameters = parameters_of(parameters);
  CmEndpoint used;  // a silent one that is not needed ends without the lock
  Lock guard(lock_);
  if (state_ != CmIdState::kRouteResolved || !parameters.valid) return EINVAL;
  if (const int error = datagrams_refused()) return error;
  if (service_.datagram && parameters.private_data_len > kSidrRequestDataMax) return EINVAL;
  const auto local = to_tcp(local_);
  const auto remote = to_tcp(remote_);
  if (!local || !remote) return EADDRNOTAVAIL;
  state_ = CmIdState::kConnecting;
  reservation_ = std::move(reservation);
  if (connect_fails(guard)) return 0;
  request.bound = std::exchange(bound_, std::nullopt);
  request.local = *local;
  request.remote = *remote;
  request.options = options_;
  note_parameters_locked(parameters);
  const CmQueuePair queue_pair = queue_pair_locked(parameters.qp_num);
  guard.unlock();

  auto connection = [&]() -> Result<std::shared_ptr<CmConnection>> {
    try {
      if (!service_.datagram) {
        auto found = transport_.find_queue_pair(queue_pair);
        if (!found) return Error{found.error()};
        used = std::move(*found);
        request.endpoint = used.endpoint;
      }
      return transport_.connect(std::move(request), shared());
    } catch (const std::bad_alloc&) {
      return Error{ENOMEM};
    }
  }();

  guard.lock();
  if (!connection) {
    if (state_ == CmIdState::kConnecting) state_ = CmIdState::kRouteResolved;
    return connection.error();
  }
  if (state_ >= CmIdState::kRemoved) {
    guard.unlock();
    (*connection)->abort();
    return EINVAL;
  }
  connection_ = *connection;
  silent_ = std::move(used.silent);
  // ESTABLISHED may have come, and its reader may have had enough of the connection already.
  const bool ended = was_established_ && state_ >= CmIdState::kDisconnecting;
  guard.unlock();
  if (ended) end_unheard(**connection);
  return 0;
}

/// A disconnect() or reject() that has succeeded when there was no connection to tell it to.
void CmId::end_unheard(CmConnection& connection) {
  try {
    connection.disconnect();
  } catch (const std::bad_alloc&) {
    connection.abort();
    connection_ended({});
  }
}

/// Where faults are asked for: what a peer's host or the network would answer. Gives the lock up
/// if it returns true.
bool CmId::connect_fails(Lock<Mutex>& guard) {
  const bool refused = ProcessFaults::injected(FaultKind::kRefuse);
  if (!refused && !ProcessFaults::injected(FaultKind::kUnreachable)) return false;
  guard.unlock();
  const int status = service_.datagram ? static_cast<int>(SidrStatus::kRejected) : -ECONNREFUSED;
  refused ? connection_rejected({}, status, {}) : connection_failed({}, -ETIMEDOUT);
  return true;
}

int CmId::datagrams_refused() const {
  if (!service_.datagram || is_roce()) return 0;
  advise(std::string("rdma_cm: no datagrams in the iwarp persona. ") + kAskForRoce);
  return EOPNOTSUPP;
}

int CmId::accept(uint64_t uid, const rdma_ucm_conn_param& parameters) {
  if (service_.datagram) return accept_datagram(uid, parameters);
  ConnectParameters answer = parameters_of(parameters);  // may lack memory
  CmEndpoint used;                                       // as in connect()
  Lock guard(lock_);
  if (is_roce() && !parameters.valid) {  // ACCEPT of the active side
    // The stream runs since the peer's answer came. If it has ended meanwhile, that is for
    // DISCONNECTED to tell.
    if (state_ == CmIdState::kAnswered) state_ = CmIdState::kEstablished;
    return was_established_ ? 0 : EINVAL;
  }
  if (state_ != CmIdState::kRequest || !parameters.valid) return EINVAL;
  note_parameters_locked(parameters);
  // Before the call: ESTABLISHED may come inside it, and goes to this name.
  uid_ = uid;
  state_ = CmIdState::kAccepting;
  const auto connection = connection_;
  const CmQueuePair queue_pair = queue_pair_locked(parameters.qp_num);
  guard.unlock();

  auto found = transport_.find_queue_pair(queue_pair);
  if (found) used = std::move(*found);
  const int error = found ? connection->accept(used.endpoint, answer, shared()) : found.error();

  guard.lock();
  if (error == 0) {
    if (state_ < CmIdState::kRemoved) silent_ = std::move(used.silent);
    return 0;
  }
  // A wrong queue pair can be put right; a peer that has gone cannot.
  if (state_ == CmIdState::kAccepting) {
    state_ = error == EINVAL ? CmIdState::kRequest : CmIdState::kClosed;
  }
  return error;
}

// The peer is told at once, and this side of nothing. What is wrong rejects the request, as the
// kernel does.
int CmId::accept_datagram(uint64_t uid, const rdma_ucm_conn_param& parameters) {
  ConnectParameters answer = parameters_of(parameters);  // may lack memory
  Lock guard(lock_);
  if (state_ != CmIdState::kRequest) return EINVAL;
  if (parameters.valid) uid_ = uid;
  const bool fits = answer.private_data.size() <= kSidrReplyDataMax &&
                    settle_qkey_locked(parameters.qkey == 0 ? kCmQkey : parameters.qkey);
  state_ = fits ? CmIdState::kEstablished : CmIdState::kClosed;
  answer.qp_number = parameters.qp_num;
  answer.qkey = qkey_;
  const auto connection = connection_;
  guard.unlock();
  if (fits) return connection->accept(nullptr, answer, {});
  (void)connection->reject({});
  return EINVAL;
}

/// False: the id's queue pair has another one.
bool CmId::settle_qkey_locked(uint32_t qkey) {
  if (qkey_ == 0) qkey_ = qkey;
  return qkey_ == qkey && qkey != 0;
}

void CmId::datagram_established(const ConnectParameters& peer) {
  Lock guard(lock_);
  if (state_ != CmIdState::kConnecting) return;
  const bool agreed = settle_qkey_locked(peer.qkey);
  state_ = agreed ? CmIdState::kEstablished : CmIdState::kClosed;
  auto event = agreed ? event_locked(CmEventType::kEstablished, 0)
                      : event_locked(CmEventType::kAddressError, -EINVAL);
  fill(event.param.ud, peer.private_data);
  if (agreed) {
    event.param.ud.ah_attr = path_address(addresses_locked());
    event.param.ud.qp_num = peer.qp_number;
    event.param.ud.qkey = peer.qkey;
  }
  CmEventReservation reservation = take_reservation_locked();
  guard.unlock();
  push(event, std::move(reservation));
}

// Of the accepting side's queue pair the peer's retry_count would be the one, which is not on the
// wire; its own is without effect, as with InfiniBand.
void CmId::note_parameters_locked(const rdma_ucm_conn_param& parameters) {
  clamp_depths(depths_, parameters);
  if (!is_roce()) return;
  retries_.rnr_retry = std::min(parameters.rnr_retry_count, kMostRetries);
  if (state_ != CmIdState::kConnecting) return;
  retries_.retry_count = std::min(parameters.retry_count, kMostRetries);
  if (!retries_.timeout) retries_.timeout = kDefaultAckTimeout;
}

CmQueuePair CmId::queue_pair_locked(uint32_t number) const {
  return {number, retries_, is_roce() ? device_ : nullptr};
}

int CmId::reject(std::span<const std::byte> private_data) {
  Lock guard(lock_);
  if (state_ == CmIdState::kAnswered) {
    // MPA has no third step: the peer sees a connection that ends at once.
    state_ = CmIdState::kClosed;
    const auto answered = std::move(connection_);
    guard.unlock();
    // As in disconnect().
    return answered == nullptr ? 0 : answered->disconnect();
  }
  if (state_ != CmIdState::kRequest) return EINVAL;
  if (service_.datagram && private_data.size() > kSidrReplyDataMax) return EINVAL;
  state_ = CmIdState::kClosed;
  const auto connection = std::move(connection_);
  guard.unlock();
  return connection->reject(private_data);
}

int CmId::disconnect() {
  Lock guard(lock_);
  // There is no connection to end, and no peer to tell.
  if (service_.datagram) return state_ >= CmIdState::kConnecting ? 0 : EINVAL;
  if (!was_established_) {
    return state_ == CmIdState::kRequest || state_ == CmIdState::kClosed ? 0 : EINVAL;
  }
  const bool open = state_ == CmIdState::kEstablished || state_ == CmIdState::kAnswered;
  // The peer has left. Our side of the connection goes on until now.
  const bool answers = is_roce() && state_ == CmIdState::kClosed && !disconnected_;
  if (!open && !answers) return 0;
  const CmIdState before = state_;
  if (open) state_ = CmIdState::kDisconnecting;
  disconnected_ = true;
  const auto connection = connection_;
  guard.unlock();
  int error = 0;
  try {
    // Null while connect() has not returned yet in another thread, which then ends it.
    if (connection != nullptr) error = connection->disconnect();
  } catch (const std::bad_alloc&) {
    guard.lock();
    disconnected_ = false;
    if (state_ == CmIdState::kDisconnecting) state_ = before;
    return ENOMEM;
  }
  if (answers) wait_for_late_packets();
  return error;
}

/// Both sides have disconnected. Applications written for InfiniBand may free what belongs to a
/// connection only after TIMEWAIT_EXIT. TCP watches over late packets, so only the order of events
/// matters; the time is that of the kernel's connection manager for this timeout (ib_cm's
/// cm_convert_to_ms(): 2^(code - 8) ms).
void CmId::wait_for_late_packets() {
  Lock guard(lock_);
  const uint8_t code = std::max<uint8_t>(retries_.timeout.value_or(kDefaultAckTimeout), 8);
  guard.unlock();
  transport_.call_after(*this, uint64_t{1} << (code - 8));
}

void CmId::deadline_passed() {
  Lock guard(lock_);
  if (state_ != CmIdState::kClosed) return;
  const auto event = event_locked(CmEventType::kTimewaitExit, 0);
  CmEventReservation reservation = take_reservation_locked();
  guard.unlock();
  push(event, std::move(reservation));
}

int CmId::notify(uint32_t event) const {
  constexpr uint32_t kCommunicationEstablished = 4;
  const Lock guard(lock_);
  if (state_ < CmIdState::kConnecting) return EINVAL;
  if (!is_roce()) return 0;
  if (event != kCommunicationEstablished || service_.datagram) return EINVAL;
  if (state_ == CmIdState::kEstablished) return EISCONN;
  return state_ == CmIdState::kAccepting ? 0 : EINVAL;
}

void CmId::end_connection(CmConnection& connection, CmIdState state) {
  switch (state) {
    case CmIdState::kRequest:
      connection.reject({});
      break;
    case CmIdState::kConnecting:
    case CmIdState::kAccepting:
      connection.abort();
      break;
    case CmIdState::kEstablished:
    case CmIdState::kAnswered:
      // What was completed to the application must still reach the peer, so no reset.
      connection.disconnect();
      break;
    default:
      // Ending by itself, or over.
      break;
  }
}

void CmId::connection_established(const std::shared_ptr<Connection>&, const sockaddr_storage& local,
                                  const ConnectParameters& peer) {
  if (service_.datagram) return datagram_established(peer);
  Lock guard(lock_);
  if (state_ != CmIdState::kConnecting && state_ != CmIdState::kAccepting) return;
  // With InfiniBand the active side's application has its queue pair to move before it says so.
  const bool answered = is_roce() && state_ == CmIdState::kConnecting;
  state_ = answered ? CmIdState::kAnswered : CmIdState::kEstablished;
  was_established_ = true;
  if (local.ss_family != AF_UNSPEC) {
    local_ = from_tcp(local).value_or(local);
    // Both addresses are of one family.
    if (remote_.ss_family == AF_INET) local_ = unmapped(local_);
  }
  const auto type = answered ? CmEventType::kConnectResponse : CmEventType::kEstablished;
  auto event = event_locked(type, 0);
  fill(event.param.conn, peer);
  if (answered) {
    event.param.conn.qp_num = kCmPeerQpn;
    depths_ = {std::min(depths_.responder_resources, event.param.conn.initiator_depth),
               std::min(depths_.initiator_depth, event.param.conn.responder_resources)};
  }
  CmEventReservation reservation = take_reservation_locked();
  guard.unlock();
  push(event, std::move(reservation));
}

void CmId::finish(CmEventType type, int status, std::span<const std::byte> private_data) {
  Lock guard(lock_);
  if (state_ < CmIdState::kConnecting || state_ >= CmIdState::kClosed) return;
  state_ = CmIdState::kClosed;
  // In the kernel too a peer of datagrams that says no is unreachable; the status tells the two.
  if (service_.datagram) type = CmEventType::kUnreachable;
  auto event = event_locked(type, status);
  if (service_.datagram)
    fill(event.param.ud, private_data);
  else
    fill(event.param.conn, private_data);
  const bool waits = is_roce() && disconnected_;
  CmEventReservation reservation = take_reservation_locked();
  guard.unlock();
  push(event, std::move(reservation));
  if (waits) wait_for_late_packets();
}

void CmId::connection_rejected(const std::shared_ptr<Connection>&, int status,
                               std::span<const std::byte> private_data) {
  finish(CmEventType::kRejected, status, private_data);
}

void CmId::connection_failed(const std::shared_ptr<Connection>&, int status) {
  finish(status == -ETIMEDOUT ? CmEventType::kUnreachable : CmEventType::kConnectError, status, {});
}

void CmId::connection_ended(const std::shared_ptr<Connection>&) {
  finish(CmEventType::kDisconnected, 0, {});
}

void CmId::become_request(std::shared_ptr<CmConnection> request, const sockaddr_storage& local,
                          const sockaddr_storage& remote) {
  CmEventReservation reservation(kConnectionEvents);
  const Lock guard(lock_);  // before the look: see netdevs_changed()
  // A listener on [::] has IPv4 peers too, and they are seen as such.
  local_ = unmapped(from_tcp(local).value_or(local));
  remote_ = unmapped(remote);
  device_ = net_devices()->by_address(ip_of(local_));
  if (device_ == nullptr) device_ = request_scan.devices()->by_address(ip_of(local_));
  connection_ = std::move(request);
  reservation_ = std::move(reservation);
  state_ = CmIdState::kRequest;
}

bool CmId::connection_requested(std::shared_ptr<Connection> request) {
  return requested(request, request->request_parameters(), request->local_address(),
                   request->remote_address());
}

bool CmId::sidr_requested(std::shared_ptr<SidrCall> call) {
  ConnectParameters peer;
  peer.private_data = call->private_data();
  return requested(call, peer, call->local_address(), call->remote_address());
}

bool CmId::requested(std::shared_ptr<CmConnection> request, const ConnectParameters& peer,
                     const sockaddr_storage& local, const sockaddr_storage& remote) {
  Lock guard(lock_);
  if (state_ != CmIdState::kListening || ProcessFaults::injected(FaultKind::kReject)) return false;
  const size_t backlog = backlog_;
  auto event = event_locked(CmEventType::kConnectRequest, 0);
  guard.unlock();

  if (service_.datagram) {
    fill(event.param.ud, peer.private_data);
  } else {
    fill(event.param.conn, peer);
    if (is_roce()) event.param.conn.qp_num = kCmPeerQpn;
  }
  CmEventReservation reservation(1);
  auto id = table_.create([&](uint32_t number) {
    // Its uid comes with ACCEPT; until then it has no events of its own.
    return std::make_shared<CmId>(table_, transport_, number, 0, service_, persona_);
  });
  if (id == nullptr) return false;
  try {
    id->become_request(std::move(request), local, remote);
  } catch (const std::bad_alloc&) {
    table_.remove(id->number());
    throw;
  }
  event.id = id->number();
  if (id->addresses().device != nullptr &&
      CmEventQueue::push_request(events_, CmEvent{event, id}, std::move(reservation), backlog)) {
    return true;
  }
  table_.remove(id->number());
  id->destroy();
  return false;
}

}  // namespace uwarp
