// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The engine of this process, put together: regions, progress, and what all connections share.
// Made at first use, dead in a forked child until used afresh.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "base/mutex.h"
#include "base/result.h"
#include "connect/connect_context.h"
#include "connect/endpoint.h"
#include "datagram/trunks.h"
#include "memory/memory_region.h"
#include "memory/region_table.h"
#include "net/net_device.h"
#include "observe/capture.h"
#include "observe/stat_page.h"
#include "observe/trace_file.h"
#include "progress/progress.h"
#include "qp/completion_queue.h"
#include "stream/poller.h"

namespace uwarp {

// A queue pair that no application sees, for connections of rdma_cm ids that have none. With
// InfiniBand an id connects with any number, and nothing of that queue pair is looked at; here a
// connection always has a queue pair.
class Engine;

/// In INIT. It sends nothing and has no memory and no receives, so a peer that sends to it loses
/// the connection.
class SilentQueuePair {
 public:
  /// Errors: ENOMEM, EADDRINUSE, EMFILE.
  static Result<std::unique_ptr<SilentQueuePair>> create(Engine& engine, const NetDevice& device);
  /// Ends the connection.
  ~SilentQueuePair();

  const std::shared_ptr<Endpoint>& endpoint() const { return endpoint_; }

 private:
  ProtectionDomain domain_;
  CompletionQueue completions_{1, nullptr};
  std::shared_ptr<Endpoint> endpoint_;
};

class NeighbourWatch;
class NetWatch;
class XrcDomain;
struct XrcQueue;

/// Made by instance() at first use, and never destroyed: exit handlers of the application may still
/// use it. At exit the trunks are closed and the helper thread ends; threads that poll drive it
/// from then on. In a forked child it is not alive(), and the child makes one of its own.
class Engine {
 public:
  /// XRC domains that a file names, by verbs device and file.
  struct XrcDomains {
    Mutex mutex;
    std::map<std::tuple<std::string, dev_t, ino_t>, std::weak_ptr<XrcDomain>> by_file
        GUARDED_BY(mutex);
  };

 private:
  StatPage stat_page_;
  const std::unique_ptr<Capture> capture_;
  const std::unique_ptr<TraceFile> trace_;
  RegionTable regions_;
  const bool one_processor_;  // all that the process may use
  Progress progress_;
  Poller poller_;
  ConnectContext context_;
  Trunks trunks_;

  XrcDomains xrc_domains_;

  Mutex changes_mutex_;  // who changes a region holds many queue pairs at once
  std::once_flag net_watch_once_;
  std::shared_ptr<NetWatch> net_watch_;
  const std::shared_ptr<NeighbourWatch> neighbour_watch_;

 public:
  /// The instance of this process.
  static Engine& instance();
  /// The same, but null when there is none yet.
  static Engine* current();

  Engine();

  RegionTable& regions() { return regions_; }
  Progress& progress() { return progress_; }
  Poller& poller() { return poller_; }
  EndpointTable& endpoints() { return context_.endpoints; }
  /// What connections need of the engine.
  ConnectContext& context() { return context_; }
  Trunks& trunks() { return trunks_; }
  StatPage& stat_page() { return stat_page_; }
  /// Null unless UWARP_TRACE asks for it.
  TraceFile* trace() const { return trace_.get(); }
  /// False for a parent's engine in a forked child: its locks may be held by threads that do not
  /// exist here, and its fds are closed. Nothing of it may be used but this.
  bool alive() const { return context_.alive(); }

  /// ibv_dereg_mr: invalidates the region, waits until no thread uses it, frees its keys. EBUSY
  /// while memory windows are bound to it.
  int remove_region(MemoryRegion& region);
  /// ibv_rereg_mr: makes something else of the region, under the same keys and at one instant for
  /// all queue pairs. Work under way that used what is gone fails. EBUSY while windows are bound to
  /// it.
  int change_region(MemoryRegion& region, const RegionShape& shape);

  XrcDomains& xrc_domains() { return xrc_domains_; }
  /// Takes an XRC shared receive queue out of its domain. On return no queue pair uses it, nor its
  /// completion queue.
  void remove_xrc_queue(XrcDomain& domain, const XrcQueue& queue);

  /// Reports changed links and addresses. Made at first use. That starts the helper thread, which
  /// serves it while no thread polls.
  NetWatch& net_watch();
  NeighbourWatch& neighbour_watch() { return *neighbour_watch_; }

 private:
  static void notify_failure(Endpoint& endpoint);

  static void at_exit();
};

}  // namespace uwarp
