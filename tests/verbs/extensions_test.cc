// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What RFC 7306 adds: atomics and immediate data. Also Send with Immediate between two uwarps.
#include <arpa/inet.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "verbs/verbs_fixture.h"

namespace {

/// The test accesses the cell with atomic operations, since the peer's requests are atomic and no
/// other synchronization orders the two for a race detector.
std::atomic_ref<uint64_t> cell_of(End& end, size_t offset = 0) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(end.memory.data() + offset));
}

class Extensions : public VerbsTest {
 protected:
  /// Posts an atomic on the peer's memory; the old value is stored at `offset` of `from`.
  int post_atomic(End& from, ibv_wr_opcode opcode, const Address& peer, uint64_t compare_add,
                  uint64_t swap = 0, size_t offset = 64, uint32_t length = 8) {
    return from.post_atomic(opcode, 5, from.sge(offset, length), peer, compare_add, swap);
  }
  /// A request with immediate data.
  int post_immediate(End& from, ibv_wr_opcode opcode, const Address& peer, uint32_t immediate,
                     uint32_t length, unsigned flags = 0) {
    ibv_sge sge = from.sge(0, length);
    ibv_send_wr wr = {};
    wr.wr_id = 6;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED | flags;
    wr.imm_data = htonl(immediate);
    wr.wr.rdma.remote_addr = peer.memory;
    wr.wr.rdma.rkey = peer.rkey;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(from.qp.get(), &wr, &bad);
  }
};

TEST_F(Extensions, DeviceOffersGlobalAtomics) {
  ibv_device_attr attr = {};
  ASSERT_EQ(ibv_query_device(context(), &attr), 0);
  EXPECT_EQ(attr.atomic_cap, roce() ? IBV_ATOMIC_HCA : IBV_ATOMIC_GLOB);
}

TEST_F(Extensions, FetchAndAdd) {
  Pair pair(context());
  cell_of(pair.b) = 0x0102030405060708;
  ASSERT_EQ(post_atomic(pair.a, IBV_WR_ATOMIC_FETCH_AND_ADD, pair.b.address(), 0x10), 0);
  const auto wc = next_completion(pair.a.cq.get());
  ASSERT_TRUE(wc.has_value());
  EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc->opcode, IBV_WC_FETCH_ADD);
  EXPECT_EQ(wc->byte_len, 8u);
  EXPECT_EQ(cell_of(pair.a, 64).load(), 0x0102030405060708u) << "in the order of this host";
  EXPECT_EQ(cell_of(pair.b).load(), 0x0102030405060718u);
}

TEST_F(Extensions, CompareAndSwap) {
  Pair pair(context());
  cell_of(pair.b) = 40;
  ASSERT_EQ(post_atomic(pair.a, IBV_WR_ATOMIC_CMP_AND_SWP, pair.b.address(), 41, 77), 0);
  EXPECT_COMPLETION(pair.a.cq.get(), 5, IBV_WC_SUCCESS);
  EXPECT_EQ(cell_of(pair.b).load(), 40u) << "not equal";
  ASSERT_EQ(post_atomic(pair.a, IBV_WR_ATOMIC_CMP_AND_SWP, pair.b.address(), 40, 77), 0);
  const auto wc = next_completion(pair.a.cq.get());
  ASSERT_TRUE(wc.has_value());
  EXPECT_EQ(wc->opcode, IBV_WC_COMP_SWAP);
  EXPECT_EQ(cell_of(pair.a, 64).load(), 40u);
  EXPECT_EQ(cell_of(pair.b).load(), 77u);
}

// IBV_ATOMIC_GLOB: the CPU of the target and several requesters count together and lose nothing.
// Proves: 7306-5-b
TEST_F(Extensions, AtomicsAndTheCpuShareACounter) {
  constexpr int kRounds = 2000;
  Pair first(context()), second(context());
  auto* cell = reinterpret_cast<uint64_t*>(first.b.memory.data());
  const Address target = first.b.address();
  Mr shared(ibv_reg_mr(second.b.pd.get(), first.b.memory.data(), 4096, kAllAccess));
  ASSERT_NE(shared, nullptr);
  Address other = target;
  other.rkey = shared->rkey;
  std::thread cpu([&] {
    for (int i = 0; i < kRounds; ++i) std::atomic_ref<uint64_t>(*cell).fetch_add(1);
  });
  const auto count = [&](End& end, const Address& peer) {
    for (int i = 0; i < kRounds; ++i) {
      if (post_atomic(end, IBV_WR_ATOMIC_FETCH_AND_ADD, peer, 1) != 0) return false;
      const auto wc = next_completion(end.cq.get());
      if (!wc || wc->status != IBV_WC_SUCCESS) return false;
    }
    return true;
  };
  bool counted = false;
  std::thread requester([&] { counted = count(second.a, other); });
  EXPECT_TRUE(count(first.a, target));
  requester.join();
  cpu.join();
  EXPECT_TRUE(counted);
  EXPECT_EQ(std::atomic_ref<uint64_t>(*cell).load(), 3u * kRounds);
}

