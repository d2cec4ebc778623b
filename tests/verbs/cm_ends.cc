// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/cm_ends.h"

#include <arpa/inet.h>

#include <cerrno>
#include <cstring>

namespace {

constexpr int kResolveMs = 2000;

}  // namespace

rdma_conn_param connection_parameters(uint8_t depth) {
  rdma_conn_param all = {};
  all.responder_resources = all.initiator_depth = depth;
  all.retry_count = all.rnr_retry_count = 7;
  return all;
}

CmChannel make_cm_channel() { return {rdma_create_event_channel(), rdma_destroy_event_channel}; }

CmId make_cm_id(rdma_event_channel* channel) {
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP), 0);
  return {id, destroy_cm_id};
}

sockaddr_storage cm_address(const std::string& address, uint16_t port) {
  sockaddr_storage out = {};
  auto* in = reinterpret_cast<sockaddr_in*>(&out);
  auto* in6 = reinterpret_cast<sockaddr_in6*>(&out);
  if (inet_pton(AF_INET, address.c_str(), &in->sin_addr) == 1) {
    in->sin_family = AF_INET;
    in->sin_port = htons(port);
  } else {
    EXPECT_EQ(inet_pton(AF_INET6, address.c_str(), &in6->sin6_addr), 1) << address;
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(port);
  }
  return out;
}

std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET)
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  else if (address->sa_family == AF_INET6)
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
              sizeof text);
  return text;
}

uint16_t port_of(const sockaddr* address) {
  // The port is at the same place in both address families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port);
}

rdma_cm_id* expect_event(rdma_event_channel* channel, rdma_cm_event_type type,
                         rdma_conn_param* told) {
  for (;;) {
    if (!readable(channel->fd)) {
      ADD_FAILURE() << rdma_event_str(type) << " does not come";
      return nullptr;
    }
    rdma_cm_event* event = nullptr;
    EXPECT_EQ(rdma_get_cm_event(channel, &event), 0) << std::strerror(errno);
    if (event == nullptr) return nullptr;
    const rdma_cm_event_type found = event->event;
    rdma_cm_id* id = event->id;
    if (told != nullptr) *told = event->param.conn;
    rdma_ack_cm_event(event);
    if (found == RDMA_CM_EVENT_TIMEWAIT_EXIT) continue;
    EXPECT_STREQ(rdma_event_str(found), rdma_event_str(type));
    return found == type ? id : nullptr;
  }
}

CmEnds::CmEnds(const std::string& listen_on)
    : client_parameters(connection_parameters(4)),
      server_parameters(connection_parameters(4)),
      client_channel_(make_cm_channel()),
      server_channel_(make_cm_channel()),
      listener_(make_cm_id(server_channel_.get())),
      client_(make_cm_id(client_channel_.get())),
      server_(nullptr, destroy_cm_id) {
  sockaddr_storage address = cm_address(listen_on);
  EXPECT_EQ(rdma_bind_addr(listener_.get(), generic(address)), 0) << std::strerror(errno);
  EXPECT_EQ(rdma_listen(listener_.get(), 4), 0) << std::strerror(errno);
  port_ = ntohs(rdma_get_src_port(listener_.get()));
}

CmEnds::~CmEnds() {
  // Regions must be gone before librdmacm frees their domains together with the ids.
  client_mr_.reset();
  server_mr_.reset();
}

bool CmEnds::make_queue_pair(rdma_cm_id* id) {
  ibv_qp_init_attr init = init_attributes(nullptr, 16);
  init.sq_sig_all = 1;
  const bool made = rdma_create_qp(id, nullptr, &init) == 0;
  EXPECT_TRUE(made) << std::strerror(errno);
  if (!made) return false;
  Mr& mr = id == client_.get() ? client_mr_ : server_mr_;
  mr.reset(ibv_reg_mr(id->pd, memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE));
  return mr != nullptr;
}

bool CmEnds::resolve(sockaddr_storage to, sockaddr_storage* from) {
  sockaddr* source = from != nullptr ? generic(*from) : nullptr;
  const bool begun = rdma_resolve_addr(client(), source, generic(to), kResolveMs) == 0;
  EXPECT_TRUE(begun) << std::strerror(errno);
  return begun && expect_event(client_channel_.get(), RDMA_CM_EVENT_ADDR_RESOLVED) != nullptr &&
         rdma_resolve_route(client(), kResolveMs) == 0 &&
         expect_event(client_channel_.get(), RDMA_CM_EVENT_ROUTE_RESOLVED) != nullptr &&
         make_queue_pair(client());
}

bool CmEnds::connect() {
  const bool begun = rdma_connect(client(), &client_parameters) == 0;
  EXPECT_TRUE(begun) << std::strerror(errno);
  if (!begun) return false;
  server_.reset(expect_event(server_channel_.get(), RDMA_CM_EVENT_CONNECT_REQUEST));
  if (server_ == nullptr || !make_queue_pair(server())) return false;
  const bool accepted = rdma_accept(server(), &server_parameters) == 0;
  EXPECT_TRUE(accepted) << std::strerror(errno);
  return accepted &&
         expect_event(client_channel_.get(), RDMA_CM_EVENT_ESTABLISHED, &client_told) != nullptr &&
         expect_event(server_channel_.get(), RDMA_CM_EVENT_ESTABLISHED, &server_told) != nullptr;
}

int CmEnds::post_receive(rdma_cm_id* id, uint64_t wr_id) {
  return rdma_post_recv(id, reinterpret_cast<void*>(wr_id), memory_.data(), memory_.size(),
                        id == client() ? client_mr_.get() : server_mr_.get());
}

int CmEnds::post_send(rdma_cm_id* id, uint64_t wr_id) {
  return rdma_post_send(id, reinterpret_cast<void*>(wr_id), memory_.data(), memory_.size(),
                        id == client() ? client_mr_.get() : server_mr_.get(), 0);
}
