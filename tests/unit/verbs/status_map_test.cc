// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/status_map.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <functional>

#include "base/limits.h"
#include "verbs/post.h"

namespace uwarp {
namespace {

/// Puts a number into an enum that has no such value, like a faulty program.
template <typename Enum>
void spoil_enum(Enum& target, unsigned value) {
  std::memcpy(&target, &value, sizeof value);
}

ibv_qp_attr valid_attributes() {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.cur_qp_state = IBV_QPS_RTR;
  attr.port_num = 1;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = 0xabcdef;
  attr.rq_psn = 0x123456;
  attr.sq_psn = 0x654321;
  attr.max_rd_atomic = kMaxRdAtom;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = 31;
  attr.timeout = 31;
  attr.retry_cnt = 7;
  attr.rnr_retry = 7;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.grh.sgid_index = 3;
  attr.ah_attr.grh.traffic_class = 9;
  for (int i = 0; i < 16; ++i) attr.ah_attr.grh.dgid.raw[i] = static_cast<uint8_t>(i);
  return attr;
}

constexpr int kAllBits = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_PORT | IBV_QP_PATH_MTU |
                         IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | IBV_QP_TIMEOUT |
                         IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_ACCESS_FLAGS | IBV_QP_AV |
                         IBV_QP_PKEY_INDEX;

TEST(StatusMap, AttributesSurviveBothConversions) {
  const ibv_qp_attr attr = valid_attributes();
  QpAttributes attributes;
  ASSERT_EQ(attributes_from_verbs(attr, kAllBits, attributes), 0);
  ibv_qp_attr back = {};
  attributes_to_verbs(attributes, back);
  EXPECT_EQ(back.qp_state, attr.qp_state);
  EXPECT_EQ(back.path_mtu, attr.path_mtu);
  EXPECT_EQ(back.dest_qp_num, attr.dest_qp_num);
  EXPECT_EQ(back.rq_psn, attr.rq_psn);
  EXPECT_EQ(back.sq_psn, attr.sq_psn);
  EXPECT_EQ(back.max_rd_atomic, attr.max_rd_atomic);
  EXPECT_EQ(back.max_dest_rd_atomic, attr.max_dest_rd_atomic);
  EXPECT_EQ(back.min_rnr_timer, attr.min_rnr_timer);
  EXPECT_EQ(back.timeout, attr.timeout);
  EXPECT_EQ(back.retry_cnt, attr.retry_cnt);
  EXPECT_EQ(back.rnr_retry, attr.rnr_retry);
  EXPECT_EQ(back.qp_access_flags, attr.qp_access_flags);
  EXPECT_EQ(back.ah_attr.grh.sgid_index, attr.ah_attr.grh.sgid_index);
  EXPECT_EQ(back.ah_attr.grh.traffic_class, attr.ah_attr.grh.traffic_class);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(back.ah_attr.grh.dgid.raw[i], i);
}

TEST(StatusMap, OnlyWhatTheMaskNamesIsLookedAt) {
  ibv_qp_attr attr = {};
  attr.port_num = 77;
  attr.timeout = 99;
  attr.dest_qp_num = ~0u;
  attr.qp_state = IBV_QPS_INIT;
  QpAttributes attributes;
  EXPECT_EQ(attributes_from_verbs(attr, IBV_QP_STATE, attributes), 0);
  EXPECT_EQ(attributes.state, QpState::kInit);
  EXPECT_EQ(attributes.dest_qp_num, 0u);
}

TEST(StatusMap, ValuesOutOfRangeAreRefused) {
  struct Row {
    const char* what;
    int bit;
    std::function<void(ibv_qp_attr&)> spoil;
  };
  const Row rows[] = {
      {"state", IBV_QP_STATE, [](auto& a) { spoil_enum(a.qp_state, 7); }},
      {"port 0", IBV_QP_PORT, [](auto& a) { a.port_num = 0; }},
      {"port 2", IBV_QP_PORT, [](auto& a) { a.port_num = 2; }},
      {"pkey", IBV_QP_PKEY_INDEX, [](auto& a) { a.pkey_index = 1; }},
      {"mtu 0", IBV_QP_PATH_MTU, [](auto& a) { spoil_enum(a.path_mtu, 0); }},
      {"mtu 6", IBV_QP_PATH_MTU, [](auto& a) { spoil_enum(a.path_mtu, 6); }},
      {"migration", IBV_QP_PATH_MIG_STATE, [](auto& a) { a.path_mig_state = IBV_MIG_ARMED; }},
      {"qpn", IBV_QP_DEST_QPN, [](auto& a) { a.dest_qp_num = 1 << 24; }},
      {"ord", IBV_QP_MAX_QP_RD_ATOMIC, [](auto& a) { a.max_rd_atomic = kMaxRdAtom + 1; }},
      {"ird", IBV_QP_MAX_DEST_RD_ATOMIC, [](auto& a) { a.max_dest_rd_atomic = 255; }},
      {"timeout", IBV_QP_TIMEOUT, [](auto& a) { a.timeout = 32; }},
      {"retries", IBV_QP_RETRY_CNT, [](auto& a) { a.retry_cnt = 8; }},
      {"rnr retries", IBV_QP_RNR_RETRY, [](auto& a) { a.rnr_retry = 8; }},
      {"address port", IBV_QP_AV, [](auto& a) { a.ah_attr.port_num = 2; }},
      {"gid index", IBV_QP_AV, [](auto& a) { a.ah_attr.grh.sgid_index = kGidTableEntries; }},
  };
  for (const Row& row : rows) {
    ibv_qp_attr attr = valid_attributes();
    row.spoil(attr);
    QpAttributes attributes;
    EXPECT_EQ(attributes_from_verbs(attr, row.bit, attributes), EINVAL) << row.what;
    EXPECT_EQ(attributes_from_verbs(attr, kAllBits & ~row.bit, attributes), 0) << row.what;
  }
}

TEST(StatusMap, FiveBitsOfTheRnrTimerCount) {
  ibv_qp_attr attr = valid_attributes();
  QpAttributes attributes;
  for (const auto& [named, taken] : {std::pair{0x20, 0}, {0x3f, 31}, {0xec, 12}}) {
    attr.min_rnr_timer = static_cast<uint8_t>(named);
    ASSERT_EQ(attributes_from_verbs(attr, IBV_QP_MIN_RNR_TIMER, attributes), 0) << named;
    EXPECT_EQ(attributes.min_rnr_timer, taken);
  }
}

TEST(StatusMap, MaskBitsThatDoNotExistHere) {
  QpAttributes attributes;
  const ibv_qp_attr attr = valid_attributes();
  EXPECT_EQ(attributes_from_verbs(attr, IBV_QP_STATE | 1 << 30, attributes), EOPNOTSUPP);
  EXPECT_EQ(attributes_from_verbs(attr, IBV_QP_ALT_PATH, attributes), EINVAL);
  EXPECT_EQ(attributes_from_verbs(attr, IBV_QP_CAP, attributes), EINVAL);
  EXPECT_EQ(attributes_from_verbs(attr, IBV_QP_RATE_LIMIT, attributes), EOPNOTSUPP);
}

TEST(SendRequestFromVerbs, TakesEachFieldFromItsPlace) {
  ibv_sge sges[2] = {{0x1000, 10, 1}, {0x2000, 20, 2}};
  ibv_send_wr wr = {};
  wr.wr_id = 42;
  wr.sg_list = sges;
  wr.num_sge = 2;
  wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
  wr.opcode = IBV_WR_RDMA_READ;
  wr.wr.rdma.remote_addr = 0x1122334455667788;
  wr.wr.rdma.rkey = 0x99aabbcc;
  SendRequest request;
  ASSERT_EQ(send_request_from_verbs(wr, request), 0);
  EXPECT_EQ(request.wr_id, 42u);
  EXPECT_EQ(request.opcode, SendOpcode::kRead);
  EXPECT_EQ(request.flags, kSendSignaled | kSendFence);
  ASSERT_EQ(request.sges.size(), 2u);
  EXPECT_EQ(request.sges[1].address, 0x2000u);
  EXPECT_EQ(request.remote_address, 0x1122334455667788u);
  EXPECT_EQ(request.rkey, 0x99aabbccu);

  wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
  wr.wr.atomic = {.remote_addr = 8, .compare_add = 1, .swap = 2, .rkey = 3};
  ASSERT_EQ(send_request_from_verbs(wr, request), 0);
  EXPECT_EQ(request.remote_address, 8u);
  EXPECT_EQ(request.compare_add, 1u);
  EXPECT_EQ(request.swap, 2u);
  EXPECT_EQ(request.rkey, 3u);

  wr.opcode = IBV_WR_SEND_WITH_INV;
  wr.invalidate_rkey = 0xcafe;
  ASSERT_EQ(send_request_from_verbs(wr, request), 0);
  EXPECT_EQ(request.imm_or_invalidate, 0xcafeu);
}

TEST(SendRequestFromVerbs, Refusals) {
  ibv_sge sges[kMaxSge + 1] = {};
  struct Row {
    const char* what;
    std::function<void(ibv_send_wr&)> spoil;
    int error;
  };
  const Row rows[] = {
      {"nothing wrong", [](auto&) {}, 0},
      {"negative count", [](auto& wr) { wr.num_sge = -1; }, EINVAL},
      {"too many", [](auto& wr) { wr.num_sge = kMaxSge + 1; }, EINVAL},
      {"as many as can be", [](auto& wr) { wr.num_sge = kMaxSge; }, 0},
      {"no list", [](auto& wr) { wr.sg_list = nullptr; }, EINVAL},
      {"empty without list", [](auto& wr) { wr.sg_list = nullptr, wr.num_sge = 0; }, 0},
      {"checksum flag", [](auto& wr) { wr.send_flags = IBV_SEND_IP_CSUM; }, EINVAL},
      {"unknown flag", [](auto& wr) { wr.send_flags = 1u << 31; }, EINVAL},
      {"TSO", [](auto& wr) { wr.opcode = IBV_WR_TSO; }, EOPNOTSUPP},
      {"driver's own", [](auto& wr) { wr.opcode = IBV_WR_DRIVER1; }, EOPNOTSUPP},
      {"flush", [](auto& wr) { spoil_enum(wr.opcode, 14); }, EOPNOTSUPP},
      {"atomic write", [](auto& wr) { spoil_enum(wr.opcode, 15); }, EOPNOTSUPP},
      {"no opcode", [](auto& wr) { spoil_enum(wr.opcode, 99); }, EINVAL},
  };
  for (const Row& row : rows) {
    ibv_send_wr wr = {};
    wr.opcode = IBV_WR_SEND;
    wr.sg_list = sges;
    wr.num_sge = 1;
    row.spoil(wr);
    SendRequest request;
    EXPECT_EQ(send_request_from_verbs(wr, request), row.error) << row.what;
  }
}

}  // namespace
}  // namespace uwarp
