// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The engine of this process: one region table, one progress instance, the endpoints by number.
// Made at first use, dead in a forked child until used afresh.
#pragma once

#include <sched.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/thread_own.h"
#include "cm/capture.h"
#include "cm/draining_places.h"
#include "cm/poll_group.h"
#include "cm/rung_memory.h"
#include "cm/stat_page.h"
#include "cm/trace_file.h"
#include "io/core_demand.h"
#include "io/progress.h"
#include "mr/region_table.h"
#include "net/net_device.h"
#include "qp/completion_queue.h"

namespace uwarp {

class Connection;
class Endpoint;
class NeighbourWatch;
class NetWatch;
class RendezvousPort;

class Engine {
 public:
  /// The instance of this process; after fork the child gets a new one. Never destroyed: exit
  /// handlers of the application may still use it.
  static Engine& instance();
  /// The same, but null when there is none yet.
  static Engine* current();

  Engine();
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  RegionTable& regions() { return regions_; }
  Progress& progress() { return progress_; }
  RungMemory& rungs() { return rungs_; }
  StatPage& stat_page() { return stat_page_; }
  /// Null unless UWARP_PCAP asks for it.
  Capture* capture() const { return capture_.get(); }
  /// Null unless UWARP_TRACE asks for it.
  TraceFile* trace() const { return trace_.get(); }
  /// False for a parent's engine in a forked child: its locks may be held by threads that do not
  /// exist here, and its fds are closed. Nothing of it may be used but this.
  bool alive() const { return !dead_.load(std::memory_order_relaxed); }

  /// The endpoint with this number, null if there is none.
  std::shared_ptr<Endpoint> find(Qpn number);

  /// Drives the sockets in the caller, without blocking: called by ibv_poll_cq when `cq` is empty.
  void poll(CompletionQueue& cq) {
    if (one_processor_) [[unlikely]]
      poll_and_give_way(cq);
    else if (!look(cq, 1))
      give_way_if_wanted(cq);
  }
  /// The same after sending so much that it took as long as `polls` of them.
  void poll_after_sending(CompletionQueue& cq, uint32_t polls) {
    if (one_processor_) [[unlikely]]
      (void)progress_.note_polls(polls);
    else
      (void)look(cq, polls);
  }
  /// The same after something that has taken as long as `polls` of them, where the caller has more
  /// to do. True if a queue pair of `cq` had received something.
  bool look(CompletionQueue& cq, uint32_t polls) {
    const uint32_t count = progress_.note_polls(polls);
    PollGroup* group = PollGroup::find(cq);
    const bool found = group != nullptr && group->poll();
    // Whatever is not read directly: other queues, handshakes, deadlines, writability.
    const bool only_direct = group != nullptr && !group->needs_epoll();
    const uint32_t polls_per_pass = only_direct ? kPollsPerPass : kPollsPerMixedPass;
    const bool silent = !found && !only_direct && (group == nullptr || group->prefers_epoll());
    if (silent || count % polls_per_pass < polls) (void)progress_.pass();
    return found;
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

  /// Makes sure that a helper thread runs that serves while nobody polls (lazily, first QP use). 0
  /// or the errno of pthread_create(); the next call tries again.
  [[nodiscard]] int ensure_helper_thread() { return progress_.start_helper(); }

  /// Tells of changed links and addresses. Made at first use, and with it the helper thread, which
  /// serves it while nobody polls.
  NetWatch& net_watch();
  NeighbourWatch& neighbour_watch() { return *neighbour_watch_; }

  // ---- For Endpoint: numbers and rendezvous ports.
  struct Place {
    std::shared_ptr<RendezvousPort> port;
    Qpn number;
  };
  /// A free number on `device`. Errors: EADDRINUSE (no port in UWARP_PORT_RANGE), EMFILE, ENOMEM.
  Result<Place> reserve(const NetDevice& device);
  void enter(Qpn number, std::weak_ptr<Endpoint> endpoint);
  void leave(const Place& place);

  // ---- For Connection: one that drains, which nobody else may hold any more.
  /// Holds it. Returns another one that is to be reset for it, if too many drain; null: none.
  [[nodiscard]] std::shared_ptr<Connection> keep(std::shared_ptr<Connection> connection);
  void let_go(Connection& connection);

 private:
  /// Calls `visit(std::shared_ptr<Endpoint>)` for all endpoints, without a lock. Takes no memory.
  template <typename Visit>
  void visit_endpoints(Visit visit);
  static void tell_of_failure(Endpoint& endpoint);

  /// Direct reads between two looks at the epoll set.
  static constexpr uint32_t kPollsPerPass = 32;
  /// The same while there are streams that are not read directly.
  static constexpr uint32_t kPollsPerMixedPass = 8;

  static void before_fork();
  static void after_fork_parent();
  static void after_fork_child();
  static void at_exit();

  /// Polls on an empty queue in a row after which a yield is not enough: the scheduler lets whoever
  /// has run less go on, for as long as a whole time slice.
  static constexpr uint32_t kYields = 4;
  void poll_and_give_way(CompletionQueue& cq);
  // Where the peer wants it, a yield is all it needs. Where others do, small messages are better
  // served by a poller that keeps its core: asleep it would have to get the core back for each.
  void give_way_if_wanted(CompletionQueue& cq) {
    PollGroup* group = PollGroup::find(cq);
    if (group == nullptr || !thread_own<CoreDemand>().wanted()) return;
    if (group->shares_core())
      sched_yield();
    else if (group->awaits_bulk())
      progress_.nap();
  }

  const bool one_processor_;  // all that the process may use
  std::atomic<uint32_t> idle_polls_{0};
  std::atomic<bool> dead_{false};
  StatPage stat_page_;
  const std::unique_ptr<Capture> capture_;
  const std::unique_ptr<TraceFile> trace_;
  RegionTable regions_;
  Progress progress_;
  RungMemory rungs_;

  std::mutex changes_mutex_;  // who changes a region holds many queue pairs at once
  std::mutex endpoints_mutex_;
  std::map<Qpn, std::weak_ptr<Endpoint>> endpoints_;

  std::mutex ports_mutex_;
  std::vector<std::shared_ptr<RendezvousPort>> ports_;

  std::once_flag net_watch_once_;
  std::shared_ptr<NetWatch> net_watch_;
  const std::shared_ptr<NeighbourWatch> neighbour_watch_;

  std::mutex draining_mutex_;
  DrainingPlaces<std::shared_ptr<Connection>> draining_;
};

}  // namespace uwarp
