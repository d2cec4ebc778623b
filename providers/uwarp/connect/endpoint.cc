// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The states of a queue pair as applications move it, and what hangs on them.
#include "connect/endpoint.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/settings.h"
#include "base/tuning.h"
#include "connect/connect_context.h"
#include "connect/rendezvous.h"
#include "connect/rendezvous_port.h"
#include "os/clock.h"
#include "stream/poller.h"

namespace uwarp {
namespace {

/// Local ACK timeout of InfiniBand: 4.096 us * 2^code; 0 is infinite.
uint64_t ack_timeout_ns(uint8_t code) { return code == 0 ? 0 : uint64_t{4096} << code; }

/// RNR NAK timer of InfiniBand in units of 10 us (InfiniBand specification, table 45).
uint64_t rnr_timer_ns(uint8_t code) {
  static constexpr uint32_t kUnits[32] = {65536, 1,    2,    3,     4,     6,     8,     12,
                                          16,    24,   32,   48,    64,    96,    128,   192,
                                          256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                          4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return uint64_t{kUnits[code & 31]} * 10'000;
}

SlotAddress slot_address(const sockaddr_storage& address) {
  SlotAddress shown;
  if (address_length(address) == 0) return shown;
  const IpAddress ip = ip_of(address);
  std::copy_n(ip.bytes().data(), IpAddress::kBytes, shown.bytes);
  shown.port = port_of(address);
  return shown;
}

QpConfig with_waiter(QpConfig config, ReceiveWaiter* waiter) {
  if (config.shares_receives()) config.receive_waiter = waiter;
  return config;
}

}  // namespace

// --- Shared receive queues

bool PromisedStreams::note(std::shared_ptr<Endpoint>& endpoint) {
  PromisedStreams* const list = thread_own<Current>().list;
  if (list == nullptr || list->count_ == kCapacity) return false;
  list->endpoints_[list->count_++] = std::move(endpoint);
  return true;
}

void PromisedStreams::resume() {
  leave();
  for (size_t i = 0; i < count_; ++i) endpoints_[i]->resume();
  count_ = 0;
}

// A list of large messages is posted for milliseconds without a poll. Without the look the helper
// thread would assume that no thread progresses, and take turns of the core on which the peer
// receives.
void Endpoint::receive_after_sending(uint64_t bytes) {
  context_.poller.poll_after_sending(*qp_.config().send_cq, stream_.pace().waiting_bytes() + bytes);
}

// Locks of other queue pairs may be held: a stream that leaves the line passes its promise on.
void Endpoint::receive_posted() {
  auto self = std::static_pointer_cast<Endpoint>(weak_from_this().lock());
  if (self != nullptr && !PromisedStreams::note(self)) context_.progress.revisit(*this);
}

Endpoint::Endpoint(ConnectContext& context, const NetDevice& device, QpNumberLease place,
                   const QpConfig& config)
    : AnyEndpoint(std::move(place)),
      context_(context),
      addresses_(device.gids),
      qp_(with_waiter(place_.complete(config), this)),
      stream_(qp_) {
  place_.show(config, device);
}

Endpoint::~Endpoint() { destroy(); }

void AnyEndpoint::name_queues(uint32_t send_queue, uint32_t receive_queue) {
  const Lock guard(mutex_);
  place_.name_queues(send_queue, receive_queue);
}

void Endpoint::describe_connection(const StreamConfig& config, Connection& connection) {
  QueuePairSlot& slot = place_.slot();
  const SlotChange change(slot.head);
  slot.connected_ns = wall_clock_ns();
  slot.local = slot_address(connection.local_address_locked());
  slot.peer = slot_address(connection.remote_address());
  slot.mulpdu = config.mulpdu;
  slot.ord = config.ord;
  slot.ird = config.ird;
  slot.flags &= QueuePairSlot::kSharedReceive;
  if (!config.silent_fin) slot.flags |= QueuePairSlot::kRdmaCm;
  if (config.crc) slot.flags |= QueuePairSlot::kCrc;
  if (!peer_identity_.empty()) slot.flags |= QueuePairSlot::kTls;
  const size_t shown = std::min(peer_identity_.size(), sizeof slot.identity - 1);
  std::ranges::fill(slot.identity, '\0');
  peer_identity_.copy(slot.identity, shown);
  trace_carrier(false);
}

void Endpoint::describe_carrier(bool shared_memory) {
  const Lock guard(mutex_);
  QueuePairSlot& slot = place_.slot();
  const SlotChange change(slot.head);
  slot.flags &= ~uint32_t{QueuePairSlot::kSharedMemory};
  if (shared_memory) slot.flags |= QueuePairSlot::kSharedMemory;
  trace_carrier(shared_memory);
}

void Endpoint::trace_carrier(bool shared_memory) {
  if (context_.trace == nullptr) return;
  TraceStep step;
  step.kind = TraceStep::Kind::kCarried;
  step.reported = shared_memory;
  step.queue_pair = number().value;
  context_.trace->note(step);
}

Result<std::shared_ptr<Endpoint>> Endpoint::create(ConnectContext& context, const NetDevice& device,
                                                   const QpConfig& config) {
  auto place = QpNumberLease::reserve(context, device);
  if (!place) return Error{place.error()};
  std::shared_ptr<Endpoint> endpoint(new Endpoint(context, device, std::move(*place), config));
  context.endpoints.enter(endpoint->number(), endpoint);
  return endpoint;
}

// --- States

// The core is in RTS as soon as a stream runs; to an application that connects by itself the queue
// pair is where it has been moved to.
QpState Endpoint::state_locked() const {
  // The event of a failure is told a moment before the core gets there.
  const QpState core = qp_.flush_due() ? QpState::kErr : qp_.state();
  if (core == QpState::kErr || core == QpState::kSqe || core == QpState::kSqd) return core;
  return cm_owned_ ? core : verbs_state_;
}

ibv_qp_attr AnyEndpoint::attributes() const {
  const Lock guard(mutex_);
  ibv_qp_attr all = attributes_;
  all.qp_state = all.cur_qp_state = static_cast<ibv_qp_state>(state_locked());
  return all;
}

void Endpoint::set_retries(const RetryAttributes& retries) {
  const Lock guard(mutex_);
  attributes_.timeout = retries.timeout.value_or(attributes_.timeout);
  attributes_.retry_cnt = retries.retry_count.value_or(attributes_.retry_cnt);
  attributes_.rnr_retry = retries.rnr_retry.value_or(attributes_.rnr_retry);
}

int Endpoint::modify(const ibv_qp_attr& attributes, int mask) {
  if (!context_.alive()) return EINVAL;
  const int error = change(attributes, mask);
  if (error == 0 && (mask & IBV_QP_ACCESS_FLAGS) != 0) stream_.await_peer();
  return error;
}

int Endpoint::change(const ibv_qp_attr& attributes, int mask) {
  mask = meaningful_mask(qp_.config().transport, mask);
  Lock lock(mutex_);
  if (destroyed_) return EINVAL;
  const QpState from = state_locked();
  const QpState to = (mask & IBV_QP_STATE) != 0 ? static_cast<QpState>(attributes.qp_state) : from;
  const QpToChange before{.transport = qp_.config().transport,
                          .state = from,
                          .is_rnic = settings().persona != Persona::kRoce,
                          .is_cms = cm_owned_,
                          .may_be_cms = rendezvous_ == nullptr && !unreliable()};
  const QpChange change = change_of(before, attributes, mask);
  if (change == QpChange::kRefuse) return EINVAL;
  if (change == QpChange::kIgnore) return 0;
  if (to == QpState::kErr || to == QpState::kReset) {
    if (to == QpState::kErr && from != QpState::kErr) {
      lock.unlock();
      stream_.take_arrived();
      lock.lock();
      if (destroyed_) return EINVAL;
    }
    to_error_or_reset(lock, to);
    return 0;
  }
  if (change == QpChange::kMakeForCm) return modify_for_cm(attributes, mask, to, lock);
  if (int error = check_address_locked(attributes, mask)) return error;
  merge_attributes(attributes_, attributes, mask);
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) qp_.set_remote_access(attributes_.qp_access_flags);
  if (from == to) return 0;
  if (to == QpState::kInit) return to_init(lock);
  if (to == QpState::kRtr) to_rtr(lock);
  if (to == QpState::kRts) to_rts(lock);
  if (to == QpState::kSqd) to_sqd(lock, (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0);
  return 0;
}

int Endpoint::modify_for_cm(const ibv_qp_attr& attributes, int mask, QpState to,
                            Lock<Mutex>& lock) {
  cm_owned_ = true;
  const QpState core = qp_.state();
  bool resumes = core == QpState::kSqd && to == QpState::kRts;
  // librdmacm's InfiniBand branch: the attributes are real ones, but the connection may stand
  // already, or comes by accept() and connect().
  if (!is_cm_mask(to, mask)) {
    if (int error = check_address_locked(attributes, mask)) return error;
    // To be connected by the peer's number, and not by rdma_cm, it would have come to INIT with all
    // that the manual asks for. Nothing would ever connect it now.
    const bool names_peer = (mask & IBV_QP_DEST_QPN) != 0 && !names_cm_peer(attributes, mask);
    if (names_peer && connection_ == nullptr) return EINVAL;
    merge_attributes(attributes_, attributes, mask);
    if ((mask & IBV_QP_ACCESS_FLAGS) != 0) qp_.set_remote_access(attributes_.qp_access_flags);
    if (core == QpState::kInit && to == QpState::kRtr) qp_.to_rtr();
    if (core == QpState::kRtr && to == QpState::kRts) resumes = true;
  }
  if (core == QpState::kReset) return to_init(lock);
  if (!resumes) return 0;
  qp_.to_rts();
  lock.unlock();
  pump_at_once();  // what was posted meanwhile
  return 0;
}

int Endpoint::init_for_cm() {
  Lock lock(mutex_);
  cm_owned_ = true;
  return to_init(lock);
}

int Endpoint::check_address_locked(const ibv_qp_attr& attributes, int mask) const {
  if ((mask & IBV_QP_AV) == 0) return 0;
  if (attributes.ah_attr.is_global == 0) return EINVAL;
  const ibv_global_route& route = attributes.ah_attr.grh;
  if (route.sgid_index >= addresses_.size()) return ENODATA;
  return IpAddress::from_gid(route.dgid.raw).is_any() ? EINVAL : 0;
}

int Endpoint::to_init(Lock<Mutex>& lock) {
  verbs_state_ = QpState::kInit;
  qp_.to_init();
  if (cm_owned_) return 0;
  // Without rdma_cm peers can call from now on; calls are held until RTR.
  lock.unlock();
  const int error = place_.become_callable();
  if (error == 0) return 0;
  lock.lock();
  to_error_or_reset(lock, QpState::kReset);
  return error;
}

RendezvousTerms Endpoint::terms_locked() const {
  RendezvousTerms terms;
  const ibv_global_route& route = attributes_.ah_attr.grh;
  terms.own_address = addresses_[route.sgid_index];
  terms.peer_address = IpAddress::from_gid(route.dgid.raw, terms.own_address.scope_id());
  terms.own = number();
  terms.peer = Qpn{attributes_.dest_qp_num};
  terms.sq_psn = attributes_.sq_psn;
  terms.rq_psn = attributes_.rq_psn;
  terms.ord = attributes_.max_rd_atomic;
  terms.ird = attributes_.max_dest_rd_atomic;
  terms.transport = qp_.config().transport;
  terms.timeout_ns = ack_timeout_ns(attributes_.timeout) * (attributes_.retry_cnt + 1u);
  if (route.traffic_class != 0) terms.traffic_class = route.traffic_class;
  return terms;
}

void Endpoint::to_rtr(Lock<Mutex>& lock) {
  // First what may fail.
  rendezvous_ = std::make_shared<Rendezvous>(
      context_, std::static_pointer_cast<Endpoint>(shared_from_this()), terms_locked());
  verbs_state_ = QpState::kRtr;
  qp_.to_rtr();
  qp_.expect_uwarp();
  const auto rendezvous = rendezvous_;
  const auto held = std::exchange(held_, {});
  lock.unlock();
  for (const PendingCall& one : held) rendezvous->answer(one.request, one.call);
}

void Endpoint::to_rts(Lock<Mutex>& lock) {
  const bool resumed = verbs_state_ == QpState::kSqd;
  verbs_state_ = QpState::kRts;
  // Also where a stream that was answered in RTR has moved the core already.
  qp_.to_rts();
  if (stream_.attached()) qp_.set_ord(std::min<uint16_t>(peer_depth_, attributes_.max_rd_atomic));
  const auto rendezvous = rendezvous_;
  const RendezvousTerms terms = terms_locked();
  lock.unlock();
  if (rendezvous != nullptr && !resumed) rendezvous->dial(terms);
  pump_at_once();
}

void Endpoint::to_sqd(Lock<Mutex>& lock, bool notify_named) {
  verbs_state_ = QpState::kSqd;
  qp_.to_sqd(notify_named && attributes_.en_sqd_async_notify != 0);
  if (!qp_.config().acknowledged) return;
  lock.unlock();
  pump_at_once();  // what drains is to be acknowledged
}

// Ends the rendezvous, held calls and the connection of this queue pair. Gives the lock up
// meanwhile: the queue pair may be destroyed then, and what it was made of be gone.
void Endpoint::cut_off(Lock<Mutex>& lock) {
  const auto rendezvous = std::exchange(rendezvous_, nullptr);
  const auto held = std::exchange(held_, {});
  lock.unlock();
  if (stream_.attached()) stream_.transmit();  // what waits for more
  if (rendezvous != nullptr) rendezvous->stop();
  for (const PendingCall& one : held) refuse(*one.request, RendezvousVerdict::kNoSuchQp);
  lock.lock();
  const auto connection = connection_;
  lock.unlock();
  if (connection != nullptr) connection->endpoint_gone();
  lock.lock();
}

void Endpoint::to_error_or_reset(Lock<Mutex>& lock, QpState to) {
  verbs_state_ = to;
  if (to == QpState::kReset) {
    attributes_ = initial_attributes();
    cm_owned_ = false;
  }
  shut_out_peer(lock);
  cut_off(lock);
  if (destroyed_) return;
  if (to == QpState::kReset) return qp_.to_reset();
  if (qp_.state() != QpState::kErr)
    log_event("qp %#x: moved to ERR by the application", number().value);
  qp_.to_error();
}

// Threads that serve others may need the lock.
void Endpoint::shut_out_peer(Lock<Mutex>& lock) {
  lock.unlock();
  stream_.shut_out_peer();
  lock.lock();
}

void Endpoint::destroy() {
  if (!context_.alive()) return;
  Lock lock(mutex_);
  if (std::exchange(destroyed_, true)) return;
  shut_out_peer(lock);
  cut_off(lock);
  lock.unlock();
  // Gives up its place at a shared receive queue, which may be destroyed before this object is.
  qp_.retire();
  context_.endpoints.leave(number());
  place_.give_back();
}

void Endpoint::rendezvous_failed() {
  Lock lock(mutex_);
  if (destroyed_) return;
  if (unreliable()) {
    lock.unlock();
    return qp_.lose_sends();
  }
  verbs_state_ = QpState::kErr;
  cut_off(lock);
  if (destroyed_) return;
  qp_.to_error(WcStatus::kRetryExcErr);
}

namespace {

/// A call waits below RTR no longer, and is made anew: so its caller can tell an application that
/// does not go on from one whose thread has had no processor.
constexpr uint32_t kLongestHoldMs = 2000;

}  // namespace

void Endpoint::answer(std::shared_ptr<Connection> request, const RendezvousCall& call) {
  Lock lock(mutex_);
  const QpState state = state_locked();
  if (destroyed_ || cm_owned_ || state == QpState::kErr) {
    lock.unlock();
    return refuse(*request, RendezvousVerdict::kNoSuchQp);
  }
  if (const auto rendezvous = rendezvous_) {
    lock.unlock();
    return rendezvous->answer(std::move(request), call);
  }
  held_.reserve(kMaxPendingCalls);  // or throws: the caller drops the call then
  std::shared_ptr<Connection> displaced;
  if (held_.size() >= kMaxPendingCalls) {
    displaced = std::move(held_.front().request);
    held_.erase(held_.begin());
  }
  held_.push_back({request, call});
  lock.unlock();
  request->answer_within_ms(kLongestHoldMs);
  if (displaced != nullptr) refuse(*displaced, RendezvousVerdict::kTooMany);
}

void Endpoint::pump_at_once() {
  std::shared_ptr<Rendezvous> rendezvous;
  {
    // A stream that is opened meanwhile is seen here, or sees what was posted.
    const Lock guard(mutex_);
    if (!stream_.attached()) rendezvous = rendezvous_;
  }
  if (stream_.attached())
    stream_.transmit();
  else if (rendezvous != nullptr && qp_.transmitter().wanted())
    rendezvous->work_waiting();
}

void Endpoint::script_deadline_passed() {
  const uint32_t released = qp_.script()->release(now_ns());
  if ((released & FaultScript::kReceive) != 0) resume();
  // Also when nothing is over yet: the turn that ends asks for the next deadline.
  stream_.transmit();
}

// --- For Connection

int Endpoint::claim(const std::shared_ptr<Connection>& connection, bool rendezvous) {
  const Lock guard(mutex_);
  if (destroyed_ || connection_ != nullptr) return EINVAL;
  const QpState state = qp_.state();
  if (state != QpState::kInit && state != QpState::kRtr && state != QpState::kRts) return EINVAL;
  if (!rendezvous) {
    if (rendezvous_ != nullptr || unreliable()) return EINVAL;
    cm_owned_ = true;
  }
  connection_ = connection;
  return 0;
}

void Endpoint::release(const Connection& connection) {
  std::shared_ptr<Connection> released;  // destroyed after the lock is released
  const Lock guard(mutex_);
  if (connection_.get() == &connection) released.swap(connection_);
}

bool Endpoint::open_stream(Connection& connection, StreamConfig config, const Stream::Ends& ends) {
  const Lock guard(mutex_);
  if (destroyed_ || connection_.get() != &connection) return false;
  peer_depth_ = config.ord;
  if (!cm_owned_ && verbs_state_ == QpState::kRts)
    config.ord = std::min<uint16_t>(config.ord, attributes_.max_rd_atomic);
  const AdapterProfile& most = settings().adapter;
  config.ord = std::min<uint16_t>(config.ord, most.max_qp_init_rd_atom);
  config.ird = std::min(config.ird, most.max_read_depth());
  config.read_depth = std::min<uint16_t>(config.read_depth, kMaxReadDepth);
  const QpConfig& parts = qp_.config();
  const bool sends_only = parts.transport == Transport::kXrcSend;
  PollGroup& first = PollGroup::of(sends_only ? *parts.send_cq : *parts.recv_cq);
  PollGroup* second = nullptr;
  if (sends_only)
    second = &context_.xrc_senders;
  else if (parts.send_cq != parts.recv_cq && parts.sink == nullptr)
    second = &PollGroup::of(*parts.send_cq);
  peer_identity_ = connection.peer_identity_locked();  // may throw
  if (!qp_.start_stream(config)) return false;
  try {
    stream_.attach(ends, first, second);
  } catch (const std::bad_alloc&) {
    qp_.detach_stream();
    throw;
  }
  // iWARP's rdma_cm sets no depths with ibv_modify_qp: they are what was negotiated.
  if (cm_owned_ && settings().persona != Persona::kRoce) {
    attributes_.max_rd_atomic = static_cast<uint8_t>(config.ord);
    attributes_.max_dest_rd_atomic =
        static_cast<uint8_t>(std::min<uint32_t>(config.ird, most.max_qp_rd_atom));
  }
  describe_connection(config, connection);
  return true;
}

void Endpoint::close_stream() {
  const Lock guard(mutex_);
  if (!stream_.attached()) return;
  stream_.detach();
  qp_.detach_stream();
  const SlotChange change(place_.slot().head);
  place_.slot().connected_ns = 0;
}

void Endpoint::follow_receives() {
  const Lock guard(mutex_);
  CompletionQueue* completions;
  {
    const auto receive = qp_.receive_side().lock_exclusive();
    completions = qp_.receiver().messages().named_completions();
  }
  if (completions != nullptr) stream_.join(PollGroup::of(*completions));
}

bool Endpoint::complete_deferred() {
  const auto receive = qp_.receive_side().lock_exclusive();
  return qp_.receiver().complete_deferred() == kRxNothing;
}

void Endpoint::forget(const XrcQueue& queue) {
  const Lock guard(mutex_);
  {
    const QueuePair::Exclusive exclusive = qp_.lock_exclusive();
    qp_.receiver().messages().forget(queue);
  }
  PollGroup* const group = PollGroup::find(*queue.completions);
  if (group == nullptr || qp_.config().xrc->completes_to(*queue.completions)) return;
  stream_.leave(*group);
  const auto receive = qp_.receive_side().lock_exclusive();
  qp_.receiver().messages().report_queue();
}

// Decided by the end that has no buffer: the sender's counts of retries are not on the wire. With
// rdma_cm that is exact, because rnr_retry_count of rdma_connect() and rdma_accept() is meant for
// the peer's Sends. A queue pair that only receives may stay in RTR, and then was never given a
// count of its own; one of XRC is not given any by ibv_modify_qp.
uint64_t Endpoint::rnr_deadline_ns() const {
  if (qp_.config().sink != nullptr) return 0;  // it ends the hold itself
  if (unreliable()) return now_ns() + tuning::kSoleReceiverGraceNs;
  const Lock guard(mutex_);
  const bool xrc = qp_.config().transport == Transport::kXrcReceive && !cm_owned_;
  if (settings().persona != Persona::kRoce || state_locked() == QpState::kRtr || xrc)
    return now_ns() + settings().rnr_timeout_ms * kNsPerMs;
  constexpr uint8_t kWithoutEnd = 7;
  if (attributes_.rnr_retry == kWithoutEnd) return 0;
  const uint64_t tries = std::max<uint8_t>(attributes_.rnr_retry, 1);
  return now_ns() + rnr_timer_ns(attributes_.min_rnr_timer) * tries;
}

uint32_t Endpoint::peer_timeout_ms() const {
  const Lock guard(mutex_);
  const uint64_t total_ns = ack_timeout_ns(attributes_.timeout) * (attributes_.retry_cnt + 1u);
  return static_cast<uint32_t>(std::min<uint64_t>(total_ns / kNsPerMs, UINT32_MAX));
}

}  // namespace uwarp
