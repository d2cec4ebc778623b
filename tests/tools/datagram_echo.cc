// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// datagram_echo serve: a UD queue pair that sends back each datagram to the queue pair that it
//   comes from. Prints "number N", and for each line on its standard input "echoed E foreign F":
//   F datagrams did not come from the queue pair that their payload names.
// datagram_echo ask N COUNT: sends datagrams to queue pair N on the same device, one after the
//   other and each until it has come back. Prints "asked by N", and "answered I" for each.

#include <infiniband/verbs.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr uint32_t kQkey = 0x11111111;
constexpr uint32_t kRoute = sizeof(ibv_grh);
constexpr uint32_t kSlot = 256;
constexpr uint32_t kReceives = 64;

void need(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

/// What is sent: the sender's own number, and a count.
struct Payload {
  uint32_t from;
  uint32_t count;
};

class QueuePair {
 public:
  QueuePair() {
    ibv_device** const devices = ibv_get_device_list(nullptr);
    need(devices != nullptr && devices[0] != nullptr, "ibv_get_device_list");
    context_ = ibv_open_device(devices[0]);
    need(context_ != nullptr, "ibv_open_device");
    pd_ = ibv_alloc_pd(context_);
    cq_ = ibv_create_cq(context_, 4 * kReceives, nullptr, nullptr, 0);
    mr_ = ibv_reg_mr(pd_, memory_, sizeof memory_, IBV_ACCESS_LOCAL_WRITE);
    ibv_qp_init_attr init = {};
    init.send_cq = init.recv_cq = cq_;
    init.cap = {kReceives, kReceives, 1, 1, sizeof(Payload)};
    init.qp_type = IBV_QPT_UD;
    qp_ = ibv_create_qp(pd_, &init);
    need(qp_ != nullptr && mr_ != nullptr, "ibv_create_qp");
    ibv_qp_attr attr = {};
    attr.port_num = 1;
    attr.qkey = kQkey;
    attr.qp_state = IBV_QPS_INIT;
    need(ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) ==
             0,
         "INIT");
    for (uint64_t slot = 0; slot < kReceives; ++slot) receive(slot);
    attr.qp_state = IBV_QPS_RTR;
    need(ibv_modify_qp(qp_, &attr, IBV_QP_STATE) == 0, "RTR");
    attr.qp_state = IBV_QPS_RTS;
    need(ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0, "RTS");
    ibv_ah_attr way = {};
    way.is_global = way.port_num = 1;
    way.grh.hop_limit = 64;
    need(ibv_query_gid(context_, 1, 0, &way.grh.dgid) == 0, "ibv_query_gid");
    ah_ = ibv_create_ah(pd_, &way);
    need(ah_ != nullptr, "ibv_create_ah");
  }
  uint32_t number() const { return qp_->qp_num; }
  void send(uint32_t to, Payload payload) {
    ibv_sge sge = {reinterpret_cast<uint64_t>(&payload), sizeof payload, 0};
    ibv_send_wr wr = {}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
    wr.wr.ud.ah = ah_;
    wr.wr.ud.remote_qpn = to;
    wr.wr.ud.remote_qkey = kQkey;
    (void)ibv_post_send(qp_, &wr, &bad);  // ENOMEM: as if it were lost
  }
  /// True: a datagram has come from queue pair `from`.
  bool next(Payload& payload, uint32_t& from) {
    ibv_wc wc;
    while (ibv_poll_cq(cq_, 1, &wc) == 1) {
      if ((wc.opcode & IBV_WC_RECV) == 0) continue;
      need(wc.status == IBV_WC_SUCCESS, "receive");
      const bool whole = wc.byte_len == kRoute + sizeof payload;
      std::memcpy(&payload, memory_ + wc.wr_id * kSlot + kRoute, sizeof payload);
      receive(wc.wr_id);
      from = wc.src_qp;
      if (whole) return true;
    }
    return false;
  }

 private:
  void receive(uint64_t slot) {
    ibv_sge sge = {reinterpret_cast<uint64_t>(memory_ + slot * kSlot), kSlot, mr_->lkey};
    ibv_recv_wr wr = {slot, nullptr, &sge, 1}, *bad = nullptr;
    need(ibv_post_recv(qp_, &wr, &bad) == 0, "ibv_post_recv");
  }

  ibv_context* context_;
  ibv_pd* pd_;
  ibv_cq* cq_;
  ibv_mr* mr_;
  ibv_qp* qp_;
  ibv_ah* ah_;
  uint8_t memory_[kReceives * kSlot] = {};
};

/// True: there is a line, or the end, on the standard input.
bool asked() {
  pollfd in = {STDIN_FILENO, POLLIN, 0};
  return poll(&in, 1, 0) == 1;
}

void serve(QueuePair& qp) {
  std::printf("number %u\n", qp.number());
  uint64_t echoed = 0, foreign = 0;
  for (;;) {
    Payload payload;
    uint32_t from = 0;
    for (int i = 0; i < 1000; ++i) {
      if (!qp.next(payload, from)) continue;
      if (payload.from != from) {
        ++foreign;
        continue;
      }
      ++echoed;
      qp.send(from, payload);
    }
    if (!asked()) continue;
    char line[64];
    if (std::fgets(line, sizeof line, stdin) == nullptr) return;
    std::printf("echoed %lu foreign %lu\n", echoed, foreign);
  }
}

void ask(QueuePair& qp, uint32_t to, uint32_t count) {
  using Clock = std::chrono::steady_clock;
  std::printf("asked by %u\n", qp.number());
  for (uint32_t i = 0; i < count; ++i) {
    Payload got = {0, ~0u};
    uint32_t from = 0;
    Clock::time_point again;  // datagrams may be lost
    while (got.count != i || from != to) {
      if (Clock::now() >= again) {
        qp.send(to, {qp.number(), i});
        again = Clock::now() + std::chrono::milliseconds(100);
      }
      (void)qp.next(got, from);
    }
    std::printf("answered %u\n", i);
  }
}

}  // namespace

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  static QueuePair qp;
  if (count == 2 && std::string(arguments[1]) == "serve") {
    serve(qp);
  } else if (count == 4 && std::string(arguments[1]) == "ask") {
    ask(qp, static_cast<uint32_t>(std::strtoul(arguments[2], nullptr, 0)),
        static_cast<uint32_t>(std::strtoul(arguments[3], nullptr, 0)));
  } else {
    std::fprintf(stderr, "usage: datagram_echo serve | ask NUMBER COUNT\n");
    return 2;
  }
  return 0;
}
