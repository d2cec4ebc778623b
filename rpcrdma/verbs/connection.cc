// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/connection.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "verbs/descriptor.h"

namespace rpcrdma::verbs {

namespace {

/// Room for a few calls with all their windows; more work waits in the Connection.
constexpr int kSendDepth = 256;
constexpr uint64_t kReceiveMark = uint64_t{1} << 32;  // in wr_id, above the slot

uint32_t receive_stride(uint32_t size) { return (size + 63) / 64 * 64; }

}  // namespace

int Connection::make(std::shared_ptr<Domain> domain, rdma_cm_id* id, const Config& config,
                     std::unique_ptr<Connection>& made) {
  std::unique_ptr<Connection> connection(new Connection(std::move(domain), config));
  if (const int error = connection->set_up(id)) return error;
  connection->id_ = id;
  made = std::move(connection);
  return 0;
}

int Connection::set_up(rdma_cm_id* id) {
  channel_ = ibv_create_comp_channel(domain_->context());
  if (channel_ == nullptr || !set_nonblocking(channel_->fd)) return -errno;
  const ibv_device_attr& limits = domain_->attributes();
  send_depth_ = static_cast<size_t>(std::min(kSendDepth, limits.max_qp_wr));
  const int entries = static_cast<int>(send_depth_ + config_.receives);
  cq_ = ibv_create_cq(domain_->context(), entries, nullptr, channel_, 0);
  if (cq_ == nullptr || ibv_req_notify_cq(cq_, 0) != 0) return -errno;

  ibv_qp_init_attr attributes{};
  attributes.qp_type = IBV_QPT_RC;
  attributes.send_cq = attributes.recv_cq = cq_;
  attributes.cap = {static_cast<uint32_t>(send_depth_), config_.receives, 1, 1, 0};
  if (rdma_create_qp(id, domain_->pd(), &attributes) != 0) return -errno;

  receive_buffer_ = domain_->take(size_t{receive_stride(config_.receive_size)} * config_.receives);
  const int error = receive_buffer_ == nullptr ? -ENOMEM : 0;
  id_ = id;
  for (uint32_t slot = 0; error == 0 && slot < config_.receives && !broken_; ++slot) repost(slot);
  if (error == 0 && !broken_) return 0;
  rdma_destroy_qp(id);
  id_ = nullptr;
  return error != 0 ? error : -ENOMEM;
}

Connection::~Connection() {
  for (const auto& done : tear_down()) done(false);
  if (cq_ != nullptr) ibv_destroy_cq(cq_);
  if (channel_ != nullptr) ibv_destroy_comp_channel(channel_);
  if (id_ != nullptr) rdma_destroy_id(id_);
}

std::vector<Work::Done> Connection::tear_down() {
  broken_ = true;
  if (id_ != nullptr && id_->qp != nullptr) rdma_destroy_qp(id_);
  std::vector<Work::Done> undone;
  for (Posted& one : posted_)
    if (one.done) undone.push_back(std::move(one.done));
  for (Work& one : waiting_)
    if (one.done) undone.push_back(std::move(one.done));
  posted_.clear();
  waiting_.clear();
  return undone;
}

void Connection::give_up_id() {
  for (const auto& done : tear_down()) done(false);
  id_ = nullptr;
}

void Connection::disconnect() {
  if (id_ != nullptr) rdma_disconnect(id_);
}

void Connection::repost(uint32_t slot) {
  if (broken_) return;
  ibv_sge element{};
  element.addr = reinterpret_cast<uint64_t>(receive_buffer_->base) +
                 uint64_t{slot} * receive_stride(config_.receive_size);
  element.length = config_.receive_size;
  element.lkey = receive_buffer_->lkey();
  ibv_recv_wr request{};
  request.wr_id = kReceiveMark | slot;
  request.sg_list = &element;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  if (ibv_post_recv(id_->qp, &request, &bad) != 0) broken_ = true;
}

Work Connection::work(ibv_wr_opcode opcode, Work::Done done) {
  Work work;
  work.request.opcode = opcode;
  work.done = std::move(done);
  return work;
}

Work Connection::transfer(ibv_wr_opcode opcode, const void* local, uint32_t length, uint32_t lkey,
                          Work::Done done) {
  Work made = work(opcode, std::move(done));
  made.element = {reinterpret_cast<uint64_t>(local), length, lkey};
  made.request.num_sge = 1;
  return made;
}

void Connection::post(Work work) {
  waiting_.push_back(std::move(work));
  post_waiting();
}

void Connection::post_waiting() {
  while (!waiting_.empty() && posted_.size() < send_depth_ && !broken_) {
    Work& work = waiting_.front();
    // A slot of the send queue is free again only after a signaled request, so some are signaled.
    const bool signaled = work.done || unsignaled_ + 1 >= send_depth_ / 2;
    work.request.send_flags |= signaled ? IBV_SEND_SIGNALED : 0;
    work.request.sg_list = work.request.num_sge != 0 ? &work.element : nullptr;
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(id_->qp, &work.request, &bad) != 0) {
      broken_ = true;
      return;
    }
    unsignaled_ = signaled ? 0 : unsignaled_ + 1;
    posted_.push_back({std::move(work.done), signaled});
    waiting_.pop_front();
  }
}

void Connection::arm() {
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  unsigned events = 0;
  while (ibv_get_cq_event(channel_, &cq, &context) == 0) ++events;
  if (events == 0) return;
  ibv_ack_cq_events(cq_, events);
  if (ibv_req_notify_cq(cq_, 0) != 0) broken_ = true;
}

bool Connection::poll(Turn& turn) {
  std::array<ibv_wc, 16> completions;
  const int count = ibv_poll_cq(cq_, completions.size(), completions.data());
  if (count < 0) broken_ = true;
  if (count <= 0) return false;
  for (const ibv_wc& completion : std::span(completions).first(static_cast<size_t>(count))) {
    if (completion.status != IBV_WC_SUCCESS) {
      broken_ = true;
    } else if ((completion.wr_id & kReceiveMark) != 0) {
      const auto slot = static_cast<uint32_t>(completion.wr_id);
      const auto* at = receive_buffer_->base + size_t{slot} * receive_stride(config_.receive_size);
      turn.received.push_back({slot, {at, completion.byte_len}, std::nullopt});
      if ((completion.wc_flags & IBV_WC_WITH_INV) != 0)
        turn.received.back().invalidated = completion.invalidated_rkey;
    } else {
      take_send_completion(turn);
    }
  }
  post_waiting();
  return true;
}

void Connection::take_send_completion(Turn& turn) {
  // One event stands for itself and the silent ones before it.
  for (bool signaled = false; !signaled && !posted_.empty();) {
    signaled = posted_.front().signaled;
    if (posted_.front().done) turn.done.push_back(std::move(posted_.front().done));
    posted_.pop_front();
  }
}

}  // namespace rpcrdma::verbs
