// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/numbered_ends.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace {

/// In the ids of Sends; those of receives are their slots.
constexpr uint64_t kIsSend = uint64_t{1} << 32;

void* context_of(uint64_t wr_id) { return reinterpret_cast<void*>(wr_id); }

}  // namespace

NumberedEnd::NumberedEnd(rdma_cm_id* with_queue_pair)
    : id_(with_queue_pair),
      mr_(ibv_reg_mr(id_->pd, slots_.data(), slots_.size() * sizeof(uint64_t),
                     IBV_ACCESS_LOCAL_WRITE)) {
  for (uint64_t slot = 0; slot < kReceives; ++slot) post_receive(slot);
}

void NumberedEnd::post_receive(uint64_t slot) {
  if (rdma_post_recv(id_, context_of(slot), &slots_[slot], sizeof(uint64_t), mr_.get()) != 0)
    wrong_ += std::string("a receive cannot be posted: ") + std::strerror(errno) + "\n";
}

bool NumberedEnd::post_send() {
  uint64_t& slot = slots_[kReceives + posted_ % kSends];
  slot = posted_;
  return rdma_post_send(id_, context_of(kIsSend), &slot, sizeof slot, mr_.get(),
                        IBV_SEND_SIGNALED) == 0;
}

void NumberedEnd::owe(uint64_t messages) {
  owed_ += messages;
  while (owed_ > 0 && posted_ - completed_ < kSends && failed() == 0) {
    if (!post_send()) {
      wrong_ += std::string("a Send cannot be posted: ") + std::strerror(errno) + "\n";
      return;
    }
    ++posted_;
    --owed_;
  }
}

void NumberedEnd::take_message(uint64_t slot) {
  if (slots_[slot] != received_)
    wrong_ += "message " + std::to_string(slots_[slot]) + " comes, not message " +
              std::to_string(received_) + "\n";
  ++received_;
  post_receive(slot);
  owe(quiet ? 0 : 1);
}

void NumberedEnd::take_failed(const ibv_wc& wc) {
  const bool send = wc.wr_id == kIsSend;
  if (wc.status == IBV_WC_WR_FLUSH_ERR)
    ++(send ? flushed_sends_ : flushed_);
  else if (send && wc.status == IBV_WC_RETRY_EXC_ERR && failed() == 0)
    ++retried_;  // the first that fails only
  else
    wrong_ += std::string(send ? "Send: " : "receive: ") + ibv_wc_status_str(wc.status) + "\n";
}

void NumberedEnd::take(const ibv_wc& wc) {
  if (wc.status != IBV_WC_SUCCESS) return take_failed(wc);
  if (failed() + flushed_ != 0) wrong_ += "a success after a failure\n";
  if (wc.wr_id != kIsSend) return take_message(wc.wr_id);
  ++completed_;
  owe(0);
}

NumberedEnd* NumberedEnds::add(rdma_cm_id* id) {
  constexpr auto kOfEach = static_cast<int>(NumberedEnd::kReceives + NumberedEnd::kSends);
  if (cq_ == nullptr) cq_.reset(ibv_create_cq(id->verbs, most_ * kOfEach, nullptr, nullptr, 0));
  if (cq_ == nullptr) return nullptr;
  ibv_qp_init_attr init = init_attributes(cq_.get());
  init.cap.max_recv_wr = NumberedEnd::kReceives;
  init.cap.max_send_wr = NumberedEnd::kSends;
  if (rdma_create_qp(id, nullptr, &init) != 0) return nullptr;
  auto& place = ends_[id->qp->qp_num];
  place = std::make_unique<NumberedEnd>(id);
  return place.get();
}

NumberedEnd* NumberedEnds::find(const rdma_cm_id* id) {
  const auto found = id->qp == nullptr ? ends_.end() : ends_.find(id->qp->qp_num);
  return found == ends_.end() ? nullptr : found->second.get();
}

void NumberedEnds::remove(rdma_cm_id* id) {
  if (id->qp == nullptr) return;
  const auto end = ends_.extract(id->qp->qp_num);
  rdma_destroy_qp(id);
}

void NumberedEnds::clear() {
  while (!ends_.empty()) remove(ends_.begin()->second->id());
  cq_.reset();
}

bool NumberedEnds::poll() {
  ibv_wc all[32];
  const int count = cq_ == nullptr ? 0 : ibv_poll_cq(cq_.get(), std::size(all), all);
  EXPECT_GE(count, 0);
  for (int i = 0; i < count; ++i) {
    const auto found = ends_.find(all[i].qp_num);
    if (found != ends_.end()) found->second->take(all[i]);
  }
  return count > 0;
}
