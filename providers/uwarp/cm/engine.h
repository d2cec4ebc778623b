// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The engine of this process: one region table, one progress instance, the endpoints by number.
// Made at first use, dead in a forked child until used afresh.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "cm/poll_group.h"
#include "io/progress.h"
#include "mr/region_table.h"
#include "net/net_device.h"
#include "qp/completion_queue.h"

namespace uwarp {

class Connection;
class Endpoint;
class NetWatch;
class RendezvousPort;

class Engine {
 public:
  /// The instance of this process; after fork the child gets a new one. Never destroyed: exit
  /// handlers of the application may still use it.
  static Engine& instance();

  Engine() = default;
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  RegionTable& regions() { return regions_; }
  Progress& progress() { return progress_; }
  /// False for a parent's engine in a forked child: its locks may be held by threads that do not
  /// exist here, and its fds are closed. Nothing of it may be used but this.
  bool alive() const { return !dead_.load(std::memory_order_relaxed); }

  /// The endpoint with this number, null if there is none.
  std::shared_ptr<Endpoint> find(Qpn number);

  /// Drives the sockets in the caller, without blocking: called by ibv_poll_cq when `cq` is empty.
  void poll(CompletionQueue& cq) {
    const uint32_t polls = progress_.note_poll();
    PollGroup* group = PollGroup::find(cq);
    const bool found = group != nullptr && group->poll();
    // Whatever is not read directly: other queues, handshakes, deadlines, writability.
    const bool others = group == nullptr || group->needs_epoll() ? !found || polls % 8 == 0
                                                                 : polls % kPollsPerPass == 0;
    if (others) (void)progress_.pass();
  }
  /// Sends what was posted to queue pairs of `cq` and waits for more: called by ibv_poll_cq and
  /// ibv_req_notify_cq.
  static void transmit_waiting(CompletionQueue& cq) {
    PollGroup* group = PollGroup::find(cq);
    if (group != nullptr && group->has_waiting()) group->transmit_waiting();
  }
  /// The application armed `cq` and is probably about to sleep until its event comes: called by
  /// ibv_req_notify_cq after arming.
  void expect_sleep() { progress_.note_sleep(); }

  /// ibv_dereg_mr: invalidates the region, waits until nobody touches it, frees its keys. EBUSY
  /// while memory windows are bound to it.
  int remove_region(MemoryRegion& region);
  /// ibv_rereg_mr: makes something else of the region, under the same keys and at one instant for
  /// all queue pairs. Work under way that used what is gone fails. EBUSY while windows are bound to
  /// it.
  int change_region(MemoryRegion& region, const RegionShape& shape);

  /// Makes sure that a helper thread runs that serves while nobody polls (lazily, first QP use).
  void ensure_helper_thread() { (void)progress_.start_helper(); }

  /// Tells of changed links and addresses. Made at first use, and with it the helper thread, which
  /// serves it while nobody polls.
  NetWatch& net_watch();

  // ---- For Endpoint: numbers and rendezvous ports.
  struct Place {
    std::shared_ptr<RendezvousPort> port;
    Qpn number;
  };
  /// A free number on `device`. Errors: EADDRINUSE (no port in UWARP_PORT_RANGE), EMFILE, ENOMEM.
  Result<Place> reserve(const NetDevice& device);
  void enter(Qpn number, std::weak_ptr<Endpoint> endpoint);
  void leave(const Place& place);

  // ---- For Connection: one that still drains after everybody has forgotten it.
  void keep(std::shared_ptr<Connection> connection);
  void let_go(Connection& connection);

 private:
  std::vector<std::shared_ptr<Endpoint>> endpoints_of(const ProtectionDomain* one,
                                                      const ProtectionDomain* other);

  /// Direct reads between two looks at the epoll set.
  static constexpr uint32_t kPollsPerPass = 32;

  static void before_fork();
  static void after_fork_parent();
  static void after_fork_child();
  static void at_exit();

  std::atomic<bool> dead_{false};
  RegionTable regions_;
  Progress progress_;

  std::mutex changes_mutex_;  // who changes a region holds many queue pairs at once
  std::mutex endpoints_mutex_;
  std::unordered_map<Qpn, std::weak_ptr<Endpoint>> endpoints_;

  std::mutex ports_mutex_;
  std::vector<std::shared_ptr<RendezvousPort>> ports_;

  std::once_flag net_watch_once_;
  std::shared_ptr<NetWatch> net_watch_;

  std::mutex draining_mutex_;
  std::unordered_set<std::shared_ptr<Connection>> draining_;
};

}  // namespace uwarp
