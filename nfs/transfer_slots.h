// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A fixed number of outstanding READs or WRITEs, each with a buffer that is registered once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "nfs/rpc_channel.h"

namespace uwarp::nfs {

struct TransferSlot {
  std::unique_ptr<RpcBuffer> buffer;
  uint64_t offset = 0;  // in the file, of what is under way
  size_t length = 0;
  RpcCall call;
};

class TransferSlots {
 public:
  TransferSlots(RpcChannel& channel, size_t count, size_t request_bytes)
      : request_bytes_(request_bytes), slots_(count) {
    for (TransferSlot& slot : slots_) {
      slot.buffer = channel.make_buffer(request_bytes);
    }
  }

  size_t request_bytes() const { return request_bytes_; }
  std::vector<TransferSlot>& slots() { return slots_; }

  /// The next piece of a file of `size` bytes, of which those before `next` are taken, is the
  /// slot's. False: there is none.
  bool take_next(TransferSlot& slot, uint64_t& next, uint64_t size) const {
    if (next >= size) {
      return false;
    }
    slot.offset = next;
    slot.length = std::min<uint64_t>(request_bytes_, size - next);
    next += slot.length;
    return true;
  }

  TransferSlot& slot_of(const RpcCall& call) {
    for (TransferSlot& slot : slots_) {
      if (&slot.call == &call) {
        return slot;
      }
    }
    return slots_.front();  // never: all calls are ours
  }

 private:
  size_t request_bytes_;
  std::vector<TransferSlot> slots_;
};

}  // namespace uwarp::nfs
