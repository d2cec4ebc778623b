// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/datagram_queue_pair.h"

#include <bit>
#include <cerrno>
#include <new>
#include <optional>
#include <utility>

#include "base/mutex.h"

namespace uwarp {

namespace {

/// What adapters for RoCE say in the place of the service level, and UCX reads: which header stands
/// before the payload, that of IPv6 or of IPv4 (bits 0 to 2), and that UDP was behind it (bit 3).
uint8_t packet_type(std::span<const std::byte> route) {
  return static_cast<uint8_t>(route[0]) >> 4 == 6 ? 0x9 : 0xA;
}

/// Why no datagram can be made of it.
std::optional<WcStatus> refusal(const SendWqe& wqe, uint32_t max_bytes) {
  if (!DatagramQueuePair::has_target(wqe.opcode)) return WcStatus::kLocQpOpErr;
  if (wqe.length_bytes > max_bytes) return WcStatus::kLocLenErr;
  return std::nullopt;
}

}  // namespace

DatagramQueuePair::DatagramQueuePair(const QpConfig& config)
    : config_(config),
      slot_(*config.slot),
      sends_(
          {config.max_send_wr, config.max_send_sge, config.max_inline_bytes, config.signal_all,
           config.extensions, true, config.atomics, config.max_read_sge, config.max_message_bytes},
          *config.send_cq),
      target_mask_(std::bit_ceil(uint64_t{std::max(config.max_send_wr, 1u)}) - 1),
      targets_(std::make_unique<DatagramTarget[]>(target_mask_ + 1)),
      own_receives_(config.shares_receives() ? 0 : config.max_recv_wr, config.max_recv_sge),
      receives_(config.srq != nullptr ? config.srq : &own_receives_),
      grace_(config.srq == nullptr) {
  sends_.trace(config.trace, config.number.value);
  own_receives_.trace(config.trace, config.number.value);
}

// --- Sending

int DatagramQueuePair::check_send(const SendRequest& request) const {
  const SendOpcode opcode = request.opcode;
  if (!has_target(opcode) && !is_write(opcode) && !awaits_answer(opcode)) return EINVAL;
  return sends_.check(request);
}

int DatagramQueuePair::admits_locked(std::span<const SendRequest> requests) {
  for (const SendRequest& request : requests)
    if (int error = check_send(request)) return error;
  if (state() == QpState::kReset || state() == QpState::kInit) return EINVAL;
  return sends_.has_space_locked(requests.size()) ? 0 : ENOMEM;
}

int DatagramQueuePair::post_send_locked(const SendRequest& request, const DatagramTarget& target) {
  if (int error = check_send(request)) return error;
  const QpState now = state();
  if (now == QpState::kReset || now == QpState::kInit) return EINVAL;
  const uint64_t position = sends_.posted();
  if (int error = sends_.push_locked(request)) return error;
  slot_.transmit.posted.set(position + 1);
  if (now == QpState::kErr || now == QpState::kSqe) [[unlikely]] {
    flush_sends_locked();
    return 0;
  }
  if (sends_.started() != position || !may_send() || !send_one(position, target)) [[unlikely]]
    targets_[position & target_mask_] = target;
  return 0;
}

// False: there is no room.
bool DatagramQueuePair::send_one(uint64_t position, const DatagramTarget& target) {
  const SendWqe& wqe = sends_.at(position);
  if (const auto why = refusal(wqe, config_.max_datagram_bytes)) [[unlikely]]
    return fail_send(position, *why);
  if (!sends_.gather(position, *config_.regions, *config_.domain, 0, payload_)) [[unlikely]]
    return fail_send(position, WcStatus::kLocProtErr);
  const DatagramHeader header = header_of(wqe, target);
  const DatagramPath::Taken taken = config_.script == nullptr
                                        ? target.path->append(header, payload_)
                                        : send_with_faults(position, header, target);
  switch (taken) {
    case DatagramPath::Taken::kFull:
      blocked_on_ = target.path;
      return false;
    case DatagramPath::Taken::kFault:
      return fail_send(position, WcStatus::kLocProtErr);
    case DatagramPath::Taken::kDropped:
      slot_.transmit.dropped.add(1);
      break;
    case DatagramPath::Taken::kYes:
      slot_.transmit.bytes.add(wqe.length_bytes);
      slot_.transmit.count(MessageKind::kSend);
      break;
  }
  if (sends_.started() == position) complete_send(position, WcStatus::kSuccess);
  return true;
}

// Where it says kDropped the request may have failed already.
DatagramPath::Taken DatagramQueuePair::send_with_faults(uint64_t position,
                                                        const DatagramHeader& header,
                                                        const DatagramTarget& target) {
  const FaultVerdict& verdict =
      config_.script->judge_request(position, FaultMessage::kSend, header.payload_bytes);
  if (config_.script->send_held()) return DatagramPath::Taken::kDropped;  // the port is down
  std::unique_ptr<Postponed> behind;
  if (postponed_ != nullptr && postponed_->path == target.path) behind = std::move(postponed_);
  DatagramPath::Taken taken = DatagramPath::Taken::kDropped;
  switch (verdict.act) {
    case FaultVerdict::Act::kLose:
      break;
    case FaultVerdict::Act::kFail:
      fail_send(position, static_cast<WcStatus>(verdict.status));
      break;
    case FaultVerdict::Act::kReorder:
      postponed_.reset(new (std::nothrow) Postponed);
      if (postponed_ == nullptr) break;
      postponed_->path = target.path;
      postponed_->header = header;
      if (!payload_.copy_out(0, postponed_->payload, header.payload_bytes))
        taken = DatagramPath::Taken::kFault;
      break;
    case FaultVerdict::Act::kDuplicate:
      (void)target.path->append(header, payload_);
      [[fallthrough]];
    default:
      taken = target.path->append(header, payload_);
  }
  if (behind != nullptr) {
    BufferList payload;
    payload.append(behind->payload, behind->header.payload_bytes);
    (void)target.path->append(behind->header, payload);
  }
  return taken;
}

// What follows is flushed until the application says that it goes on (InfiniBand specification,
// 10.3.1). True: it needs no room.
bool DatagramQueuePair::fail_send(uint64_t position, WcStatus status) {
  complete_send(position, status);
  move_to(QpState::kSqe);
  flush_sends_locked();
  return true;
}

DatagramHeader DatagramQueuePair::header_of(const SendWqe& wqe,
                                            const DatagramTarget& target) const {
  DatagramHeader header;
  header.payload_bytes = static_cast<uint16_t>(wqe.length_bytes);
  if (wqe.opcode == SendOpcode::kSendWithImm) {
    header.flags = DatagramHeader::kImmediate;
    header.immediate = wqe.imm_or_invalidate;
  }
  if ((wqe.flags & kSendSolicited) != 0) header.flags |= DatagramHeader::kSolicited;
  header.destination = target.number;
  header.source = config_.number;
  header.qkey =
      (target.qkey & kControlledQkey) != 0 ? qkey_.load(std::memory_order_relaxed) : target.qkey;
  header.traffic_class = target.traffic_class;
  header.hop_limit = target.hop_limit;
  return header;
}

void DatagramQueuePair::complete_send(uint64_t position, WcStatus status) {
  const SendWqe& wqe = sends_.at(position);
  const bool wanted = status != WcStatus::kSuccess || sends_.signaled(wqe);
  WorkCompletion completion{};
  completion.wr_id = wqe.wr_id;
  completion.status = status;
  completion.opcode = completion_opcode(wqe.opcode);
  completion.byte_len = wqe.length_bytes;
  completion.qp_num = config_.number.value;
  if (config_.trace != nullptr) [[unlikely]]
    completion.src_qp = static_cast<uint32_t>(position);
  sends_.start_one();
  std::atomic<uint64_t>* const index = sends_.retire_one(wanted);
  slot_.transmit.retired.set(position + 1);
  if (wanted && !config_.send_cq->push(completion, false, index)) [[unlikely]]
    overrun();
  sends_.note_completed();
}

// A completion is lost: the queue pair goes no further. Called under one of its locks, so the next
// call flushes what waits.
void DatagramQueuePair::overrun() {
  QpState now = state();
  do {
    if (now == QpState::kErr || now == QpState::kReset) return;
  } while (!state_.compare_exchange_weak(now, QpState::kErr, std::memory_order_acq_rel));
  show_state();
  if (config_.listener != nullptr) config_.listener->qp_event(QpEvent::kFatal);
}

void DatagramQueuePair::flush_sends_locked() {
  blocked_on_ = nullptr;
  while (sends_.waiting()) {
    const uint64_t position = sends_.started();
    targets_[position & target_mask_].path = nullptr;
    slot_.transmit.flushed.add(1);
    complete_send(position, WcStatus::kWrFlushErr);
  }
}

// --- Receiving

int DatagramQueuePair::post_recv(uint64_t wr_id, std::span<const Sge> sges) {
  if (config_.srq != nullptr || state() == QpState::kReset) return EINVAL;
  if (int error = own_receives_.post(wr_id, sges)) return error;
  if (!grace_.load(std::memory_order_relaxed)) [[unlikely]]
    grace_.store(true, std::memory_order_relaxed);
  waiters_.posted();
  if (state() == QpState::kErr) [[unlikely]] {
    const Lock lock(receive_lock_);
    if (state() == QpState::kErr) flush_receives_locked();  // and not RESET by now
  }
  return 0;
}

bool DatagramQueuePair::wait_for_receive(std::shared_ptr<PendingDatagram> waiter) {
  return waiters_.add(std::move(waiter), [&] { return !own_receives_.empty() || !may_receive(); });
}

// kLocLenErr: the receive is too short, and nothing was placed.
WcStatus DatagramQueuePair::place(const RecvWqe& receive, const DatagramHeader& header,
                                  std::span<const std::byte> route, const std::byte* payload) {
  sink_.clear();
  for (const Sge& sge : std::span(receive.sges, receive.sge_count))
    if (!append_local(sink_, sge, *config_.regions, *config_.receive_domain(), kAccessLocalWrite))
      return WcStatus::kLocProtErr;
  if (sink_.length_bytes() < kRouteHeaderBytes + header.payload_bytes) return WcStatus::kLocLenErr;
  const bool placed = sink_.copy_in(0, route.data(), route.size()) &&
                      sink_.copy_in(kRouteHeaderBytes, payload, header.payload_bytes);
  return placed ? WcStatus::kSuccess : WcStatus::kLocProtErr;
}

DatagramQueuePair::Delivery DatagramQueuePair::deliver(const DatagramHeader& header,
                                                       std::span<const std::byte> route,
                                                       const std::byte* payload) {
  const Lock lock(receive_lock_);
  if (!may_receive() || header.qkey != qkey_.load(std::memory_order_relaxed)) {
    slot_.receive.refused.add(1);
    return Delivery::kDropped;
  }
  return config_.script == nullptr ? take(header, route, payload, WcStatus::kSuccess)
                                   : take_with_faults(header, route, payload);
}

DatagramQueuePair::Delivery DatagramQueuePair::take_with_faults(const DatagramHeader& header,
                                                                std::span<const std::byte> route,
                                                                const std::byte* payload) {
  const FaultVerdict& verdict = config_.script->judge_arrival(arrivals_);
  WcStatus status = WcStatus::kSuccess;
  switch (verdict.act) {
    case FaultVerdict::Act::kLose:
    case FaultVerdict::Act::kNoReceive:
      ++arrivals_;
      slot_.receive.dropped.add(1);
      return Delivery::kDropped;
    case FaultVerdict::Act::kFail:
      status = static_cast<WcStatus>(verdict.status);
      break;
    case FaultVerdict::Act::kDuplicate:
      (void)take(header, route, payload, WcStatus::kSuccess);
      break;
    default:
      break;
  }
  const Delivery delivery = take(header, route, payload, status);
  // What finds no receive comes again.
  if (delivery != Delivery::kNoReceive) ++arrivals_;
  return delivery;
}

// As with mlx5 and rxe a datagram that is longer than its receive is dropped, and the receive
// stays: a peer must not use up receives by what does not fit.
DatagramQueuePair::Delivery DatagramQueuePair::take(const DatagramHeader& header,
                                                    std::span<const std::byte> route,
                                                    const std::byte* payload, WcStatus status) {
  RecvWqe receive;
  if (kept_) [[unlikely]] {
    receive = *std::exchange(kept_, std::nullopt);
  } else if (!receives_->take(receive, token_)) {
    receives_->cancel(token_);  // others wait for it, by claim_grace()
    return Delivery::kNoReceive;
  }
  WorkCompletion completion{};
  completion.status =
      status == WcStatus::kSuccess ? place(receive, header, route, payload) : status;
  if (completion.status == WcStatus::kLocLenErr && status == WcStatus::kSuccess) {
    kept_ = receive;
    slot_.receive.dropped.add(1);
    return Delivery::kDropped;
  }
  completion.byte_len = kRouteHeaderBytes + header.payload_bytes;
  completion.src_qp = header.source.value;
  completion.sl = packet_type(route);
  completion.wc_flags = kWcGrh;
  if ((header.flags & DatagramHeader::kImmediate) != 0) {
    completion.wc_flags |= kWcWithImm;
    completion.imm_or_invalidated = header.immediate;
  }
  slot_.receive.bytes.add(header.payload_bytes);
  slot_.receive.count(MessageKind::kSend, 1);
  complete_receive(receive, completion, (header.flags & DatagramHeader::kSolicited) != 0);
  return Delivery::kTaken;
}

void DatagramQueuePair::complete_receive(const RecvWqe& receive, WorkCompletion completion,
                                         bool solicited) {
  completion.wr_id = receive.wr_id;
  completion.opcode = WcOpcode::kRecv;
  completion.qp_num = config_.number.value;
  if (!config_.recv_cq->push(completion, solicited)) [[unlikely]]
    overrun();
}

void DatagramQueuePair::flush_receives_locked() {
  const auto flush = [this](const RecvWqe& receive) {
    slot_.receive.flushed.add(1);
    WorkCompletion completion{};
    completion.status = WcStatus::kWrFlushErr;
    complete_receive(receive, completion, true);
  };
  // One of a shared queue, too: it is in that no more.
  if (kept_) flush(*std::exchange(kept_, std::nullopt));
  if (config_.srq != nullptr) return;
  RecvWqe receive;
  while (receives_->drain(receive.wr_id, receive.position)) flush(receive);
}

// --- States

void DatagramQueuePair::move_to(QpState state) {
  QpState now = this->state();
  while (now != QpState::kErr &&
         !state_.compare_exchange_weak(now, state, std::memory_order_acq_rel)) {
  }
  show_state();
}

void DatagramQueuePair::to_error() {
  {
    const Exclusive exclusive(*this);
    state_.store(QpState::kErr, std::memory_order_release);
    show_state();
    flush_sends_locked();
    flush_receives_locked();
  }
  waiters_.notify_all();
}

void DatagramQueuePair::to_reset() {
  {
    const Exclusive exclusive(*this);
    state_.store(QpState::kReset, std::memory_order_release);
    show_state();
    blocked_on_ = nullptr;
    for (uint64_t at = sends_.started(); at != sends_.posted(); ++at)
      targets_[at & target_mask_].path = nullptr;
    kept_.reset();
  }
  waiters_.notify_all();
  // Nothing is posted or delivered in RESET.
  sends_.reset();
  if (config_.srq == nullptr) own_receives_.reset();
  const uint32_t number = config_.number.value;
  config_.send_cq->drop(number, CompletionQueue::Drop::kAll);
  if (config_.recv_cq != config_.send_cq)
    config_.recv_cq->drop(number, CompletionQueue::Drop::kAll);
}

}  // namespace uwarp
