// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// siw_peer serve ADDRESS PORT BYTES END           one connection: answers with so much private data
// siw_peer connect ADDRESS PORT BYTES DEPTH END   connects with so much, prints what came back
//
// END: `ends` the connection as soon as it is established; `waits` for the peer to do so; `rejects`
// the request.
//
// A plain rdma_cm program for the meeting of uwarp and siw: private data of every length, and what
// either side reports of responder resources (DEPTH is asked for in both directions). Private data
// is the pattern of verbs_peer.h, so that both ends can check it.

#include <algorithm>

#include "../tools/verbs_peer.h"

namespace {

using namespace peer;

constexpr uint8_t kRequestSeed = 11;
constexpr uint8_t kReplySeed = 23;
constexpr size_t kMostPrivateData = 255;

rdma_cm_event* next_event(rdma_event_channel* channel) {
  rdma_cm_event* event = nullptr;
  require(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
  return event;
}

/// One line: the event, its status, its private data and depths.
rdma_cm_event_type report(rdma_event_channel* channel, uint8_t seed) {
  rdma_cm_event* event = next_event(channel);
  const rdma_conn_param& conn = event->param.conn;
  const auto* data = static_cast<const uint8_t*>(conn.private_data);
  const size_t length = conn.private_data_len;
  std::printf("%s status=%d private=%zu%s resources=%d depth=%d\n", rdma_event_str(event->event),
              event->status, length,
              length == 0 || has_pattern(data, 0, length, seed) ? "" : " WRONG BYTES",
              conn.responder_resources, conn.initiator_depth);
  std::fflush(stdout);
  const rdma_cm_event_type type = event->event;
  rdma_ack_cm_event(event);
  return type;
}

void make_queue_pair(rdma_cm_id* id) {
  ibv_cq* cq = ibv_create_cq(id->verbs, 16, nullptr, nullptr, 0);
  require(cq, "ibv_create_cq");
  ibv_qp_init_attr attr = queue_pair_attributes(cq);
  require(rdma_create_qp(id, nullptr, &attr) == 0, "rdma_create_qp");
}

struct Parameters {
  std::vector<uint8_t> bytes;
  rdma_conn_param param{};

  Parameters(const char* length, uint8_t seed, int depth)
      : bytes(std::min<size_t>(std::strtoul(length, nullptr, 10), kMostPrivateData)) {
    fill(bytes, seed);
    param.private_data = bytes.data();
    param.private_data_len = static_cast<uint8_t>(bytes.size());
    param.responder_resources = static_cast<uint8_t>(depth);
    param.initiator_depth = static_cast<uint8_t>(depth);
  }
};

/// From ESTABLISHED to DISCONNECTED.
void see_to_the_end(rdma_event_channel* channel, rdma_cm_id* id, bool ends) {
  if (ends) require(rdma_disconnect(id) == 0, "rdma_disconnect");
  require(report(channel, 0) == RDMA_CM_EVENT_DISCONNECTED, "not disconnected");
  if (!ends) rdma_disconnect(id);
}

int serve(const char* address, const char* port, const char* length, const std::string& end) {
  rdma_event_channel* channel = rdma_create_event_channel();
  require(channel, "rdma_create_event_channel");
  rdma_cm_id* listener = nullptr;
  require(rdma_create_id(channel, &listener, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
  sockaddr_storage where = parse_address(address, port);
  require(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&where)) == 0, "rdma_bind_addr");
  require(rdma_listen(listener, 4) == 0, "rdma_listen");
  rdma_cm_event* request = next_event(channel);
  require(request->event == RDMA_CM_EVENT_CONNECT_REQUEST, "another event was due");
  rdma_cm_id* id = request->id;
  const rdma_conn_param conn = request->param.conn;
  const auto* data = static_cast<const uint8_t*>(conn.private_data);
  std::printf(
      "request private=%d%s resources=%d depth=%d\n", conn.private_data_len,
      conn.private_data_len == 0 || has_pattern(data, 0, conn.private_data_len, kRequestSeed)
          ? ""
          : " WRONG BYTES",
      conn.responder_resources, conn.initiator_depth);
  const int depth = std::max<int>(conn.responder_resources, 1);
  rdma_ack_cm_event(request);
  Parameters answer(length, kReplySeed, depth);
  if (end == "rejects") {
    require(rdma_reject(id, answer.bytes.data(), static_cast<uint8_t>(answer.bytes.size())) == 0,
            "rdma_reject");
  } else {
    make_queue_pair(id);
    require(rdma_accept(id, &answer.param) == 0, "rdma_accept");
    require(report(channel, kRequestSeed) == RDMA_CM_EVENT_ESTABLISHED, "not established");
    see_to_the_end(channel, id, end == "ends");
    rdma_destroy_qp(id);
  }
  rdma_destroy_id(id);
  rdma_destroy_id(listener);
  std::printf("done\n");
  return 0;
}

int connect_to(const char* address, const char* port, const char* length, const char* depth,
               const std::string& end) {
  rdma_event_channel* channel = rdma_create_event_channel();
  require(channel, "rdma_create_event_channel");
  rdma_cm_id* id = nullptr;
  require(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
  sockaddr_storage where = parse_address(address, port);
  require(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&where), kResolveMs) == 0,
          "rdma_resolve_addr");
  require(report(channel, 0) == RDMA_CM_EVENT_ADDR_RESOLVED, "the address was not resolved");
  require(rdma_resolve_route(id, kResolveMs) == 0, "rdma_resolve_route");
  require(report(channel, 0) == RDMA_CM_EVENT_ROUTE_RESOLVED, "the route was not resolved");
  make_queue_pair(id);
  Parameters request(length, kRequestSeed, std::atoi(depth));
  require(rdma_connect(id, &request.param) == 0, "rdma_connect");
  if (report(channel, kReplySeed) == RDMA_CM_EVENT_ESTABLISHED)
    see_to_the_end(channel, id, end == "ends");
  rdma_destroy_qp(id);
  rdma_destroy_id(id);
  std::printf("done\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "serve" && argc == 6) return serve(argv[2], argv[3], argv[4], argv[5]);
  if (mode == "connect" && argc == 7)
    return connect_to(argv[2], argv[3], argv[4], argv[5], argv[6]);
  std::fprintf(stderr,
               "usage: siw_peer serve ADDRESS PORT BYTES ends|waits|rejects\n"
               "       siw_peer connect ADDRESS PORT BYTES DEPTH ends|waits\n");
  return 2;
}
