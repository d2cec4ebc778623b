// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Two ends in one process that rdma_cm connects. Plain librdmacm; nothing of uwarp.
#pragma once

#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "verbs/verbs_fixture.h"

inline void destroy_cm_id(rdma_cm_id* id) {
  if (id->qp != nullptr) rdma_destroy_qp(id);
  EXPECT_EQ(rdma_destroy_id(id), 0);
}
using CmId = std::unique_ptr<rdma_cm_id, void (*)(rdma_cm_id*)>;
using CmChannel = std::unique_ptr<rdma_event_channel, void (*)(rdma_event_channel*)>;

CmChannel make_cm_channel();
CmId make_cm_id(rdma_event_channel* channel);

/// Either family; `address` is text.
sockaddr_storage cm_address(const std::string& address, uint16_t port = 0);
inline sockaddr* generic(sockaddr_storage& address) {
  return reinterpret_cast<sockaddr*>(&address);
}
std::string text_of(const sockaddr* address);
/// In host byte order, of rdma_get_local_addr() and rdma_get_peer_addr().
uint16_t port_of(const sockaddr* address);

/// The next event of the channel, acknowledged, if it is of this type; its parameters go to `told`.
/// TIMEWAIT_EXIT, which only the RoCE persona has, is left out.
rdma_cm_id* expect_event(rdma_event_channel* channel, rdma_cm_event_type type,
                         rdma_conn_param* told = nullptr);

/// A client and a server. Each is connected by its own parameters.
class CmEnds {
 public:
  /// Each end has a channel of its own. Listens on `listen_on`, any port.
  explicit CmEnds(const std::string& listen_on = "127.0.0.1");
  ~CmEnds();
  uint16_t port() const { return port_; }  ///< host byte order
  /// Up to ROUTE_RESOLVED, and the client's queue pair. False: a step failed, and the test with it.
  bool resolve(sockaddr_storage to, sockaddr_storage* from = nullptr);
  bool connect();

  rdma_cm_id* client() { return client_.get(); }
  rdma_cm_id* server() { return server_.get(); }
  /// Posted to the id's queue pair; 64 bytes of its memory.
  int post_receive(rdma_cm_id* id, uint64_t wr_id);
  int post_send(rdma_cm_id* id, uint64_t wr_id);

  rdma_conn_param client_parameters;
  rdma_conn_param server_parameters;
  rdma_conn_param client_told = {};  ///< with the event that ends its attempt
  rdma_conn_param server_told = {};

 private:
  bool make_queue_pair(rdma_cm_id* id);

  CmChannel client_channel_;
  CmChannel server_channel_;
  CmId listener_;
  CmId client_;
  CmId server_;
  uint16_t port_ = 0;
  std::vector<uint8_t> memory_ = std::vector<uint8_t>(64);
  Mr client_mr_;
  Mr server_mr_;
};
