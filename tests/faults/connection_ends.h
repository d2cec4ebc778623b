// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Both ends of rdma_cm connections in one process, used like two applications.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

/// Result of an attempt to connect.
enum class Outcome { kConnected, kRefused, kSilence };

class ConnectionEnds {
 public:
  ConnectionEnds() = default;
  ~ConnectionEnds();
  ConnectionEnds(const ConnectionEnds&) = delete;
  ConnectionEnds& operator=(const ConnectionEnds&) = delete;

  /// `maker` makes the queue pairs and returns 0 or an errno. It compares with client() to know the
  /// end. Without a maker, plain queue pairs are made.
  void make_queue_pairs_by(std::function<int(rdma_cm_id*)> maker) { maker_ = std::move(maker); }
  /// Listens on any port of loopback. 0 or an errno.
  int listen();
  /// Resolves the client's id and makes its queue pair. 0 or an errno.
  int resolve();
  /// From connect() to ESTABLISHED at both ends. `error` is the errno of a call that failed.
  Outcome connect(std::chrono::milliseconds patience, int& error);
  /// The client disconnects. 0 or an errno.
  int disconnect_client();
  /// Waits until both ends have the event of the end.
  bool both_ended(std::chrono::milliseconds patience);
  /// Both ends disconnect, without waiting for events.
  void disconnect();
  /// All ids except that of the listener.
  void destroy_connection();
  void destroy_listener();

  bool one_exchange();
  rdma_cm_id* client() const { return client_; }
  rdma_cm_id* server() const { return server_; }

 private:
  bool next_event(std::chrono::milliseconds patience, rdma_cm_event_type& type, rdma_cm_id*& id);
  bool is_of_attempt(const rdma_conn_param& request) const;
  bool expect(rdma_cm_event_type type);
  int make_queue_pair(rdma_cm_id* id);

  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* listener_ = nullptr;
  rdma_cm_id* client_ = nullptr;
  rdma_cm_id* server_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  std::function<int(rdma_cm_id*)> maker_;
  uint32_t attempt_ = 0;  // sent as private data
};
