// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the engine gives to connections, and what all connections of the process share. Lives as
// long as the process.
#pragma once

#include <atomic>
#include <memory>

#include "base/fork.h"
#include "connect/draining_places.h"
#include "connect/endpoint_table.h"
#include "connect/rendezvous_ports.h"
#include "connect/startup_mode_cache.h"
#include "observe/capture.h"
#include "observe/stat_page.h"
#include "observe/trace_file.h"
#include "os/errands.h"
#include "progress/progress.h"
#include "stream/poller.h"

namespace uwarp {

class Connection;
struct RendezvousCall;

/// Takes calls that are for no queue pair.
class TrunkCalls {
 public:
  virtual ~TrunkCalls() = default;
  /// Any thread, no lock held. Accepts or refuses `request`.
  virtual void trunk_called(std::shared_ptr<Connection> request, const RendezvousCall& call) = 0;
};

struct ConnectContext {
  Progress& progress;
  Poller& poller;
  StatPage& stat_page;
  Capture* capture;  // null unless UWARP_PCAP asks for it
  TraceFile* trace;  // null unless UWARP_TRACE asks for it
  Errands errands{};
  StartupModeCache startup_modes{};
  DrainingPlaces<std::shared_ptr<Connection>> draining{};
  EndpointTable endpoints{};
  /// Streams of sending XRC queue pairs. They take their acknowledgements before a message of a
  /// receiving one completes, because the message may be the answer.
  PollGroup xrc_senders{};
  RendezvousPorts ports{};
  /// Null until the first queue pair that takes datagrams.
  std::atomic<TrunkCalls*> trunk_calls{nullptr};
  const BirthProcess process{};

  /// False for a parent's in a forked child: nothing else may be used.
  bool alive() const { return process.is_this(); }
};

}  // namespace uwarp
