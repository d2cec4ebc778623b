// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The verbs objects of one side of a number of links. Executes commands and reports every
// completion; keeps no records. Uses plain verbs, nothing of uwarp.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "soak/commands.h"

namespace soak {

/// Counts of what a process has open.
struct Possessions {
  size_t files;
  size_t threads;
};
Possessions possessions();
/// Waits until the process has no more open than `before`; false if that takes too long.
bool shrinks_to(const Possessions& before);

class Side {
 public:
  using Sink = std::function<void(const Report&)>;

  /// `memory` has side_bytes(links) bytes. With `sleeps` the queues raise events.
  Side(std::byte* memory, uint32_t links, bool sleeps, Sink sink);
  ~Side();
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  void execute(const Command& command);
  /// Reports completions. True if there was one.
  bool poll();
  /// Arms all queues, and waits for an event of one, for `fd`, or for a second at most.
  void sleep(int fd);

 private:
  struct LinkEnd {
    ibv_qp* qp = nullptr;
    ibv_mr* region = nullptr;
    ibv_mw* window = nullptr;
    uint32_t window_key = 0;
    uint32_t psn = 0;
    std::map<uint64_t, ibv_mr*> own_regions;  // of requests that registered their own memory
  };
  static constexpr size_t kQueues = 4;
  static constexpr int kQueueEntries = 4096;

  LinkEnd& make(uint32_t link);
  void prepare(const Command& command);
  void connect(const Command& command);
  void post(const Command& command);
  void post_receive(const Command& command);
  void fail(const Command& command);
  void churn(const Command& command);
  void refuse(const Command& command, int error);
  void report(const ibv_wc& completion);
  void drain_async_events();

  std::byte* const memory_;
  const Sink sink_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  std::vector<ibv_cq*> queues_;
  ibv_srq* shared_ = nullptr;
  ibv_mr* shared_region_ = nullptr;
  std::vector<LinkEnd> links_;
  std::map<uint32_t, uint32_t> link_by_qpn_;
  ibv_gid gid_{};
};

}  // namespace soak
