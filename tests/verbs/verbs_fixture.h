// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the programs of this folder share: verbs objects that destroy themselves (and expect that to
// succeed), one end of a connection, and waiting with a limit. Plain verbs; nothing of uwarp.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

/// The limit for everything that should take milliseconds; it only ends a test that hangs.
inline constexpr std::chrono::seconds kPatience{20};

template <auto Destroy>
struct Destroyer {
  template <typename T>
  void operator()(T* object) const {
    EXPECT_EQ(Destroy(object), 0);
  }
};
using Context = std::unique_ptr<ibv_context, Destroyer<ibv_close_device>>;
using Pd = std::unique_ptr<ibv_pd, Destroyer<ibv_dealloc_pd>>;
using Mr = std::unique_ptr<ibv_mr, Destroyer<ibv_dereg_mr>>;
using Cq = std::unique_ptr<ibv_cq, Destroyer<ibv_destroy_cq>>;
using Qp = std::unique_ptr<ibv_qp, Destroyer<ibv_destroy_qp>>;
using Srq = std::unique_ptr<ibv_srq, Destroyer<ibv_destroy_srq>>;
using Channel = std::unique_ptr<ibv_comp_channel, Destroyer<ibv_destroy_comp_channel>>;

/// Opens the device under test: $UWARP_TEST_DEVICE, or the loopback device.
Context open_device();

/// What a peer needs to reach a queue pair and its memory. Plain bytes, so that processes can
/// exchange it.
struct Address {
  ibv_gid gid;
  uint32_t qpn;
  uint32_t psn;
  uint64_t memory;
  uint32_t rkey;
};

inline constexpr int kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

ibv_qp_init_attr init_attributes(ibv_cq* cq, uint32_t depth = 64);

// The usual steps of an application that connects without rdma_cm. Each returns the result of
// ibv_modify_qp().
int to_init(ibv_qp* qp, int access = kAllAccess);
int to_rtr(ibv_qp* qp, const Address& peer);
struct Retries {
  uint8_t timeout = 14;
  uint8_t count = 7;
};
int to_rts(ibv_qp* qp, uint32_t psn, Retries retries = {});
int to_state(ibv_qp* qp, ibv_qp_state state);
ibv_qp_state state_of(ibv_qp* qp);

/// One end of a connection, with everything it needs; its queue pair is in INIT.
class End {
 public:
  explicit End(ibv_context* context, size_t bytes = 1 << 20, ibv_comp_channel* channel = nullptr,
               uint32_t depth = 64);
  Address address() const;
  /// Goes to RTR and RTS, towards `peer`.
  void connect(const Address& peer, Retries retries = {});

  ibv_sge sge(size_t offset = 0, uint32_t length = 64) const;
  int post_receive(uint64_t wr_id, size_t offset = 0, uint32_t length = 64);
  int post_send(uint64_t wr_id, size_t offset = 0, uint32_t length = 64,
                unsigned flags = IBV_SEND_SIGNALED);
  int post_rdma(ibv_wr_opcode opcode, uint64_t wr_id, const Address& peer, size_t offset = 0,
                uint32_t length = 64, unsigned flags = IBV_SEND_SIGNALED);
  /// The same between any memory here and there.
  int post_rdma(ibv_wr_opcode opcode, uint64_t wr_id, ibv_sge here, uint64_t there, uint32_t rkey,
                unsigned flags = IBV_SEND_SIGNALED);
  /// On what `peer` names; its result goes to `here`.
  int post_atomic(ibv_wr_opcode opcode, uint64_t wr_id, ibv_sge here, const Address& peer,
                  uint64_t compare_add, uint64_t swap = 0);

  std::vector<uint8_t> memory;
  Pd pd;
  Cq cq;
  Mr mr;
  Qp qp;
  uint32_t psn;

 private:
  ibv_context* const context_;
};

/// Two ends of one device, connected to each other.
struct Pair {
  explicit Pair(ibv_context* context, size_t bytes = 1 << 20, ibv_comp_channel* channel = nullptr);
  End a;
  End b;
};

/// Polls until there is a completion; empty after `limit`.
std::optional<ibv_wc> next_completion(ibv_cq* cq, std::chrono::milliseconds limit = kPatience);
/// The next `count` completions by id. Send and receive completions in one CQ have no fixed order
/// among each other, so tests compare them in this way.
std::map<uint64_t, ibv_wc_status> next_completions(ibv_cq* cq, int count);
/// Waits until `condition` holds; false after the limit.
bool wait_until(const std::function<bool()>& condition,
                std::chrono::milliseconds limit = kPatience);
/// True if `fd` becomes readable within the limit.
bool readable(int fd, std::chrono::milliseconds limit = kPatience);
/// The next asynchronous event, which the caller must acknowledge. IBV_EVENT_COMM_EST is
/// acknowledged and skipped: whether it comes depends on how quick the peer is.
std::optional<ibv_async_event> next_async_event(ibv_context* context,
                                                std::chrono::milliseconds limit = kPatience);
/// Number of open files of this process.
size_t open_files();
/// Their numbers and names, one per line.
std::string open_file_names();

/// Expects that the next completion of `cq` has this id and status.
#define EXPECT_COMPLETION(cq, id, expected_status)                                       \
  do {                                                                                   \
    const std::optional<ibv_wc> found_ = next_completion(cq);                            \
    ASSERT_TRUE(found_.has_value()) << "no completion in time";                          \
    EXPECT_EQ(found_->wr_id, static_cast<uint64_t>(id));                                 \
    EXPECT_STREQ(ibv_wc_status_str(found_->status), ibv_wc_status_str(expected_status)); \
  } while (false)

class VerbsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    context_ = open_device();
    ASSERT_NE(context_, nullptr) << "run this under uwarp-run";
  }
  ibv_context* context() { return context_.get(); }
  /// True if the device under test behaves like InfiniBand (UWARP_PERSONA=roce).
  bool roce() const { return context_->device->node_type == IBV_NODE_CA; }
  Context context_;
};
