// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "faults/work_scenario.h"

#include <arpa/inet.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "verbs/verbs_fixture.h"

namespace {

/// Longest wait; it only ends a test that hangs.
constexpr std::chrono::seconds kLongest{20};
/// Receives that each end keeps posted.
constexpr int kReceives = 24;
constexpr uint32_t kLimit = 8;
/// One half is the source of what an end sends, the other half the target of what it receives.
constexpr size_t kIncoming = 64 << 10;

bool readable_now(int fd) {
  pollfd wait{fd, POLLIN, 0};
  return ::poll(&wait, 1, 0) == 1;
}

bool is_failure(ibv_event_type type) {
  return type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
         type == IBV_EVENT_QP_ACCESS_ERR || type == IBV_EVENT_CQ_ERR ||
         type == IBV_EVENT_QP_LAST_WQE_REACHED;
}

}  // namespace

bool WorkScenario::ok(int error) {
  if (error == 0) return true;
  EXPECT_TRUE(error == ENOMEM || error == ECONNRESET) << std::strerror(error);
  ++failures_;
  return false;
}

template <typename T>
bool WorkScenario::made(T* object) {
  return object != nullptr || ok(errno);
}

bool WorkScenario::create(ibv_context* context) {
  context_ = context;
  ibv_srq_init_attr shared{};
  shared.attr.max_wr = 64;
  shared.attr.max_sge = 1;
  ibv_cq_init_attr_ex extended{};
  extended.cqe = 256;
  extended.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
  const int access = kAllAccess | IBV_ACCESS_MW_BIND;
  return made(pd_ = ibv_alloc_pd(context)) &&
         made(a_.mr = ibv_reg_mr(pd_, a_.memory.data(), kBytes, access)) &&
         made(b_.mr = ibv_reg_mr(pd_, b_.memory.data(), kBytes, access)) &&
         made(on_demand_ = ibv_reg_mr(pd_, a_.memory.data(), kBytes,
                                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND)) &&
         made(channel_ = ibv_create_comp_channel(context)) &&
         made(cq_ = ibv_create_cq(context, 256, nullptr, channel_, 0)) &&
         made(extended_cq_ = ibv_create_cq_ex(context, &extended)) &&
         made(srq_ = ibv_create_srq(pd_, &shared)) &&
         made(window1_ = ibv_alloc_mw(pd_, IBV_MW_TYPE_1)) &&
         made(window2_ = ibv_alloc_mw(pd_, IBV_MW_TYPE_2));
}

bool WorkScenario::create_queue_pair(bool first, rdma_cm_id* id) {
  ibv_qp_init_attr_ex shape{};
  shape.send_cq = shape.recv_cq = first ? cq_ : ibv_cq_ex_to_cq(extended_cq_);
  shape.srq = first ? nullptr : srq_;
  shape.cap = {64, 64, 2, 2, 64};
  shape.qp_type = IBV_QPT_RC;
  shape.comp_mask = IBV_QP_INIT_ATTR_PD;
  shape.pd = pd_;
  if (first) {
    shape.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    shape.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
  }
  ibv_qp*& qp = (first ? a_ : b_).qp;
  if (id == nullptr) return made(qp = ibv_create_qp_ex(context_, &shape));
  if (!ok(rdma_create_qp_ex(id, &shape) == 0 ? 0 : errno)) return false;
  qp = id->qp;
  return true;
}

bool WorkScenario::connect() {
  Address to_a{}, to_b{};
  if (ibv_query_gid(context_, 1, 0, &to_a.gid) != 0) return ok(errno);
  to_b.gid = to_a.gid;
  to_a.qpn = a_.qp->qp_num;
  to_b.qpn = b_.qp->qp_num;
  const int access = kAllAccess | IBV_ACCESS_MW_BIND;
  return ok(to_init(a_.qp, access)) && ok(to_init(b_.qp, access)) && ok(to_rtr(a_.qp, to_b)) &&
         ok(to_rtr(b_.qp, to_a)) && ok(to_rts(a_.qp, 0)) && ok(to_rts(b_.qp, 0));
}

