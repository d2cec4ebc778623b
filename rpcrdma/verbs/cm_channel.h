// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Connection events, taken and acknowledged one by one.
#pragma once

#include <rdma/rdma_cma.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace rpcrdma::verbs {

/// A copy of an event, which is acknowledged already: no id waits for it.
struct CmEvent {
  rdma_cm_event_type type;
  int status;
  rdma_cm_id* id;
  uint8_t initiator_depth;
  uint8_t responder_resources;
  std::vector<std::byte> private_data;
};

class CmChannel {
 public:
  CmChannel();
  ~CmChannel();
  CmChannel(const CmChannel&) = delete;
  CmChannel& operator=(const CmChannel&) = delete;

  /// Null if there is no RDMA connection management on this machine.
  rdma_event_channel* get() const { return channel_; }
  int fd() const { return channel_->fd; }
  /// Never blocks.
  std::optional<CmEvent> next();

 private:
  rdma_event_channel* channel_;
};

}  // namespace rpcrdma::verbs
