// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// verbs_peer serve ADDRESS PORT         one connection: prints completions and events till its end
// verbs_peer OPERATION ADDRESS PORT     does one operation against it and checks the bytes
// verbs_peer lent-rkey ADDRESS PORT ADDRESS2 PORT2
//                                       shows the second server a key that the first one gave
// OPERATION: send send-se send-inv write write-imm read fetch-add cmp-swap bad-rkey hold
//            overrun-exit overrun-stay overrun-die
//
// `hold` posts nothing after the connection stands and waits for its end, so that a test can kill
// either side. `overrun-` sends more than the server has receives for, so that the rest gets stuck;
// then it disconnects and exits or stays, or is killed. The last line of a side that is content is
// "done".

#include "verbs_peer.h"

#include <arpa/inet.h>
#include <endian.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <map>

namespace {

using namespace peer;

constexpr uint8_t kServerSeed = 3;
constexpr uint8_t kClientSeed = 90;
constexpr int kDepth = 16;
constexpr int kMostSends = 64;

/// One rdma_cm connection with everything that hangs on it.
struct Connection {
  rdma_event_channel* channel = nullptr;
  rdma_cm_id* id = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  Memory memory;
  Invitation remote;
};

rdma_cm_event* next_event(Connection& c) {
  rdma_cm_event* event = nullptr;
  require(rdma_get_cm_event(c.channel, &event) == 0, "rdma_get_cm_event");
  std::printf("event %s status=%d at %.1f\n", rdma_event_str(event->event), event->status,
              now_ms());
  std::fflush(stdout);
  return event;
}

rdma_cm_event* expect_event(Connection& c, rdma_cm_event_type type) {
  rdma_cm_event* event = next_event(c);
  require(event->event == type, "another event was due");
  return event;
}

void take_invitation(Connection& c, const rdma_cm_event* event) {
  require(event->param.conn.private_data_len >= sizeof(Invitation), "private data too short");
  std::memcpy(&c.remote, event->param.conn.private_data, sizeof c.remote);
  c.remote.address = be64toh(c.remote.address);
  c.remote.rkey = be32toh(c.remote.rkey);
  c.remote.length = be32toh(c.remote.length);
}

void make_queue_pair(Connection& c, uint8_t seed) {
  c.pd = ibv_alloc_pd(c.id->verbs);
  require(c.pd, "ibv_alloc_pd");
  c.cq = ibv_create_cq(c.id->verbs, 256, nullptr, nullptr, 0);
  require(c.cq, "ibv_create_cq");
  ibv_qp_init_attr attr = queue_pair_attributes(c.cq);
  require(rdma_create_qp(c.id, c.pd, &attr) == 0, "rdma_create_qp");
  c.memory.register_with(c.pd, seed);
  c.memory.post_receives(c.id->qp);
}

rdma_conn_param connection_parameters(const Invitation& mine) {
  rdma_conn_param param{};
  param.private_data = &mine;
  param.private_data_len = sizeof mine;
  param.responder_resources = kDepth;
  param.initiator_depth = kDepth;
  param.retry_count = 7;
  param.rnr_retry_count = 7;
  return param;
}

/// The next completion, or false when `give_up` milliseconds passed.
bool next_wc(Connection& c, ibv_wc& wc, double give_up) {
  const double deadline = now_ms() + give_up;
  while (now_ms() < deadline) {
    const int count = ibv_poll_cq(c.cq, 1, &wc);
    require(count >= 0, "ibv_poll_cq");
    if (count == 1) {
      print_wc(wc);
      return true;
    }
  }
  return false;
}

void print_async_events(ibv_context* context) {
  pollfd fd{context->async_fd, POLLIN, 0};
  while (poll(&fd, 1, 200) == 1) {
    ibv_async_event event{};
    if (ibv_get_async_event(context, &event) != 0) return;
    std::printf("async %s\n", ibv_event_type_str(event.event_type));
    ibv_ack_async_event(&event);
  }
}

/// Until the connection has ended and each receive has its completion.
void watch_to_the_end(Connection& c, int open_receives,
                      const std::function<void(const ibv_wc&)>& on) {
  bool connected = true;
  pollfd fd{c.channel->fd, POLLIN, 0};
  while (connected || open_receives > 0) {
    ibv_wc wc{};
    const int count = ibv_poll_cq(c.cq, 1, &wc);
    require(count >= 0, "ibv_poll_cq");
    if (count == 1) {
      print_wc(wc);
      if (wc.wr_id >= 1000) --open_receives;
      if (wc.status == IBV_WC_SUCCESS) on(wc);
    }
    if (connected && poll(&fd, 1, count == 1 ? 0 : 1) == 1) {
      rdma_cm_event* event = expect_event(c, RDMA_CM_EVENT_DISCONNECTED);
      rdma_ack_cm_event(event);
      connected = false;
      rdma_disconnect(c.id);
    }
  }
}

void release(Connection& c) {
  print_async_events(c.id->verbs);
  rdma_destroy_qp(c.id);
  ibv_destroy_cq(c.cq);
  c.memory.release();
  ibv_dealloc_pd(c.pd);
  rdma_destroy_id(c.id);
  rdma_destroy_event_channel(c.channel);
}

/// What became of the region: of its first word, which atomics use, and of all bytes behind it.
void report_changes(const Memory& memory) {
  uint64_t word = 0;
  std::memcpy(&word, memory.region.data(), sizeof word);
  std::printf("first word %llu\n", static_cast<unsigned long long>(word));
  size_t first = kRegionBytes, end = 0;
  for (size_t i = sizeof word; i < kRegionBytes; ++i) {
    if (memory.region[i] == pattern(i, kServerSeed)) continue;
    first = std::min(first, i);
    end = i + 1;
  }
  if (end == 0) {
    std::printf("memory untouched\n");
    return;
  }
  const bool expected = has_pattern(memory.region.data(), first, end - first, kClientSeed);
  std::printf("memory changed from %zu to %zu%s\n", first, end,
              expected ? " to the client's pattern" : "");
}

int serve(const char* address, const char* port) {
  Connection c;
  c.channel = rdma_create_event_channel();
  require(c.channel, "rdma_create_event_channel");
  rdma_cm_id* listener = nullptr;
  require(rdma_create_id(c.channel, &listener, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
  sockaddr_storage where = parse_address(address, port);
  require(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&where)) == 0, "rdma_bind_addr");
  require(rdma_listen(listener, 4) == 0, "rdma_listen");
  rdma_cm_event* request = expect_event(c, RDMA_CM_EVENT_CONNECT_REQUEST);
  c.id = request->id;
  take_invitation(c, request);
  rdma_ack_cm_event(request);
  make_queue_pair(c, kServerSeed);
  // Atomics work on a known word at the start of the region.
  const uint64_t start_word = 40;
  std::memcpy(c.memory.region.data(), &start_word, sizeof start_word);
  const Invitation mine = c.memory.invitation();
  rdma_conn_param param = connection_parameters(mine);
  require(rdma_accept(c.id, &param) == 0, "rdma_accept");
  rdma_ack_cm_event(expect_event(c, RDMA_CM_EVENT_ESTABLISHED));
  watch_to_the_end(c, kReceives, [&](const ibv_wc& wc) {
    if (wc.wc_flags & IBV_WC_WITH_IMM) std::printf("immediate %u\n", ntohl(wc.imm_data));
    if (wc.wc_flags & IBV_WC_WITH_INV) {
      std::printf("invalidated %s\n", wc.invalidated_rkey == c.memory.region_mr->rkey
                                          ? "the region"
                                          : "something else");
    }
    if (wc.opcode == IBV_WC_RECV && wc.byte_len > 0) {
      const uint8_t* bytes = &c.memory.receives[(wc.wr_id - 1000) * kReceiveBytes];
      std::printf(
          "received %u bytes%s\n", wc.byte_len,
          has_pattern(bytes, 0, wc.byte_len, kClientSeed) ? " of the client's pattern" : "");
    }
  });
  report_changes(c.memory);
  release(c);
  rdma_destroy_id(listener);
  std::printf("done\n");
  return 0;
}

void connect_to(Connection& c, const char* address, const char* port) {
  c.channel = rdma_create_event_channel();
  require(c.channel, "rdma_create_event_channel");
  require(rdma_create_id(c.channel, &c.id, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
  sockaddr_storage where = parse_address(address, port);
  require(rdma_resolve_addr(c.id, nullptr, reinterpret_cast<sockaddr*>(&where), kResolveMs) == 0,
          "rdma_resolve_addr");
  rdma_ack_cm_event(expect_event(c, RDMA_CM_EVENT_ADDR_RESOLVED));
  require(rdma_resolve_route(c.id, kResolveMs) == 0, "rdma_resolve_route");
  rdma_ack_cm_event(expect_event(c, RDMA_CM_EVENT_ROUTE_RESOLVED));
  make_queue_pair(c, kClientSeed);
  const Invitation mine = c.memory.invitation();
  rdma_conn_param param = connection_parameters(mine);
  require(rdma_connect(c.id, &param) == 0, "rdma_connect");
  rdma_cm_event* established = expect_event(c, RDMA_CM_EVENT_ESTABLISHED);
  take_invitation(c, established);
  rdma_ack_cm_event(established);
}

struct Operation {
  ibv_wr_opcode opcode;
  unsigned flags;
  size_t bytes;
};

const std::map<std::string, Operation> kOperations = {
    {"send", {IBV_WR_SEND, 0, 5000}},
    {"send-se", {IBV_WR_SEND, IBV_SEND_SOLICITED, 5000}},
    {"send-inv", {IBV_WR_SEND_WITH_INV, 0, 5000}},
    {"write", {IBV_WR_RDMA_WRITE, 0, kOperandBytes}},
    {"write-imm", {IBV_WR_RDMA_WRITE_WITH_IMM, 0, kOperandBytes}},
    {"read", {IBV_WR_RDMA_READ, 0, kOperandBytes}},
    {"fetch-add", {IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8}},
    {"cmp-swap", {IBV_WR_ATOMIC_CMP_AND_SWP, 0, 8}},
    {"bad-rkey", {IBV_WR_RDMA_WRITE, 0, 4096}},
};

void post(Connection& c, const std::string& name, const Operation& operation) {
  ibv_sge sge{reinterpret_cast<uint64_t>(c.memory.region.data()),
              static_cast<uint32_t>(operation.bytes), c.memory.region_mr->lkey};
  ibv_send_wr wr{};
  wr.wr_id = 1;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = operation.opcode;
  wr.send_flags = IBV_SEND_SIGNALED | operation.flags;
  const uint32_t rkey = name == "bad-rkey" ? c.remote.rkey ^ 0x5a5a5a00 : c.remote.rkey;
  if (operation.opcode == IBV_WR_SEND_WITH_INV) {
    wr.invalidate_rkey = rkey;
  } else if (operation.bytes == 8) {
    wr.wr.atomic.remote_addr = c.remote.address;
    wr.wr.atomic.rkey = rkey;
    wr.wr.atomic.compare_add = name == "fetch-add" ? 2 : 40;
    wr.wr.atomic.swap = 77;
  } else {
    wr.wr.rdma.remote_addr = c.remote.address;
    wr.wr.rdma.rkey = rkey;
  }
  if (operation.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) wr.imm_data = htonl(4711);
  ibv_send_wr* bad = nullptr;
  const int result = ibv_post_send(c.id->qp, &wr, &bad);
  if (result != 0) {
    errno = result;
    die("ibv_post_send");
  }
}

void check_result(const Connection& c, const std::string& name) {
  const uint8_t* region = c.memory.region.data();
  if (name == "read") {
    require(has_pattern(region, 8, kOperandBytes - 8, kServerSeed), "bytes read differ");
    require(has_pattern(region, kOperandBytes, kRegionBytes - kOperandBytes, kClientSeed),
            "bytes behind the read changed");
  }
  if (name == "fetch-add" || name == "cmp-swap") {
    uint64_t old = 0;
    std::memcpy(&old, region, sizeof old);
    require(old == 40, "the atomic returned another value");
  }
}

int run_operation(const std::string& name, const char* address, const char* port) {
  Connection c;
  connect_to(c, address, port);
  if (name == "hold") {
    watch_to_the_end(c, kReceives, [](const ibv_wc&) {});
  } else {
    const Operation& operation = kOperations.at(name);
    post(c, name, operation);
    ibv_wc wc{};
    require(next_wc(c, wc, 20000), "no completion came");
    const bool content = wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS;
    // A Write may be complete here long before the peer refuses it.
    require(content || name == "bad-rkey", "the operation failed");
    if (content) check_result(c, name);
    if (name != "bad-rkey") rdma_disconnect(c.id);
    watch_to_the_end(c, kReceives - (wc.wr_id >= 1000 ? 1 : 0), [](const ibv_wc&) {});
  }
  release(c);
  std::printf("done\n");
  return 0;
}

int run_overrun(const std::string& how, const char* address, const char* port) {
  Connection c;
  connect_to(c, address, port);
  Operation send = kOperations.at("send");
  send.bytes = kReceiveBytes;
  ibv_wc wc{};
  for (int i = 0; i < kMostSends; ++i) post(c, "send", send);
  while (next_wc(c, wc, 500)) require(wc.status == IBV_WC_SUCCESS, "a Send that fits");
  if (how == "die") (void)raise(SIGKILL);
  rdma_disconnect(c.id);
  watch_to_the_end(c, kReceives, [](const ibv_wc&) {});
  release(c);
  if (how == "stay") sleep(3);
  std::printf("exits at %.1f\ndone\n", now_ms());
  return 0;
}

/// Writes to one server with the key and the address that another one gave; that one is asked
/// afterwards what it has.
int run_lent_key(const char* address, const char* port, const char* address2, const char* port2) {
  Connection lender, other;
  connect_to(lender, address, port);
  connect_to(other, address2, port2);
  other.remote = lender.remote;
  const Operation& write = kOperations.at("write");
  ibv_wc wc{};
  post(other, "write", write);
  require(next_wc(other, wc, 20000), "no completion came");
  watch_to_the_end(other, kReceives - (wc.wr_id >= 1000 ? 1 : 0), [](const ibv_wc&) {});
  release(other);
  post(lender, "read", kOperations.at("read"));
  require(next_wc(lender, wc, 20000) && wc.status == IBV_WC_SUCCESS, "the lender has ended");
  check_result(lender, "read");
  rdma_disconnect(lender.id);
  watch_to_the_end(lender, kReceives, [](const ibv_wc&) {});
  release(lender);
  std::printf("done\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "serve") return serve(argv[2], argv[3]);
  const std::string overrun = "overrun-";
  if (argc == 4 && std::string(argv[1]).starts_with(overrun))
    return run_overrun(argv[1] + overrun.size(), argv[2], argv[3]);
  if (argc == 4 && (std::string(argv[1]) == "hold" || kOperations.count(argv[1]))) {
    return run_operation(argv[1], argv[2], argv[3]);
  }
  if (argc == 6 && std::string(argv[1]) == "lent-rkey")
    return run_lent_key(argv[2], argv[3], argv[4], argv[5]);
  std::fprintf(stderr,
               "usage: verbs_peer serve|hold|overrun-HOW|OPERATION ADDRESS PORT\n"
               "       verbs_peer lent-rkey ADDRESS PORT ADDRESS2 PORT2\n");
  return 2;
}