// --- Completions and events

void WorkScenario::note(const ibv_wc& completion) {
  if (completion.status != IBV_WC_SUCCESS) {
    ++failures_;
    failed_ = true;
  }
  const bool of_a = completion.qp_num == a_.qp->qp_num;
  Side& side = of_a ? a_ : b_;
  const bool receive = (completion.wr_id & kReceive) != 0;
  (receive ? side.receives : side.sends).completed(completion.wr_id & ~kReceive);
  if (receive && completion.status == IBV_WC_SUCCESS) ++side.received;
}

void WorkScenario::poll() {
  ibv_wc completion;
  int count;
  while ((count = ibv_poll_cq(cq_, 1, &completion)) > 0) note(completion);
  EXPECT_EQ(count, 0);
  poll_extended();
  look_for_events();
}

void WorkScenario::poll_extended() {
  ibv_poll_cq_attr none{};
  const int error = ibv_start_poll(extended_cq_, &none);
  if (error == ENOENT) return;
  ASSERT_EQ(error, 0);
  do {
    ibv_wc completion{};
    completion.wr_id = extended_cq_->wr_id;
    completion.status = extended_cq_->status;
    completion.qp_num = ibv_wc_read_qp_num(extended_cq_);
    note(completion);
  } while (ibv_next_poll(extended_cq_) == 0);
  ibv_end_poll(extended_cq_);
}

void WorkScenario::look_for_events() {
  while (readable_now(context_->async_fd)) {
    ibv_async_event event{};
    if (ibv_get_async_event(context_, &event) != 0) {
      (void)ok(errno);
      continue;
    }
    ibv_ack_async_event(&event);
    if (event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED) limit_reached_ = true;
    if (!is_failure(event.event_type)) continue;
    ++failures_;
    failed_ = true;
  }
}

// An end without rdma_cm gets no event when its peer fails, so the test looks at both states.
bool WorkScenario::broken() {
  if (!failed_) failed_ = state_of(a_.qp) == IBV_QPS_ERR || state_of(b_.qp) == IBV_QPS_ERR;
  return failed_;
}

template <typename Condition>
bool WorkScenario::await(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kLongest;
  for (;;) {
    poll();
    if (condition()) return true;
    if (std::chrono::steady_clock::now() > end) return false;
  }
}

bool WorkScenario::settled(size_t received_by_a, size_t received_by_b) {
  return a_.sends.open() == 0 && b_.sends.open() == 0 && a_.received >= received_by_a &&
         b_.received >= received_by_b;
}

// Waits until all sends and the receives that belong to them are done, or the connection has
// failed.
bool WorkScenario::arrives(size_t by_a, size_t by_b) {
  const size_t of_a = a_.received + by_a, of_b = b_.received + by_b;
  EXPECT_TRUE(await([&] { return settled(of_a, of_b) || broken(); })) << "nothing arrives";
  return settled(of_a, of_b) && !broken();
}

// --- Requests

bool WorkScenario::post(Side& side, ibv_send_wr& wr) {
  ibv_send_wr* bad = nullptr;
  wr.wr_id = side.sends.next_id();
  wr.send_flags |= IBV_SEND_SIGNALED;
  // A completion is recorded at the next poll at the earliest, so it is safe to record the post
  // afterwards.
  if (!ok(ibv_post_send(side.qp, &wr, &bad))) return false;
  side.sends.posted(wr.wr_id);
  return true;
}

