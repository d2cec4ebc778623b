// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Wrong arguments, one by one: a row says which call, which argument, what is wrong with it, and
// what the answer is in each persona, by whose rule. The rows are also docs/wrong-arguments.md.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "verbs/verbs_fixture.h"

namespace wrong_arguments {

/// Errno in the iwarp and in the roce persona; 0 is success.
struct Answer {
  // NOLINTNEXTLINE(google-explicit-constructor): most rows have one answer
  Answer(int both) : iwarp(both), roce(both) {}
  Answer(int iwarp, int roce) : iwarp(iwarp), roce(roce) {}
  int iwarp;
  int roce;
};

/// Objects of another context of the same device.
struct Foreign {
  Foreign();
  Context context;
  Pd pd;
  Cq cq;
  Channel channel;
};

/// What a row may use, made anew for it: nothing of it may have changed when the call was refused.
class Ground {
 public:
  explicit Ground(ibv_context* context);

  ibv_context* const context;
  Pd pd;
  Cq cq;
  Qp qp;  // of type RC, in INIT

  bool roce() const { return context->device->node_type == IBV_NODE_CA; }
  Foreign& foreign();
  /// Of the size of the page, and at the start of one.
  uint8_t* page() { return page_; }
  uint64_t page_address() const { return reinterpret_cast<uint64_t>(page_); }
  static constexpr size_t kPage = 4096;

  Mr region(int access = IBV_ACCESS_LOCAL_WRITE) const;
  Srq shared_queue(uint32_t depth = 16) const;
  Qp queue_pair(ibv_qp_type type = IBV_QPT_RC) const;
  /// The device's own address, as a destination.
  ibv_ah_attr address() const;
  /// True if the queue pair is in INIT as it was, and everything still does what it is for.
  bool usable();

 private:
  std::unique_ptr<Foreign> foreign_;
  std::vector<uint8_t> memory_ = std::vector<uint8_t>(2 * kPage);
  uint8_t* page_;
};

struct WrongArgument {
  const char* call;
  const char* argument;
  const char* wrong;
  Answer answer;
  const char* rule;  ///< whose it is, and why the answer is another one
  std::function<int(Ground&)> ask;
};
using Rows = std::vector<WrongArgument>;

/// 0 if the object was made (it is destroyed again), otherwise errno.
template <auto Destroy, typename T>
int outcome(T* object) {
  const int error = errno;
  if (object == nullptr) return error;
  EXPECT_EQ(Destroy(object), 0);
  return 0;
}
/// The same for calls that give -1 and errno.
inline int outcome(int result) { return result == -1 ? errno : result; }

/// Another number in an enum than any that it has.
template <typename Enum>
Enum number(unsigned value) {
  Enum out = {};
  std::memcpy(&out, &value, sizeof out);
  return out;
}

// The rows, in the order of the page.
Rows of_devices();
Rows of_queues();
Rows of_memory();
Rows of_queue_pairs();
Rows of_transitions();
Rows of_datagrams();
Rows of_rdma_cm();

}  // namespace wrong_arguments
