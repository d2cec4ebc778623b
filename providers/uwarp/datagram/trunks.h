// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// All trunks of the process, and what they share.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/ids.h"
#include "connect/connect_context.h"
#include "datagram/frame_pool.h"
#include "datagram/multicast_groups.h"
#include "datagram/recent_endpoints.h"
#include "datagram/trunk_line.h"
#include "progress/progress.h"
#include "qp/completion_queue.h"
#include "qp/datagram_queue_pair.h"
#include "stream/poll_group.h"

namespace uwarp {

class Destination;

/// Any thread. Made at first use, lives as long as the engine.
class Trunks final : public TrunkCalls, public LastWork {
 public:
  /// Lines that others have dialled: as many processes may talk to this one, each with a
  /// descriptor.
  static constexpr size_t kMostLines = 4096;
  /// Peers that are remembered without an address handle or a line to them.
  static constexpr size_t kMostIdle = 1024;

  Trunks(ConnectContext& context, RegionTable& regions)
      : context_(context), regions_(regions), frames_(regions) {}

  ConnectContext& context() { return context_; }
  RegionTable& regions() { return regions_; }
  FramePool& frames() { return frames_; }
  DatagramTable& endpoints() { return endpoints_; }
  MulticastGroups& groups() { return groups_; }
  /// Whose group the streams of all lines are in. Nothing is ever completed on it.
  CompletionQueue& polled() { return polled_; }
  PollGroup& group() { return PollGroup::of(polled_); }

  /// The way from `from` to the queue pair `number` at `to`. Throws std::bad_alloc.
  std::shared_ptr<DatagramWay> way_to(Destination& to, Qpn number, const DatagramEndpoint& from);

  void endpoint_made();
  /// Nothing refers to it on return. With the last one all trunks end, those that are being called
  /// for when they have been: what was sent before goes out.
  void endpoint_gone();

  // ---- For lines.
  /// There are queue pairs that take datagrams, and exit() does not wait for the lines to end.
  bool in_use() {
    const std::lock_guard lock(mutex_);
    return endpoint_count_ != 0 && !ending_;
  }
  void keep(const std::shared_ptr<TrunkLine>& line);
  void let_go(TrunkLine& line);

  void trunk_called(std::shared_ptr<Connection> request, const RendezvousCall& call) override;

  // LastWork, at exit: datagrams whose requests are complete go out, as they have from an adapter.
  void begin() override;
  bool done() override;
  void end() override { set_ending(false); }

 private:
  std::shared_ptr<Trunk> trunk_locked(const TrunkKey& key,
                                      const std::shared_ptr<const NetDevice>& device);
  void close_lines();
  void set_ending(bool on);
  template <typename Visit>
  void visit_lines(Visit visit);

  ConnectContext& context_;
  RegionTable& regions_;
  FramePool frames_;
  DatagramTable endpoints_;
  MulticastGroups groups_{context_, frames_};
  CompletionQueue polled_{1, nullptr};

  std::mutex mutex_;
  size_t endpoint_count_ = 0;
  bool ending_ = false;
  std::map<TrunkKey, std::shared_ptr<Trunk>> trunks_;
  std::map<TrunkLine*, std::shared_ptr<TrunkLine>> lines_;
};

}  // namespace uwarp