// From the start of the end's own memory to the second half of the peer's; Reads go the other way.
bool WorkScenario::post(Side& side, ibv_wr_opcode opcode, uint32_t length, ibv_mr* mr,
                        unsigned flags) {
  Side& peer = &side == &a_ ? b_ : a_;
  const bool back = opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
                    opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  const ibv_mr* local = mr != nullptr ? mr : side.mr;
  ibv_sge sge{reinterpret_cast<uint64_t>(side.memory.data()) + (back ? kIncoming : 0), length,
              local->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.send_flags = flags;
  wr.imm_data = htonl(7);
  const uint64_t remote = reinterpret_cast<uint64_t>(peer.memory.data()) + (back ? 0 : kIncoming);
  if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    wr.wr.atomic.remote_addr = remote;
    wr.wr.atomic.rkey = peer.mr->rkey;
    wr.wr.atomic.compare_add = 1;
  } else {
    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = peer.mr->rkey;
  }
  return post(side, wr);
}

bool WorkScenario::post_receives() {
  bool all = true;
  for (int i = 0; i < kReceives && all; ++i) {
    for (Side* side : {&a_, &b_}) {
      ibv_sge sge{reinterpret_cast<uint64_t>(side->memory.data()) + kIncoming, kLarge,
                  side->mr->lkey};
      const uint64_t id = side->receives.next_id();
      ibv_recv_wr wr{id | kReceive, nullptr, &sge, 1};
      ibv_recv_wr* bad = nullptr;
      all = ok(side == &a_ ? ibv_post_recv(a_.qp, &wr, &bad) : ibv_post_srq_recv(srq_, &wr, &bad));
      if (!all) break;
      side->receives.posted(id);
    }
  }
  return all;
}

bool WorkScenario::sends() {
  for (size_t i = 0; i < kLarge; ++i) a_.memory[i] = static_cast<uint8_t>(i * 13 + 5);
  b_.memory.fill(0);
  if (!post(a_, IBV_WR_SEND, kLarge) || !arrives(0, 1)) return false;
  EXPECT_EQ(std::memcmp(&b_.memory[kIncoming], a_.memory.data(), kLarge), 0);
  return post(a_, IBV_WR_SEND, kSmall) && post(a_, IBV_WR_SEND, 32, nullptr, IBV_SEND_INLINE) &&
         post(b_, IBV_WR_SEND, kSmall) && arrives(1, 2) && send_with_immediate();
}

// After an earlier connection failed for want of memory, uwarp may treat the peer as one that is
// not uwarp.
bool WorkScenario::send_with_immediate() {
  ibv_sge sge{reinterpret_cast<uint64_t>(a_.memory.data()), kSmall, a_.mr->lkey};
  ibv_send_wr wr{};
  wr.wr_id = a_.sends.next_id();
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND_WITH_IMM;
  wr.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(a_.qp, &wr, &bad);
  if (error == EOPNOTSUPP) return true;
  if (!ok(error)) return false;
  a_.sends.posted(wr.wr_id);
  return arrives(0, 1);
}

bool WorkScenario::writes_and_reads() {
  b_.memory.fill(1);
  if (!post(a_, IBV_WR_RDMA_WRITE, kLarge) || !post(a_, IBV_WR_RDMA_WRITE_WITH_IMM, kSmall) ||
      !arrives(0, 1))
    return false;
  EXPECT_EQ(std::memcmp(&b_.memory[kIncoming], a_.memory.data(), kLarge), 0);
  if (!post(a_, IBV_WR_RDMA_READ, kLarge) || !post(a_, IBV_WR_RDMA_READ, kSmall) ||
      !post(b_, IBV_WR_RDMA_READ, kLarge) || !arrives(0, 0))
    return false;
  EXPECT_EQ(std::memcmp(&a_.memory[kIncoming], b_.memory.data(), kLarge), 0);
  return true;
}

bool WorkScenario::atomics() {
  uint64_t* const cell = reinterpret_cast<uint64_t*>(b_.memory.data());
  *cell = 1;
  if (!post(a_, IBV_WR_ATOMIC_FETCH_AND_ADD, sizeof *cell) || !arrives(0, 0)) return false;
  EXPECT_EQ(*cell, 2u);
  return post(a_, IBV_WR_ATOMIC_CMP_AND_SWP, sizeof *cell) && arrives(0, 0);
}

