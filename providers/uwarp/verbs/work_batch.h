// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_qp_ex: requests that are built one after the other between ibv_wr_start() and
// ibv_wr_complete(), and then posted all together or not at all.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "connect/endpoint.h"
#include "datagram/datagram_endpoint.h"
#include "qp/work_request.h"

namespace uwarp {

/// Operations that a queue pair can be asked to take by these calls.
inline constexpr uint64_t kBatchOperations =
    IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
    IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |
    IBV_QP_EX_WITH_SEND_WITH_INV;
inline constexpr uint64_t kAtomicOperations =
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
/// ... where nothing is answered.
inline constexpr uint64_t kUnansweredOperations =
    kBatchOperations & ~(uint64_t{IBV_QP_EX_WITH_RDMA_READ} | kAtomicOperations);

/// The same for datagrams.
inline constexpr uint64_t kDatagramOperations = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;

class WorkBatch {
 public:
  /// `operations`: those that were asked for at creation. `one_thread`: the application has
  /// promised that no two threads build at a time.
  WorkBatch(uint64_t operations, uint32_t max_inline_bytes, bool one_thread)
      : operations_(operations), max_inline_bytes_(max_inline_bytes), one_thread_(one_thread) {}

  /// Enters the section in which only this thread builds.
  void start() NO_THREAD_SAFETY_ANALYSIS;
  /// Posts what was built and leaves the section. 0, or the first error of any step: then nothing
  /// was posted.
  int complete(Endpoint& endpoint);
  int complete(DatagramEndpoint& endpoint);
  /// Leaves it without posting.
  void leave() NO_THREAD_SAFETY_ANALYSIS {
    if (!one_thread_) mutex_.unlock();
  }

  /// Begins a request that needs `operation` (a bit of ibv_qp_create_send_ops_flags). The result
  /// may be filled in until the next call.
  SendRequest& add(const ibv_qp_ex& qp, SendOpcode opcode, uint64_t operation);
  /// The payload of the request that was begun last.
  void set_sges(std::span<const Sge> sges);
  void set_inline(std::span<const ibv_data_buf> parts);
  /// Where the datagram that was begun last goes.
  void set_target(Destination& to, Qpn number, uint32_t qkey);
  /// XRC: the peer's shared receive queue that it is for.
  void set_receive_queue(uint32_t number);
  /// The request that was begun last binds it.
  void set_window(ibv_mw& window) { payloads_.back().window = &window; }
  /// Something is wrong: the batch will not be posted. The first error counts.
  void spoil(int error) {
    if (error_ == 0) error_ = error;
  }

 private:
  /// Where the payload of a request lies; the vectors may move until all is built.
  struct Payload {
    size_t first_sge = 0;
    size_t sge_count = 0;
    bool set = false;
    // Of a datagram:
    Destination* to = nullptr;
    Qpn number;
    uint32_t qkey = 0;
    ibv_mw* window = nullptr;  // that is bound
  };

  /// Leaves the section at the end of a scope.
  struct Section {
    WorkBatch& batch;
    ~Section() { batch.leave(); }
  };

  Payload* open_payload();
  void place_payloads();

  const uint64_t operations_;
  const uint32_t max_inline_bytes_;
  const bool one_thread_;
  Mutex mutex_;  // the section, unless one_thread_
  int error_ = 0;
  Posted posted_;  // its bytes are known at the end only
  std::vector<SendRequest> requests_;
  std::vector<Payload> payloads_;
  std::vector<Sge> sges_;  // of inline data: the address is an offset into inline_
  std::vector<std::byte> inline_;
};

/// Gives `qp` the functions of ibv_qp_ex. Its comp_mask says that it is one.
void fill_functions(ibv_qp_ex& qp);

}  // namespace uwarp
