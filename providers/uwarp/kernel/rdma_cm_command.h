// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// One rdma_cm command as it was written: header, payload, response area. The only place that reads
// a command's bytes; copies are bounded by what was written, as the kernel does it.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernel/rdma_cm_node.h"
#include "kernel/user_memory.h"

namespace uwarp {

class RdmaCmNode::Command {
 public:
  /// Larger than every command that exists.
  static constexpr size_t kMaxPayload = 512;

  /// Copies header and payload in. EINVAL, EFAULT.
  int read(const void* bytes, size_t length, NodeByFd by_fd) {
    if (length < sizeof header_) return EINVAL;
    if (const int error = copy_from_user(&header_, bytes, sizeof header_)) return error;
    if (header_.in > length - sizeof header_) return EINVAL;
    node_by_fd = by_fd;
    payload_size_ = std::min<size_t>(header_.in, kMaxPayload);
    return copy_from_user(payload_, static_cast<const char*>(bytes) + sizeof header_,
                          payload_size_);
  }

  uint32_t code() const { return header_.cmd; }
  size_t response_room() const { return header_.out; }

  /// The payload; what an older application did not write is zero.
  template <typename Payload>
  Payload payload() const {
    static_assert(sizeof(Payload) <= kMaxPayload);
    Payload result{};
    std::memcpy(&result, payload_, std::min(sizeof result, payload_size_));
    return result;
  }

  /// Checks, before anything is done, that a response of at least `least` bytes fits.
  int check_room(size_t least) const { return response_room() < least ? ENOSPC : 0; }

  /// Writes the response, cut to the room that an older application gives.
  template <typename Response>
  int respond(uint64_t address, const Response& response) const {
    return copy_to_user(address, &response, std::min(sizeof response, response_room()));
  }

  NodeByFd node_by_fd = nullptr;

 private:
  rdma_ucm_cmd_hdr header_{};
  size_t payload_size_ = 0;
  alignas(8) std::byte payload_[kMaxPayload];
};

}  // namespace uwarp