// Memory on demand is sent from copies.
bool WorkScenario::on_demand() {
  b_.memory.fill(2);
  if (!post(a_, IBV_WR_SEND, kLarge, on_demand_) || !arrives(0, 1)) return false;
  EXPECT_EQ(std::memcmp(&b_.memory[kIncoming], a_.memory.data(), kLarge), 0);
  return true;
}

bool WorkScenario::post_batch() {
  ibv_qp_ex* const qp = ibv_qp_to_qp_ex(a_.qp);
  const uint64_t send = a_.sends.next_id(), write = a_.sends.next_id();
  ibv_wr_start(qp);
  qp->wr_id = send;
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send(qp);
  ibv_wr_set_inline_data(qp, a_.memory.data(), 48);
  qp->wr_id = write;
  ibv_wr_rdma_write(qp, b_.mr->rkey, reinterpret_cast<uint64_t>(b_.memory.data()) + kIncoming);
  ibv_sge list[2] = {{reinterpret_cast<uint64_t>(a_.memory.data()), 100, a_.mr->lkey},
                     {reinterpret_cast<uint64_t>(a_.memory.data()) + 100, 20'000, a_.mr->lkey}};
  ibv_wr_set_sge_list(qp, 2, list);
  if (!ok(ibv_wr_complete(qp))) return false;
  a_.sends.posted(send);
  a_.sends.posted(write);
  return arrives(0, 1);
}

bool WorkScenario::bind_type1() {
  ibv_mw_bind bind{};
  bind.wr_id = a_.sends.next_id();
  bind.send_flags = IBV_SEND_SIGNALED;
  bind.bind_info = {a_.mr, reinterpret_cast<uint64_t>(a_.memory.data()), kBytes,
                    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
  if (!ok(ibv_bind_mw(a_.qp, window1_, &bind))) return false;
  a_.sends.posted(bind.wr_id);
  return arrives(0, 0);
}

bool WorkScenario::bind_type2() {
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_BIND_MW;
  wr.bind_mw.mw = window2_;
  wr.bind_mw.rkey = ibv_inc_rkey(window2_->rkey);
  wr.bind_mw.bind_info = {a_.mr, reinterpret_cast<uint64_t>(a_.memory.data()), kBytes,
                          IBV_ACCESS_REMOTE_WRITE};
  const uint32_t key = wr.bind_mw.rkey;
  if (!post(a_, wr) || !arrives(0, 0)) return false;
  window2_->rkey = key;
  return true;
}

// The second end reads and writes the memory of the first through windows.
bool WorkScenario::through_windows() {
  if (!bind_type1()) return false;
  ibv_sge sge{reinterpret_cast<uint64_t>(b_.memory.data()) + kIncoming, kLarge, b_.mr->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_READ;
  wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(a_.memory.data());
  wr.wr.rdma.rkey = window1_->rkey;
  b_.memory.fill(3);
  if (!post(b_, wr) || !arrives(0, 0)) return false;
  EXPECT_EQ(std::memcmp(&b_.memory[kIncoming], a_.memory.data(), kLarge), 0);
  for (const bool by_peer : {false, true}) {
    if (!bind_type2()) return false;
    wr = {};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(a_.memory.data()) + kIncoming;
    wr.wr.rdma.rkey = window2_->rkey;
    if (!post(b_, wr) || !post(b_, IBV_WR_SEND, kSmall) || !arrives(1, 0)) return false;
    wr = {};
    wr.opcode = by_peer ? IBV_WR_SEND_WITH_INV : IBV_WR_LOCAL_INV;
    wr.invalidate_rkey = window2_->rkey;
    if (!post(by_peer ? b_ : a_, wr) || !arrives(by_peer ? 1 : 0, 0)) return false;
  }
  return true;
}

bool WorkScenario::with_event() {
  if (!ok(ibv_req_notify_cq(cq_, 0)) || !post(b_, IBV_WR_SEND, kSmall)) return false;
  const auto end = std::chrono::steady_clock::now() + kLongest;
  while (!readable_now(channel_->fd) && !broken()) {
    poll_extended();
    look_for_events();
    if (std::chrono::steady_clock::now() > end) {
      ADD_FAILURE() << "no event";
      return false;
    }
  }
  if (readable_now(channel_->fd)) {
    ibv_cq* of = nullptr;
    void* context = nullptr;
    while (!ok(ibv_get_cq_event(channel_, &of, &context) == 0 ? 0 : errno)) {
    }
    EXPECT_EQ(of, cq_);
    ibv_ack_cq_events(of, 1);
  }
  // Armed while completions are already in the queue.
  return ok(ibv_req_notify_cq(cq_, 0)) && arrives(1, 0);
}

bool WorkScenario::shared_limit() {
  ibv_srq_attr attributes{};
  attributes.srq_limit = kLimit;
  if (!ok(ibv_modify_srq(srq_, &attributes, IBV_SRQ_LIMIT))) return false;
  for (size_t left = b_.receives.open(); left >= kLimit; --left)
    if (!post(a_, IBV_WR_SEND, kSmall) || !arrives(0, 1)) return false;
  EXPECT_TRUE(await([&] { return limit_reached_ || broken(); })) << "no limit event";
  return limit_reached_;
}

bool WorkScenario::exchange() {
  return post_receives() && sends() && writes_and_reads() && atomics() && on_demand() &&
         post_batch() && through_windows() && with_event() && shared_limit();
}

bool WorkScenario::provoke_remote_error() {
  ibv_sge sge{reinterpret_cast<uint64_t>(a_.memory.data()), kSmall, a_.mr->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_READ;
  wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(b_.memory.data());
  wr.wr.rdma.rkey = b_.mr->rkey ^ 0x100;
  if (!post(a_, wr)) return false;
  EXPECT_TRUE(await([&] {
    return a_.sends.open() == 0 && state_of(a_.qp) == IBV_QPS_ERR && state_of(b_.qp) == IBV_QPS_ERR;
  })) << "the error is not reported";
  return true;
}

// --- The end

void WorkScenario::flush() {
  for (Side* side : {&a_, &b_}) {
    // RoCE has no way from RESET to ERR, and there is nothing to flush.
    if (side->qp == nullptr || state_of(side->qp) == IBV_QPS_RESET) continue;
    const int error = to_state(side->qp, IBV_QPS_ERR);
    if (ok(error)) continue;
    EXPECT_EQ(to_state(side->qp, IBV_QPS_ERR), 0);
  }
  if (a_.qp == nullptr || b_.qp == nullptr) return;
  EXPECT_TRUE(await([&] {
    return a_.sends.open() == 0 && a_.receives.open() == 0 && b_.sends.open() == 0;
  })) << "not all is flushed: "
      << a_.sends.open() << ", " << a_.receives.open() << ", " << b_.sends.open();
}

// A call that fails for want of memory is repeated.
template <typename Destroy, typename T>
void WorkScenario::destroy_one(Destroy destroy, T*& object) {
  if (object == nullptr) return;
  int error = destroy(object);
  if (error != 0 && !ok(error)) error = destroy(object);
  EXPECT_EQ(error, 0) << std::strerror(error);
  object = nullptr;
}

void WorkScenario::destroy() {
  destroy_one(ibv_destroy_qp, a_.qp);
  destroy_one(ibv_destroy_qp, b_.qp);
  destroy_one(ibv_dealloc_mw, window1_);
  destroy_one(ibv_dealloc_mw, window2_);
  destroy_one(ibv_destroy_srq, srq_);
  destroy_one(ibv_destroy_cq, cq_);
  destroy_one([](ibv_cq_ex* cq) { return ibv_destroy_cq(ibv_cq_ex_to_cq(cq)); }, extended_cq_);
  destroy_one(ibv_destroy_comp_channel, channel_);
  destroy_one(ibv_dereg_mr, on_demand_);
  destroy_one(ibv_dereg_mr, a_.mr);
  destroy_one(ibv_dereg_mr, b_.mr);
  destroy_one(ibv_dealloc_pd, pd_);
}
