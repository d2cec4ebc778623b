// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/domain.h"

#include <algorithm>
#include <bit>

namespace rpcrdma::verbs {

namespace {

constexpr size_t kPage = 4096;
/// More than this is given back to the system: what a few dozen calls of 1 MiB need at a time.
constexpr size_t kSpareBytesMax = size_t{64} << 20;

}  // namespace

std::shared_ptr<Domain> Domain::of(ibv_context* context) {
  std::shared_ptr<Domain> domain(new Domain(context));
  domain->pd_ = ibv_alloc_pd(context);
  if (domain->pd_ == nullptr || ibv_query_device(context, &domain->attributes_) != 0)
    return nullptr;
  return domain;
}

Domain::~Domain() {
  spare_.clear();
  if (pd_ != nullptr) ibv_dealloc_pd(pd_);
}

bool Domain::has_windows() const {
  return (attributes_.device_cap_flags &
          (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)) != 0;
}

bool Domain::can_invalidate() const {
  return (attributes_.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS) != 0;
}

ibv_mr* Domain::register_memory(const void* base, size_t length, int access) const {
  return ibv_reg_mr(pd_, const_cast<void*>(base), length, access);
}

int Domain::local_access() const {
  // iWARP names the sink of an RDMA Read on the wire, so it needs the right of remote writes.
  const bool iwarp = context_->device->transport_type == IBV_TRANSPORT_IWARP;
  return IBV_ACCESS_LOCAL_WRITE | (iwarp ? IBV_ACCESS_REMOTE_WRITE : 0) |
         (has_windows() ? IBV_ACCESS_MW_BIND : 0);
}

std::shared_ptr<Buffer> Domain::take(size_t size) {
  size = std::bit_ceil(std::max(size, kPage));
  OwnBuffer taken;
  {
    const std::lock_guard lock(mutex_);
    auto& spare = spare_[size];
    if (!spare.empty()) {
      taken = std::move(spare.back());
      spare.pop_back();
      spare_bytes_ -= size;
    }
  }
  if (!taken) taken = make_buffer(size);
  if (!taken) return nullptr;
  return {taken.release(),
          [domain = shared_from_this()](Buffer* buffer) { domain->put_back(buffer); }};
}

Domain::OwnBuffer Domain::make_buffer(size_t size) const {
  OwnBuffer buffer(new Buffer);
  buffer->base = static_cast<std::byte*>(std::aligned_alloc(kPage, size));
  if (buffer->base == nullptr) return nullptr;
  buffer->size = size;
  buffer->memory.mr = register_memory(buffer->base, size, local_access());
  if (buffer->memory.mr == nullptr) return nullptr;
  return buffer;
}

void Domain::put_back(Buffer* buffer) {
  OwnBuffer returned(buffer);
  const std::lock_guard lock(mutex_);
  if (spare_bytes_ + returned->size > kSpareBytesMax) return;
  spare_bytes_ += returned->size;
  spare_[returned->size].push_back(std::move(returned));
}

void Domain::Unregister::operator()(Buffer* buffer) const {
  if (buffer->memory.mr != nullptr) ibv_dereg_mr(buffer->memory.mr);
  std::free(buffer->base);
  delete buffer;
}

}  // namespace rpcrdma::verbs
