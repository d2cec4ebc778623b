// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/exposures.h"

#include <algorithm>

namespace rpcrdma::verbs {

WindowPool::~WindowPool() {
  for (const auto& window : all_) ibv_dealloc_mw(window->mw);
}

Window* WindowPool::take() {
  if (spare_.empty()) {
    ibv_mw* mw = ibv_alloc_mw(domain_->pd(), IBV_MW_TYPE_2);
    if (mw == nullptr) return nullptr;
    all_.push_back(std::make_unique<Window>(Window{mw, mw->rkey}));
    spare_.push_back(all_.back().get());
  }
  Window* window = spare_.back();
  spare_.pop_back();
  // A late access by the handle of an earlier call must not find the memory of this one.
  window->handle = window->mw->rkey = ibv_inc_rkey(window->handle);
  return window;
}

Exposures::~Exposures() {
  for (const Exposure& exposure : exposures_) {
    if (exposure.window != nullptr) windows_->put_back(exposure.window);
    if (exposure.own != nullptr) ibv_dereg_mr(exposure.own);
  }
}

std::optional<core::Segment> Exposures::open(const void* base, size_t length, Right right,
                                             const rpcrdma_memory* memory) {
  const int remote = right == Right::kRead ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
  const int local = right == Right::kRead ? 0 : IBV_ACCESS_LOCAL_WRITE;
  const Domain& domain = *connection_.domain();
  Exposure exposure;
  const ibv_mr* region = memory != nullptr ? memory->mr : nullptr;
  if (region == nullptr) {
    const int access = local | (windows_ != nullptr ? IBV_ACCESS_MW_BIND : remote);
    region = exposure.own = domain.register_memory(base, length, access);
    if (region == nullptr) return std::nullopt;
  }
  exposure.handle = region->rkey;
  if (windows_ != nullptr) {
    exposure.window = windows_->take();
    if (exposure.window == nullptr) {
      if (exposure.own != nullptr) ibv_dereg_mr(exposure.own);
      return std::nullopt;
    }
    exposure.handle = exposure.window->handle;
    Work bind = Connection::work(IBV_WR_BIND_MW);
    bind.request.bind_mw.mw = exposure.window->mw;
    bind.request.bind_mw.rkey = exposure.handle;
    bind.request.bind_mw.bind_info = {const_cast<ibv_mr*>(region), reinterpret_cast<uint64_t>(base),
                                      length, static_cast<unsigned>(remote)};
    connection_.post(std::move(bind));
  }
  exposures_.push_back(exposure);
  return core::Segment{exposure.handle, static_cast<uint32_t>(length),
                       reinterpret_cast<uint64_t>(base)};
}

bool Exposures::invalidated(uint32_t handle) {
  const auto found = std::find_if(
      exposures_.begin(), exposures_.end(),
      [handle](const Exposure& one) { return one.window != nullptr && one.handle == handle; });
  if (found == exposures_.end()) return false;
  found->open = false;
  return true;
}

unsigned Exposures::close(Work::Done closed) {
  unsigned count = 0;
  for (const Exposure& one : exposures_) count += one.window != nullptr && one.open;
  unsigned left = count;
  for (Exposure& one : exposures_) {
    if (one.window == nullptr || !one.open) continue;
    one.open = false;
    Work work = Connection::work(IBV_WR_LOCAL_INV);
    work.request.invalidate_rkey = one.handle;
    // NOLINTNEXTLINE(bugprone-use-after-move): at the last one that is open
    if (--left == 0) work.done = std::move(closed);
    connection_.post(std::move(work));
  }
  return count;
}

}  // namespace rpcrdma::verbs
