// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Two ends in one process, connected by rdma_cm. Plain librdmacm; nothing of uwarp.
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

/// `depth`: Reads and atomics that may be open in each direction.
rdma_conn_param connection_parameters(uint8_t depth);
CmChannel make_cm_channel();
CmId make_cm_id(rdma_event_channel* channel);

/// An address of either family, from text.
sockaddr_storage cm_address(const std::string& address, uint16_t port = 0);
inline sockaddr* generic(sockaddr_storage& address) {
  return reinterpret_cast<sockaddr*>(&address);
}
std::string text_of(const sockaddr* address);
/// In host byte order, for results of rdma_get_local_addr() and rdma_get_peer_addr().
uint16_t port_of(const sockaddr* address);

/// Takes and acknowledges the next event of the channel, which must have this type, and returns its
/// id. Its parameters are copied to `told`. TIMEWAIT_EXIT, which only the RoCE persona has, is
/// skipped.
rdma_cm_id* expect_event(rdma_event_channel* channel, rdma_cm_event_type type,
                         rdma_conn_param* told = nullptr);

/// A client and a server, each connected with its own parameters.
class CmEnds {
 public:
  /// Each end has its own channel. Listens on `listen_on` and any port.
  explicit CmEnds(const std::string& listen_on = "127.0.0.1");
  ~CmEnds();
  uint16_t port() const { return port_; }  ///< host byte order
  /// Goes up to ROUTE_RESOLVED and makes the client's queue pair. If it returns false, a step and
  /// the test have failed.
  bool resolve(sockaddr_storage to, sockaddr_storage* from = nullptr);
  bool connect();

  rdma_cm_id* client() { return client_.get(); }
  rdma_cm_id* server() { return server_.get(); }
  /// Posts to the id's queue pair, with 64 bytes of its memory.
  int post_receive(rdma_cm_id* id, uint64_t wr_id);
  int post_send(rdma_cm_id* id, uint64_t wr_id);

  rdma_conn_param client_parameters;
  rdma_conn_param server_parameters;
  rdma_conn_param client_told = {};  // from the event that ends the attempt to connect
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
