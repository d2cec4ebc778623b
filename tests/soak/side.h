// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The verbs objects of one side of a number of links. Does what commands say and reports every
// completion; keeps no books. Plain verbs, nothing of uwarp.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "soak/commands.h"

namespace soak {

/// What a process has open.
struct Possessions {
  size_t files;
  size_t threads;
};
Possessions possessions();
/// Waits until there is no more than `before`; false when patience ends.
bool shrinks_to(const Possessions& before);

class Side {
 public:
  using Sink = std::function<void(const Report&)>;

  /// `memory` is side_bytes(links) long. With `sleeps` the queues raise events.
  Side(std::byte* memory, uint32_t links, bool sleeps, Sink sink);
  ~Side();
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  void execute(const Command& command);
  /// Reports what has completed. True if there was something.
  bool poll();
  /// Arms all queues, and waits until one of them or `fd` has something, or a second is over.
  void sleep(int fd);

 private:
  struct LinkEnd {
    ibv_qp* qp = nullptr;
    ibv_mr* region = nullptr;
    ibv_mw* window = nullptr;
    uint32_t window_key = 0;
    uint32_t psn = 0;
    std::map<uint64_t, ibv_mr*> own_regions;  // of requests that have one
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
