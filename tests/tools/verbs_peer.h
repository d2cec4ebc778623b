// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// What the test programs of this folder share: a queue pair with a patterned region, made over
// rdma_cm or by ibv_modify_qp, and one-line reports of every completion and event. They are plain
// verbs applications and include nothing of uwarp.
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace peer {

constexpr size_t kRegionBytes = 256 * 1024;
constexpr size_t kOperandBytes = 100'000;  // Several FPDUs at any FPDU size.
constexpr int kReceives = 8;
constexpr size_t kReceiveBytes = 16 * 1024;
constexpr int kResolveMs = 5000;

inline double now_ms() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] inline void die(const char* what) {
  std::printf("FAILED %s: %s\n", what, std::strerror(errno));
  std::fflush(stdout);
  std::exit(1);
}

inline void require(bool condition, const char* what) {
  if (!condition) die(what);
}

inline sockaddr_storage parse_address(const char* address, const char* port) {
  sockaddr_storage storage{};
  auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
  if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(std::atoi(port)));
  } else {
    require(inet_pton(AF_INET6, address, &v6->sin6_addr) == 1, "the address");
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(std::atoi(port)));
  }
  return storage;
}

/// The byte at `offset` of a region written by the side called `seed`.
inline uint8_t pattern(size_t offset, uint8_t seed) {
  return static_cast<uint8_t>(offset * 7 + (offset >> 8) * 13 + seed);
}

inline void fill(std::vector<uint8_t>& bytes, uint8_t seed) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern(i, seed);
}

inline bool has_pattern(const uint8_t* bytes, size_t from, size_t length, uint8_t seed) {
  for (size_t i = 0; i < length; ++i) {
    if (bytes[from + i] != pattern(from + i, seed)) return false;
  }
  return true;
}

/// What each side tells the other about its memory, in network order on the wire.
struct Invitation {
  uint64_t address = 0;
  uint32_t rkey = 0;
  uint32_t length = 0;
};

inline void print_wc(const ibv_wc& wc) {
  std::printf("wc id=%llu status=%s opcode=%d bytes=%u flags=%u at %.1f\n",
              static_cast<unsigned long long>(wc.wr_id), ibv_wc_status_str(wc.status), wc.opcode,
              wc.byte_len, wc.wc_flags, now_ms());
  std::fflush(stdout);
}

/// One end: PD, CQ, QP attributes, a remotely accessible region and receive buffers.
struct Memory {
  std::vector<uint8_t> region = std::vector<uint8_t>(kRegionBytes);
  std::vector<uint8_t> receives = std::vector<uint8_t>(kReceives * kReceiveBytes);
  ibv_mr* region_mr = nullptr;
  ibv_mr* receive_mr = nullptr;

  void register_with(ibv_pd* pd, uint8_t seed) {
    fill(region, seed);
    region_mr = ibv_reg_mr(pd, region.data(), region.size(),
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                               IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    require(region_mr, "ibv_reg_mr");
    receive_mr = ibv_reg_mr(pd, receives.data(), receives.size(), IBV_ACCESS_LOCAL_WRITE);
    require(receive_mr, "ibv_reg_mr");
  }

  void post_receives(ibv_qp* qp) {
    for (int i = 0; i < kReceives; ++i) {
      ibv_sge sge{reinterpret_cast<uint64_t>(&receives[i * kReceiveBytes]), kReceiveBytes,
                  receive_mr->lkey};
      ibv_recv_wr wr{};
      wr.wr_id = 1000 + i;
      wr.sg_list = &sge;
      wr.num_sge = 1;
      ibv_recv_wr* bad = nullptr;
      require(ibv_post_recv(qp, &wr, &bad) == 0, "ibv_post_recv");
    }
  }

  Invitation invitation() const {
    return {htobe64(reinterpret_cast<uint64_t>(region.data())), htobe32(region_mr->rkey),
            htobe32(static_cast<uint32_t>(region.size()))};
  }

  void release() {
    require(ibv_dereg_mr(region_mr) == 0, "ibv_dereg_mr");
    require(ibv_dereg_mr(receive_mr) == 0, "ibv_dereg_mr");
  }
};

inline ibv_qp_init_attr queue_pair_attributes(ibv_cq* cq) {
  ibv_qp_init_attr attr{};
  attr.send_cq = cq;
  attr.recv_cq = cq;
  attr.cap.max_send_wr = 64;
  attr.cap.max_recv_wr = 64;
  attr.cap.max_send_sge = 2;
  attr.cap.max_recv_sge = 2;
  attr.qp_type = IBV_QPT_RC;
  attr.sq_sig_all = 1;
  return attr;
}

}  // namespace peer
