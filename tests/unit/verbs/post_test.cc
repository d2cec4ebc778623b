// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/post.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <functional>

#include "base/limits.h"

namespace uwarp {
namespace {

/// Puts a number into an enum that has no such value, like a faulty program.
template <typename Enum>
void spoil_enum(Enum& target, unsigned value) {
  std::memcpy(&target, &value, sizeof value);
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
