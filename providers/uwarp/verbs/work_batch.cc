// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/work_batch.h"

#include <cerrno>
#include <cstring>

#include "base/limits.h"
#include "os/clock.h"
#include "verbs/address_handle.h"
#include "verbs/boundary.h"
#include "verbs/queue_pair.h"
#include "verbs/region.h"
#include "verbs/status_map.h"

namespace uwarp {

void WorkBatch::start() {
  if (!one_thread_) mutex_.lock();
  error_ = 0;
  posted_ = {};
  requests_.clear();
  payloads_.clear();
  sges_.clear();
  inline_.clear();
}

// Nothing moves any more.
void WorkBatch::place_payloads() {
  for (size_t i = 0; i < requests_.size(); ++i) {
    SendRequest& request = requests_[i];
    const Payload& payload = payloads_[i];
    request.sges = std::span(sges_).subspan(payload.first_sge, payload.sge_count);
    if ((request.flags & kSendInline) == 0) continue;
    for (size_t sge = payload.first_sge; sge != payload.first_sge + payload.sge_count; ++sge)
      sges_[sge].address += reinterpret_cast<uintptr_t>(inline_.data());
  }
}

int WorkBatch::complete(DatagramEndpoint& endpoint) {
  const Section section{*this};
  if (error_ != 0 || requests_.empty()) return error_;
  for (const Payload& payload : payloads_)
    if (payload.to == nullptr) return EINVAL;
  place_payloads();
  DatagramEndpoint::Poster poster(endpoint);
  if (int error = endpoint.qp().admits_locked(requests_)) return error;
  for (size_t i = 0; i < requests_.size(); ++i) {
    const Payload& payload = payloads_[i];
    if (int error = poster.post(requests_[i], *payload.to, payload.number, payload.qkey))
      return error;
  }
  return 0;
}

int WorkBatch::complete(Endpoint& endpoint) {
  const Section section{*this};
  if (error_ != 0 || requests_.empty()) return error_;
  place_payloads();
  if (int error = endpoint.qp().post_sends(requests_)) return error;
  for (size_t i = 0; i != requests_.size(); ++i)
    if (payloads_[i].window != nullptr) payloads_[i].window->rkey = requests_[i].rkey;
  for (const SendRequest& request : requests_) posted_.bytes += request.outgoing_bytes();
  endpoint.pump(posted_);
  return 0;
}

SendRequest& WorkBatch::add(const ibv_qp_ex& qp, SendOpcode opcode, uint64_t operation) {
  if ((operation & ~operations_) != 0 || (qp.wr_flags & ~kKnownSendFlags) != 0) spoil(EINVAL);
  SendRequest& request = requests_.emplace_back();
  posted_.add(span_ns);
  payloads_.emplace_back();
  request.wr_id = qp.wr_id;
  request.opcode = opcode;
  // Which setter is called says whether data is inline.
  request.flags = static_cast<uint8_t>(qp.wr_flags & ~unsigned{IBV_SEND_INLINE});
  return request;
}

// Of a batch that is spoiled the last request may be missing.
WorkBatch::Payload* WorkBatch::open_payload() {
  if (error_ != 0) return nullptr;
  if (payloads_.empty() || payloads_.back().set) {
    spoil(EINVAL);
    return nullptr;
  }
  Payload& payload = payloads_.back();
  payload.set = true;
  payload.first_sge = sges_.size();
  return &payload;
}

void WorkBatch::set_sges(std::span<const Sge> sges) {
  Payload* payload = open_payload();
  if (payload == nullptr) return;
  if (sges.size() > kMaxSge) return spoil(EINVAL);
  payload->sge_count = sges.size();
  sges_.insert(sges_.end(), sges.begin(), sges.end());
}

void WorkBatch::set_receive_queue(uint32_t number) {
  if (requests_.empty()) return spoil(EINVAL);
  requests_.back().receive_queue = number;
}

void WorkBatch::set_inline(std::span<const ibv_data_buf> parts) {
  Payload* payload = open_payload();
  if (payload == nullptr) return;
  const size_t before = inline_.size();
  for (const ibv_data_buf& part : parts) {
    if (part.length > max_inline_bytes_ - (inline_.size() - before)) return spoil(EINVAL);
    const auto* bytes = static_cast<const std::byte*>(part.addr);
    inline_.insert(inline_.end(), bytes, bytes + part.length);
  }
  requests_.back().flags |= kSendInline;
  payload->sge_count = 1;
  sges_.push_back({before, static_cast<uint32_t>(inline_.size() - before), 0});
}

void WorkBatch::set_target(Destination& to, Qpn number, uint32_t qkey) {
  if (error_ != 0) return;
  if (payloads_.empty()) return spoil(EINVAL);
  Payload& payload = payloads_.back();
  payload.to = &to;
  payload.number = number;
  payload.qkey = qkey;
}

// ---- The functions of ibv_qp_ex

namespace {

VerbsQp& qp_of(ibv_qp_ex* qp) { return VerbsQp::unchecked(&qp->qp_base); }
WorkBatch& batch_of(ibv_qp_ex* qp) { return *qp_of(qp).batch; }

/// Runs a step that returns nothing; what it raises is reported by ibv_wr_complete().
template <typename Body>
void step(ibv_qp_ex* qp, Body&& body) {
  WorkBatch& batch = batch_of(qp);
  try {
    body(batch);
  } catch (const std::exception& exception) {
    batch.spoil(errno_of(exception));
  }
}

void wr_start(ibv_qp_ex* qp) { batch_of(qp).start(); }

int wr_complete(ibv_qp_ex* base) {
  return guarded_errno([&] {
    VerbsQp& qp = qp_of(base);
    if (!qp.device.alive()) qp.batch->spoil(ENODEV);
    return qp.datagrams != nullptr ? qp.batch->complete(*qp.datagrams)
                                   : qp.batch->complete(*qp.endpoint);
  });
}

void wr_abort(ibv_qp_ex* qp) { batch_of(qp).leave(); }

void wr_send(ibv_qp_ex* qp) {
  step(qp, [&](WorkBatch& batch) { batch.add(*qp, SendOpcode::kSend, IBV_QP_EX_WITH_SEND); });
}

void wr_send_imm(ibv_qp_ex* qp, __be32 immediate) {
  step(qp, [&](WorkBatch& batch) {
    batch.add(*qp, SendOpcode::kSendWithImm, IBV_QP_EX_WITH_SEND_WITH_IMM).imm_or_invalidate =
        immediate;
  });
}

void wr_send_inv(ibv_qp_ex* qp, uint32_t rkey) {
  step(qp, [&](WorkBatch& batch) {
    batch.add(*qp, SendOpcode::kSendWithInvalidate, IBV_QP_EX_WITH_SEND_WITH_INV)
        .imm_or_invalidate = rkey;
  });
}

void aim(SendRequest& request, uint32_t rkey, uint64_t address) {
  request.rkey = rkey;
  request.remote_address = address;
}

void wr_rdma_write(ibv_qp_ex* qp, uint32_t rkey, uint64_t address) {
  step(qp, [&](WorkBatch& batch) {
    aim(batch.add(*qp, SendOpcode::kWrite, IBV_QP_EX_WITH_RDMA_WRITE), rkey, address);
  });
}

void wr_rdma_write_imm(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, __be32 immediate) {
  step(qp, [&](WorkBatch& batch) {
    SendRequest& request =
        batch.add(*qp, SendOpcode::kWriteWithImm, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM);
    aim(request, rkey, address);
    request.imm_or_invalidate = immediate;
  });
}

void wr_rdma_read(ibv_qp_ex* qp, uint32_t rkey, uint64_t address) {
  step(qp, [&](WorkBatch& batch) {
    aim(batch.add(*qp, SendOpcode::kRead, IBV_QP_EX_WITH_RDMA_READ), rkey, address);
  });
}

void wr_atomic_cmp_swp(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, uint64_t compare,
                       uint64_t swap) {
  step(qp, [&](WorkBatch& batch) {
    SendRequest& request =
        batch.add(*qp, SendOpcode::kCompareSwap, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP);
    aim(request, rkey, address);
    request.compare_add = compare;
    request.swap = swap;
  });
}

void wr_atomic_fetch_add(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, uint64_t add) {
  step(qp, [&](WorkBatch& batch) {
    SendRequest& request =
        batch.add(*qp, SendOpcode::kFetchAdd, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD);
    aim(request, rkey, address);
    request.compare_add = add;
  });
}

void wr_local_inv(ibv_qp_ex* qp, uint32_t rkey) {
  step(qp, [&](WorkBatch& batch) {
    batch.add(*qp, SendOpcode::kLocalInvalidate, IBV_QP_EX_WITH_LOCAL_INV).imm_or_invalidate = rkey;
  });
}

void wr_bind_mw(ibv_qp_ex* qp, ibv_mw* window, uint32_t rkey, const ibv_mw_bind_info* bind) {
  step(qp, [&](WorkBatch& batch) {
    SendRequest& request = batch.add(*qp, SendOpcode::kBindWindow, IBV_QP_EX_WITH_BIND_MW);
    if (window->type != IBV_MW_TYPE_2) return batch.spoil(EINVAL);
    if (int error = bind_request(*window, rkey, *bind, request)) return batch.spoil(error);
    batch.set_window(*window);
  });
}

void wr_set_sge(ibv_qp_ex* qp, uint32_t lkey, uint64_t address, uint32_t length) {
  const Sge sge{address, length, lkey};
  step(qp, [&](WorkBatch& batch) { batch.set_sges({&sge, 1}); });
}

void wr_set_sge_list(ibv_qp_ex* qp, size_t count, const ibv_sge* list) {
  step(qp, [&](WorkBatch& batch) { batch.set_sges({reinterpret_cast<const Sge*>(list), count}); });
}

void wr_set_inline_data(ibv_qp_ex* qp, void* address, size_t length) {
  const ibv_data_buf part{address, length};
  step(qp, [&](WorkBatch& batch) { batch.set_inline({&part, 1}); });
}

void wr_set_inline_data_list(ibv_qp_ex* qp, size_t count, const ibv_data_buf* parts) {
  step(qp, [&](WorkBatch& batch) { batch.set_inline({parts, count}); });
}

void wr_set_ud_addr(ibv_qp_ex* qp, ibv_ah* ah, uint32_t number, uint32_t qkey) {
  if (qp_of(qp).datagrams == nullptr) return batch_of(qp).spoil(EOPNOTSUPP);
  batch_of(qp).set_target(VerbsAh::unchecked(ah).destination, Qpn{number}, qkey);
}

void wr_set_xrc_srqn(ibv_qp_ex* qp, uint32_t number) {
  step(qp, [&](WorkBatch& batch) {
    if (qp->qp_base.qp_type != IBV_QPT_XRC_SEND) return batch.spoil(EOPNOTSUPP);
    batch.set_receive_queue(number);
  });
}

// What no queue pair here has.
void wr_send_tso(ibv_qp_ex* qp, void*, uint16_t, uint16_t) { batch_of(qp).spoil(EOPNOTSUPP); }

}  // namespace

void fill_functions(ibv_qp_ex& qp) {
  qp.wr_atomic_cmp_swp = wr_atomic_cmp_swp;
  qp.wr_atomic_fetch_add = wr_atomic_fetch_add;
  qp.wr_bind_mw = wr_bind_mw;
  qp.wr_local_inv = wr_local_inv;
  qp.wr_rdma_read = wr_rdma_read;
  qp.wr_rdma_write = wr_rdma_write;
  qp.wr_rdma_write_imm = wr_rdma_write_imm;
  qp.wr_send = wr_send;
  qp.wr_send_imm = wr_send_imm;
  qp.wr_send_inv = wr_send_inv;
  qp.wr_send_tso = wr_send_tso;
  qp.wr_set_ud_addr = wr_set_ud_addr;
  qp.wr_set_xrc_srqn = wr_set_xrc_srqn;
  qp.wr_set_inline_data = wr_set_inline_data;
  qp.wr_set_inline_data_list = wr_set_inline_data_list;
  qp.wr_set_sge = wr_set_sge;
  qp.wr_set_sge_list = wr_set_sge_list;
  qp.wr_start = wr_start;
  qp.wr_complete = wr_complete;
  qp.wr_abort = wr_abort;
}

}  // namespace uwarp
