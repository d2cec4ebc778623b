// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "faults/connection_ends.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <cerrno>
#include <cstring>

namespace {

constexpr std::chrono::milliseconds kPatience{20000};

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = port;
  return address;
}

rdma_conn_param parameters() {
  rdma_conn_param all{};
  all.responder_resources = all.initiator_depth = 2;
  all.retry_count = all.rnr_retry_count = 7;
  return all;
}

}  // namespace

ConnectionEnds::~ConnectionEnds() {
  destroy_connection();
  destroy_listener();
  if (cq_ != nullptr) {
    EXPECT_EQ(ibv_destroy_cq(cq_), 0);
  }
  if (pd_ != nullptr) {
    EXPECT_EQ(ibv_dealloc_pd(pd_), 0);
  }
  if (channel_ != nullptr) rdma_destroy_event_channel(channel_);
}

int ConnectionEnds::listen() {
  if (channel_ == nullptr && (channel_ = rdma_create_event_channel()) == nullptr) return errno;
  sockaddr_in any = loopback(0);
  if (rdma_create_id(channel_, &listener_, nullptr, RDMA_PS_TCP) != 0) return errno;
  if (rdma_bind_addr(listener_, reinterpret_cast<sockaddr*>(&any)) != 0) return errno;
  return rdma_listen(listener_, 16) == 0 ? 0 : errno;
}

int ConnectionEnds::make_queue_pair(rdma_cm_id* id) {
  if (maker_) return maker_(id);
  if (pd_ == nullptr) pd_ = ibv_alloc_pd(id->verbs);
  if (cq_ == nullptr) cq_ = ibv_create_cq(id->verbs, 64, nullptr, nullptr, 0);
  if (pd_ == nullptr || cq_ == nullptr) return errno;
  ibv_qp_init_attr shape{};
  shape.send_cq = shape.recv_cq = cq_;
  shape.cap = {8, 8, 1, 1, 0};
  shape.qp_type = IBV_QPT_RC;
  shape.sq_sig_all = 1;
  return rdma_create_qp(id, pd_, &shape) == 0 ? 0 : errno;
}

int ConnectionEnds::resolve() {
  ++attempt_;
  sockaddr_in to = loopback(rdma_get_src_port(listener_));
  if (rdma_create_id(channel_, &client_, nullptr, RDMA_PS_TCP) != 0) return errno;
  if (rdma_resolve_addr(client_, nullptr, reinterpret_cast<sockaddr*>(&to), 2000) != 0)
    return errno;
  if (!expect(RDMA_CM_EVENT_ADDR_RESOLVED)) return EPROTO;
  if (rdma_resolve_route(client_, 2000) != 0) return errno;
  if (!expect(RDMA_CM_EVENT_ROUTE_RESOLVED)) return EPROTO;
  return make_queue_pair(client_);
}

bool ConnectionEnds::next_event(std::chrono::milliseconds patience, rdma_cm_event_type& type,
                                rdma_cm_id*& id) {
  for (;;) {
    pollfd wait{channel_->fd, POLLIN, 0};
    if (poll(&wait, 1, static_cast<int>(patience.count())) != 1) return false;
    rdma_cm_event* event = nullptr;
    if (rdma_get_cm_event(channel_, &event) != 0) {
      type = RDMA_CM_EVENT_CONNECT_ERROR;  // librdmacm could not make the event
      id = nullptr;
      return true;
    }
    type = event->event;
    id = event->id;
    const bool late = type == RDMA_CM_EVENT_CONNECT_REQUEST && !is_of_attempt(event->param.conn);
    rdma_ack_cm_event(event);
    if (!late) return true;
    EXPECT_EQ(rdma_destroy_id(id), 0);
  }
}

// True if the request is of the current attempt. A request may wait in the listener's socket and
// arrive long after its sender has given up.
bool ConnectionEnds::is_of_attempt(const rdma_conn_param& request) const {
  return request.private_data_len >= sizeof attempt_ &&
         std::memcmp(request.private_data, &attempt_, sizeof attempt_) == 0;
}

bool ConnectionEnds::expect(rdma_cm_event_type type) {
  rdma_cm_event_type found;
  rdma_cm_id* id;
  return next_event(kPatience, found, id) && found == type;
}

Outcome ConnectionEnds::connect(std::chrono::milliseconds patience, int& error) {
  rdma_conn_param all = parameters();
  all.private_data = &attempt_;
  all.private_data_len = sizeof attempt_;
  error = 0;
  if (rdma_connect(client_, &all) != 0) {
    error = errno;
    return Outcome::kRefused;
  }
  int established = 0;
  rdma_cm_event_type type;
  rdma_cm_id* id;
  while (established < 2) {
    if (!next_event(patience, type, id)) return Outcome::kSilence;
    if (type == RDMA_CM_EVENT_ESTABLISHED) {
      ++established;
    } else if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      server_ = id;
      error = make_queue_pair(server_);
      if (error == 0 && rdma_accept(server_, &all) != 0) error = errno;
      if (error != 0) return Outcome::kRefused;
    } else {
      return Outcome::kRefused;
    }
  }
  return Outcome::kConnected;
}

bool ConnectionEnds::one_exchange() {
  ibv_recv_wr receive{7, nullptr, nullptr, 0};
  ibv_recv_wr* bad_receive;
  if (ibv_post_recv(server_->qp, &receive, &bad_receive) != 0) return false;
  ibv_send_wr send{};
  send.wr_id = 8;
  send.opcode = IBV_WR_SEND;
  ibv_send_wr* bad_send;
  if (ibv_post_send(client_->qp, &send, &bad_send) != 0) return false;
  const auto end = std::chrono::steady_clock::now() + kPatience;
  for (int found = 0; found < 2;) {
    ibv_wc completion;
    const int count = ibv_poll_cq(cq_, 1, &completion);
    if (count == 1 && completion.status != IBV_WC_SUCCESS) return false;
    found += count;
    if (std::chrono::steady_clock::now() > end) return false;
  }
  return true;
}

int ConnectionEnds::disconnect_client() { return rdma_disconnect(client_) == 0 ? 0 : errno; }

bool ConnectionEnds::both_ended(std::chrono::milliseconds patience) {
  rdma_cm_event_type type;
  rdma_cm_id* id;
  for (int ended = 0; ended < 2;) {
    if (!next_event(patience, type, id)) return false;
    if (type == RDMA_CM_EVENT_DISCONNECTED) ++ended;
  }
  return true;
}

void ConnectionEnds::disconnect() {
  if (client_ != nullptr) (void)rdma_disconnect(client_);
  if (server_ != nullptr) (void)rdma_disconnect(server_);
}

void ConnectionEnds::destroy_connection() {
  // rdma_destroy_id() waits until all events that were taken are acknowledged; all are.
  for (rdma_cm_id** id : {&client_, &server_}) {
    if (*id == nullptr) continue;
    if ((*id)->qp != nullptr) rdma_destroy_qp(*id);
    EXPECT_EQ(rdma_destroy_id(*id), 0) << std::strerror(errno);
    *id = nullptr;
  }
}

void ConnectionEnds::destroy_listener() {
  if (listener_ == nullptr) return;
  EXPECT_EQ(rdma_destroy_id(listener_), 0);
  listener_ = nullptr;
}
