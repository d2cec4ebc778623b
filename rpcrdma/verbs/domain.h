// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One RDMA device as a client or server uses it: its protection domain, what it can do, and
// registered buffers that are used again and again.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace rpcrdma::verbs {
class Domain;
}

/// Of the C interface: a registration.
struct rpcrdma_memory {
  std::shared_ptr<rpcrdma::verbs::Domain> domain;
  ibv_mr* mr = nullptr;

  bool covers(const void* base, size_t length) const {
    const auto at = reinterpret_cast<uintptr_t>(base);
    const auto start = reinterpret_cast<uintptr_t>(mr->addr);
    return at >= start && at - start <= mr->length && length <= mr->length - (at - start);
  }
};

namespace rpcrdma::verbs {

/// Registered memory of the library; goes back to its domain.
struct Buffer {
  rpcrdma_memory memory;
  std::byte* base = nullptr;
  size_t size = 0;

  std::span<std::byte> first(size_t length) { return {base, length}; }
  uint32_t lkey() const { return memory.mr->lkey; }
};

class Domain : public std::enable_shared_from_this<Domain> {
 public:
  /// Null: the device gives no protection domain.
  static std::shared_ptr<Domain> of(ibv_context* context);
  ~Domain();

  ibv_context* context() const { return context_; }
  ibv_pd* pd() const { return pd_; }
  const ibv_device_attr& attributes() const { return attributes_; }
  /// Windows of type 2, which a peer's Send can invalidate.
  bool has_windows() const;
  /// Sends that invalidate.
  bool can_invalidate() const;

  /// Registers memory; null on failure, with errno.
  ibv_mr* register_memory(const void* base, size_t length, int access) const;
  /// For memory that only this side's work requests name: RDMA Reads into it, windows over it.
  int local_access() const;

  /// At least `size` bytes; null if there is no memory.
  std::shared_ptr<Buffer> take(size_t size);

 private:
  struct Unregister {
    void operator()(Buffer* buffer) const;
  };
  using OwnBuffer = std::unique_ptr<Buffer, Unregister>;

  explicit Domain(ibv_context* context) : context_(context) {}
  OwnBuffer make_buffer(size_t size) const;
  void put_back(Buffer* buffer);

  ibv_context* context_;
  ibv_pd* pd_ = nullptr;
  ibv_device_attr attributes_{};
  std::mutex mutex_;
  std::map<size_t, std::vector<OwnBuffer>> spare_;  ///< by size, a power of two
  size_t spare_bytes_ = 0;
};

}  // namespace rpcrdma::verbs
