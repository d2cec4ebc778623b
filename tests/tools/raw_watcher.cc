// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// raw_watcher DEVICE PORT            waits for the other side on TCP port PORT of any address
// raw_watcher DEVICE PORT ADDRESS    calls it
//
// Two queue pairs connected by ibv_modify_qp as ib_write_lat does, then writes that answer each
// other, each side spinning on its memory. Unlike the tool it also looks at the completion queue
// and the async events, and prints what they say when the other side is killed. With "end" as a
// last argument it ends after some writes, in order.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "verbs_peer.h"

namespace {

using namespace peer;

constexpr int kPort = 1;
constexpr int kRounds = 1000;

struct Card {
  union ibv_gid gid;
  uint32_t qpn;
  uint32_t psn;
  Invitation invitation;
};

struct Raw {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;
  Memory memory;
  int socket = -1;
  Card mine{};
  Card theirs{};
};

ibv_context* open_device(const char* name) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  require(list, "ibv_get_device_list");
  ibv_context* context = nullptr;
  for (int i = 0; i < count; ++i) {
    if (std::string(ibv_get_device_name(list[i])) == name) context = ibv_open_device(list[i]);
  }
  ibv_free_device_list(list);
  require(context, "ibv_open_device");
  return context;
}

int meet(const char* port, const char* address) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<uint16_t>(std::atoi(port)));
  if (address) {
    inet_pton(AF_INET, address, &where.sin_addr);
    require(connect(fd, reinterpret_cast<sockaddr*>(&where), sizeof where) == 0, "connect");
    return fd;
  }
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  require(bind(fd, reinterpret_cast<sockaddr*>(&where), sizeof where) == 0, "bind");
  require(listen(fd, 1) == 0, "listen");
  const int accepted = accept(fd, nullptr, nullptr);
  close(fd);
  return accepted;
}

void swap_cards(Raw& r) {
  require(write(r.socket, &r.mine, sizeof r.mine) == sizeof r.mine, "write");
  require(recv(r.socket, &r.theirs, sizeof r.theirs, MSG_WAITALL) == sizeof r.theirs, "recv");
}

void to_ready(Raw& r) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = kPort;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  require(ibv_modify_qp(r.qp, &attr,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
          "to INIT");
  r.memory.post_receives(r.qp);
  swap_cards(r);
  attr = {};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = r.theirs.qpn;
  attr.rq_psn = r.theirs.psn;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = 12;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.grh.dgid = r.theirs.gid;
  attr.ah_attr.grh.hop_limit = 64;
  attr.ah_attr.port_num = kPort;
  require(ibv_modify_qp(r.qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
          "to RTR");
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 14;
  attr.retry_cnt = 7;
  attr.rnr_retry = 7;
  attr.sq_psn = r.mine.psn;
  attr.max_rd_atomic = 1;
  require(ibv_modify_qp(r.qp, &attr,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0,
          "to RTS");
}

void set_up(Raw& r, const char* device, const char* port, const char* address) {
  r.context = open_device(device);
  r.pd = ibv_alloc_pd(r.context);
  require(r.pd, "ibv_alloc_pd");
  r.cq = ibv_create_cq(r.context, 256, nullptr, nullptr, 0);
  require(r.cq, "ibv_create_cq");
  ibv_qp_init_attr attr = queue_pair_attributes(r.cq);
  r.qp = ibv_create_qp(r.pd, &attr);
  require(r.qp, "ibv_create_qp");
  r.memory.register_with(r.pd, 0);
  std::memset(r.memory.region.data(), 0, kRegionBytes);
  require(ibv_query_gid(r.context, kPort, 0, &r.mine.gid) == 0, "ibv_query_gid");
  r.mine.qpn = r.qp->qp_num;
  r.mine.psn = static_cast<uint32_t>(getpid()) & 0xffffff;
  r.mine.invitation = r.memory.invitation();
  r.socket = meet(port, address);
  to_ready(r);
}

/// Writes the round's number to the start of the other side's region.
void write_round(Raw& r, uint64_t round) {
  auto* source = reinterpret_cast<uint64_t*>(r.memory.region.data() + 64);
  *source = round;
  ibv_sge sge{reinterpret_cast<uint64_t>(source), sizeof round, r.memory.region_mr->lkey};
  ibv_send_wr wr{};
  wr.wr_id = 1;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.wr.rdma.remote_addr = be64toh(r.theirs.invitation.address);
  wr.wr.rdma.rkey = be32toh(r.theirs.invitation.rkey);
  ibv_send_wr* bad = nullptr;
  require(ibv_post_send(r.qp, &wr, &bad) == 0, "ibv_post_send");
}

/// Counts what the completion queue holds.
struct Tally {
  int flushed_receives = 0;
  int good = 0;
  int bad_sends = 0;

  void take(Raw& r) {
    ibv_wc wc[16];
    const int count = ibv_poll_cq(r.cq, 16, wc);
    require(count >= 0, "ibv_poll_cq");
    for (int i = 0; i < count; ++i) {
      if (wc[i].status == IBV_WC_SUCCESS) {
        ++good;
        continue;
      }
      print_wc(wc[i]);
      if (wc[i].wr_id >= 1000) {
        ++flushed_receives;
      } else {
        ++bad_sends;
      }
    }
  }
};

void print_async_event(ibv_context* context) {
  pollfd fd{context->async_fd, POLLIN, 0};
  while (poll(&fd, 1, 500) == 1) {
    ibv_async_event event{};
    require(ibv_get_async_event(context, &event) == 0, "ibv_get_async_event");
    std::printf("async %s at %.1f\n", ibv_event_type_str(event.event_type), now_ms());
    ibv_ack_async_event(&event);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool ends = argc > 3 && std::string(argv[argc - 1]) == "end";
  const int count = argc - (ends ? 1 : 0);
  if (count < 3 || count > 4) {
    std::fprintf(stderr, "usage: raw_watcher DEVICE PORT [ADDRESS] [end]\n");
    return 2;
  }
  const bool calls = count == 4;
  Raw r;
  set_up(r, argv[1], argv[2], calls ? argv[3] : nullptr);
  const auto* arrived = reinterpret_cast<volatile uint64_t*>(r.memory.region.data());
  Tally tally;
  bool failed = false;
  uint64_t round = 1;
  for (; !failed && (!ends || round <= kRounds); ++round) {
    tally.take(r);
    if (calls) write_round(r, round);
    while (*arrived < round && !failed) {
      tally.take(r);
      failed = tally.flushed_receives > 0;
    }
    if (!calls && !failed) write_round(r, round);
    if (round == kRounds / 2) {
      std::printf("running\n");
      std::fflush(stdout);
    }
  }
  if (failed) {
    const double deadline = now_ms() + 5000;
    while (tally.flushed_receives < kReceives && now_ms() < deadline) tally.take(r);
    print_async_event(r.context);
  }
  std::printf("%s after %llu rounds, %d receives flushed\n", failed ? "peer lost" : "done",
              static_cast<unsigned long long>(round - 1), tally.flushed_receives);
  ibv_destroy_qp(r.qp);
  ibv_destroy_cq(r.cq);
  return 0;
}
