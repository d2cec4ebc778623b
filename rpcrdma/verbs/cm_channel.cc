// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/cm_channel.h"

#include "verbs/descriptor.h"

namespace rpcrdma::verbs {

CmChannel::CmChannel() : channel_(rdma_create_event_channel()) {
  if (channel_ == nullptr || set_nonblocking(channel_->fd)) return;
  rdma_destroy_event_channel(channel_);
  channel_ = nullptr;
}

CmChannel::~CmChannel() {
  if (channel_ != nullptr) rdma_destroy_event_channel(channel_);
}

std::optional<CmEvent> CmChannel::next() {
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(channel_, &event) != 0) return std::nullopt;
  const rdma_conn_param& parameters = event->param.conn;
  CmEvent copy{event->event, event->status, event->id, 0, 0, {}};
  if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST || event->event == RDMA_CM_EVENT_ESTABLISHED) {
    copy.initiator_depth = parameters.initiator_depth;
    copy.responder_resources = parameters.responder_resources;
    const auto* start = static_cast<const std::byte*>(parameters.private_data);
    if (start != nullptr) copy.private_data.assign(start, start + parameters.private_data_len);
  }
  rdma_ack_cm_event(event);
  return copy;
}

}  // namespace rpcrdma::verbs