TEST_F(Extensions, AtomicMisuse) {
  {
    Pair pair(context());
    ASSERT_EQ(post_atomic(pair.a, IBV_WR_ATOMIC_FETCH_AND_ADD, pair.b.address(), 1, 0, 64, 4), 0);
    EXPECT_COMPLETION(pair.a.cq.get(), 5, IBV_WC_LOC_LEN_ERR);
  }
  {
    Pair pair(context());
    Address misaligned = pair.b.address();
    misaligned.memory += 4;
    ASSERT_EQ(post_atomic(pair.a, IBV_WR_ATOMIC_FETCH_AND_ADD, misaligned, 1), 0);
    EXPECT_COMPLETION(pair.a.cq.get(), 5, IBV_WC_REM_INV_REQ_ERR);
  }
  {
    Pair pair(context());
    Address foreign = pair.b.address();
    foreign.rkey ^= 0x5a00;
    ASSERT_EQ(post_atomic(pair.a, IBV_WR_ATOMIC_CMP_AND_SWP, foreign, 1), 0);
    EXPECT_COMPLETION(pair.a.cq.get(), 5, IBV_WC_REM_ACCESS_ERR);
  }
  {
    Pair pair(context());
    Mr readable(ibv_reg_mr(pair.b.pd.get(), pair.b.memory.data(), 4096,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
    Address no_right = pair.b.address();
    no_right.rkey = readable->rkey;
    cell_of(pair.b) = 3;
    ASSERT_EQ(post_atomic(pair.a, IBV_WR_ATOMIC_FETCH_AND_ADD, no_right, 1), 0);
    EXPECT_COMPLETION(pair.a.cq.get(), 5, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(cell_of(pair.b).load(), 3u);
  }
}

TEST_F(Extensions, WriteWithImmediate) {
  Pair pair(context());
  for (uint32_t immediate : {0u, 1u, 0x80000000u, 0xffffffffu}) {
    for (uint32_t length : {0u, 100u, 200'000u}) {
      ASSERT_EQ(pair.b.post_receive(9, 0, 0), 0);
      std::memset(pair.a.memory.data(), static_cast<int>(length % 251 + 1), length);
      ASSERT_EQ(
          post_immediate(pair.a, IBV_WR_RDMA_WRITE_WITH_IMM, pair.b.address(), immediate, length),
          0);
      const auto received = next_completion(pair.b.cq.get());
      ASSERT_TRUE(received.has_value());
      EXPECT_EQ(received->status, IBV_WC_SUCCESS);
      EXPECT_EQ(received->opcode, IBV_WC_RECV_RDMA_WITH_IMM);
      EXPECT_TRUE(received->wc_flags & IBV_WC_WITH_IMM);
      EXPECT_EQ(ntohl(received->imm_data), immediate);
      EXPECT_EQ(received->byte_len, length);
      EXPECT_EQ(received->wr_id, 9u);
      EXPECT_EQ(std::memcmp(pair.a.memory.data(), pair.b.memory.data(), length), 0);
      const auto sent = next_completion(pair.a.cq.get());
      ASSERT_TRUE(sent.has_value());
      EXPECT_EQ(sent->opcode, IBV_WC_RDMA_WRITE);
    }
  }
}

TEST_F(Extensions, SolicitedImmediateWakes) {
  Channel channel(ibv_create_comp_channel(context()));
  Pair pair(context(), 1 << 16, channel.get());
  for (int i = 0; i < 2; ++i) ASSERT_EQ(pair.b.post_receive(i), 0);
  ASSERT_EQ(ibv_req_notify_cq(pair.b.cq.get(), 1), 0);
  const Address b = pair.b.address();
  ASSERT_EQ(post_immediate(pair.a, IBV_WR_RDMA_WRITE_WITH_IMM, b, 1, 8), 0);
  EXPECT_COMPLETION(pair.b.cq.get(), 0, IBV_WC_SUCCESS);
  EXPECT_FALSE(readable(channel->fd, std::chrono::milliseconds(30)));
  ASSERT_EQ(post_immediate(pair.a, IBV_WR_RDMA_WRITE_WITH_IMM, b, 1, 8, IBV_SEND_SOLICITED), 0);
  ASSERT_TRUE(readable(channel->fd));
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(channel.get(), &cq, &cq_context), 0);
  ibv_ack_cq_events(cq, 1);
}

// No RFC defines it. uwarp sends it only to a peer that has shown in a rendezvous that it is uwarp.
TEST_F(Extensions, SendWithImmediateBetweenUwarps) {
  Pair pair(context());
  ASSERT_EQ(pair.b.post_receive(1, 0, 64), 0);
  // The peer is known once the connection is established.
  ASSERT_EQ(pair.a.post_send(2), 0);
  EXPECT_COMPLETION(pair.b.cq.get(), 1, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(pair.a.cq.get(), 2, IBV_WC_SUCCESS);
  ASSERT_EQ(pair.b.post_receive(3, 0, 64), 0);
  ASSERT_EQ(post_immediate(pair.a, IBV_WR_SEND_WITH_IMM, pair.b.address(), 0xcafef00d, 32), 0);
  const auto wc = next_completion(pair.b.cq.get());
  ASSERT_TRUE(wc.has_value());
  EXPECT_EQ(wc->status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc->opcode, IBV_WC_RECV);
  EXPECT_TRUE(wc->wc_flags & IBV_WC_WITH_IMM);
  EXPECT_EQ(ntohl(wc->imm_data), 0xcafef00d);
  EXPECT_EQ(wc->byte_len, 32u);
}

// Without rdma_cm only uwarp can answer, so the Send may be posted before a peer has answered.
TEST_F(Extensions, SendWithImmediateWaitsForTheAnswer) {
  End a(context()), b(context());
  a.connect(b.address(), {31, 7});
  ASSERT_EQ(post_immediate(a, IBV_WR_SEND_WITH_IMM, b.address(), 1, 8), 0);
  EXPECT_FALSE(next_completion(a.cq.get(), std::chrono::milliseconds(20)));
  ASSERT_EQ(b.post_receive(2), 0);
  b.connect(a.address());
  EXPECT_COMPLETION(a.cq.get(), 6, IBV_WC_SUCCESS);
  const auto wc = next_completion(b.cq.get());
  ASSERT_TRUE(wc.has_value());
  EXPECT_EQ(wc->wr_id, 2u);
  EXPECT_TRUE(wc->wc_flags & IBV_WC_WITH_IMM);
}

}  // namespace
