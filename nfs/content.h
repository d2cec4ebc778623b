// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The bytes of a file that is kept in memory: always in one piece, so that any range can be sent or
// received by RDMA as it stands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "nfs/xdr.h"

namespace uwarp::nfs {

class Content {
 public:
  uint64_t size() const { return size_; }

  /// The bytes from `offset` on, at most `count`, fewer at the end.
  ConstBytes range(uint64_t offset, size_t count) const;

  /// While the caller holds this, ranges that it got stay valid, also if the file is removed.
  std::shared_ptr<const void> owner() const { return memory_; }

  /// Growing adds zeros. Throws std::bad_alloc.
  void resize(uint64_t size);

  /// Grows as needed.
  void write(uint64_t offset, ConstBytes data);

 private:
  class Memory;

  void reserve(uint64_t size);

  std::shared_ptr<Memory> memory_;
  uint64_t size_ = 0;
};

}  // namespace uwarp::nfs
