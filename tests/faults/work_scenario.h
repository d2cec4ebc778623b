// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// All that two ends can do with each other, like an application that checks every result: it counts
// failures and skips the steps that depend on a failed one. Allocates nothing itself, so it can run
// while allocations fail.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "faults/work_books.h"

class WorkScenario {
 public:
  WorkScenario() = default;
  WorkScenario(const WorkScenario&) = delete;
  WorkScenario& operator=(const WorkScenario&) = delete;

  /// Makes all objects but the queue pairs. False if a call has failed.
  bool create(ibv_context* context);
  /// Makes a queue pair for an `id` of rdma_cm, or without one if that is null. The first end posts
  /// with ibv_wr_*, the second has a shared receive queue. False if the call has failed.
  bool create_queue_pair(bool first, rdma_cm_id* id);
  /// With ibv_modify_qp().
  bool connect();

  /// All requests that verbs has, in both directions, with events. True if all have succeeded and
  /// all data has arrived.
  bool exchange();
  /// A request for memory that the peer does not have: this ends the connection.
  bool provoke_remote_error();

  /// Sets both queue pairs to ERR, so that open requests complete.
  void flush();
  /// Destroys everything. `keep_queue_pairs`: except queue pairs of ids, which rdma_cm destroys.
  void destroy();
  void forget_queue_pair(bool first) { (first ? a_ : b_).qp = nullptr; }

  /// True if something has failed, and a call, a completion or an event has reported it.
  bool told_of_failure() const { return failures_ != 0; }
  /// For calls outside of this class: `error` is 0 or an errno, which is counted. True if it is 0.
  bool ok(int error);

 private:
  static constexpr size_t kBytes = 128 << 10;
  static constexpr uint32_t kSmall = 64;
  static constexpr uint32_t kLarge = 40'000;

  struct Side {
    ibv_qp* qp = nullptr;
    ibv_mr* mr = nullptr;
    std::array<uint8_t, kBytes> memory{};
    WorkBooks sends;
    WorkBooks receives;
    size_t received = 0;
  };
  /// Set in the ids of receives, so that they differ from those of sends.
  static constexpr uint64_t kReceive = uint64_t{1} << 32;

  template <typename T>
  bool made(T* object);
  bool post(Side& side, ibv_send_wr& wr);
  bool post(Side& side, ibv_wr_opcode opcode, uint32_t length, ibv_mr* mr = nullptr,
            unsigned flags = 0);
  bool post_receives();
  bool post_batch();
  bool bind_type1();
  bool bind_type2();
  bool through_windows();
  bool with_event();
  bool shared_limit();
  bool sends();
  bool send_with_immediate();
  bool writes_and_reads();
  bool atomics();
  bool on_demand();

  template <typename Condition>
  bool await(Condition condition);
  bool settled(size_t received_by_a, size_t received_by_b);
  bool arrives(size_t by_a, size_t by_b);
  void note(const ibv_wc& completion);
  void poll();
  void poll_extended();
  void look_for_events();
  bool broken();

  template <typename Destroy, typename T>
  void destroy_one(Destroy destroy, T*& object);

  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;              // of the first end; uses the channel
  ibv_cq_ex* extended_cq_ = nullptr;  // of the second end
  ibv_srq* srq_ = nullptr;
  ibv_mr* on_demand_ = nullptr;
  ibv_mw* window1_ = nullptr;
  ibv_mw* window2_ = nullptr;
  Side a_;
  Side b_;
  int failures_ = 0;
  bool failed_ = false;  // the connection has failed: do not wait for more
  bool limit_reached_ = false;
};
