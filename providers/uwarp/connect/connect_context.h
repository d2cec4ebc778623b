// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the engine gives to connections, and what all connections of the process share. Lives as
// long as the process.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "base/mutex.h"
#include "carrier/access_gate.h"
#include "carrier/published_regions.h"
#include "carrier/tls_keys.h"
#include "connect/endpoint_table.h"
#include "connect/rendezvous_port.h"
#include "connect/startup.h"
#include "observe/capture.h"
#include "observe/stat_page.h"
#include "observe/trace_file.h"
#include "os/errands.h"
#include "progress/progress.h"
#include "stream/poller.h"

namespace uwarp {

// Holds the connections that drain: they wait for the peer's FIN. Their queue pairs are gone, so
// perhaps no other object holds them. A peer need not send a FIN, so when all places are taken the
// oldest connection loses its place.

/// How many places there are if a process may open `open_files` files: a quarter of them, so that
/// peers which keep their end open leave it three quarters. An orderly peer needs its place for a
/// round trip. A process that raised its limit for many connections can end as many at once. The
/// kernel's memory bounds the number: each socket may hold a full buffer.
inline constexpr uint64_t kMostDraining = 4096;
constexpr size_t draining_places(uint64_t open_files) {
  return static_cast<size_t>(std::clamp<uint64_t>(open_files / 4, 1, kMostDraining));
}

/// Holders are kept in the order in which they came. Any thread. Its lock is a leaf, so the caller
/// releases what comes out.
template <class Holder>
class DrainingPlaces {
 public:
  /// Takes memory for all places, because a connection that ends can get none. The kernel gives the
  /// pages when they are used.
  DrainingPlaces() { holders_.reserve(kMostDraining + 1); }
  /// Enters `holder`. If `places` are taken, returns the oldest, which has lost its place.
  [[nodiscard]] std::optional<Holder> enter(Holder holder, size_t places) {
    const Lock guard(mutex_);
    holders_.push_back(std::move(holder));
    if (holders_.size() <= places) return std::nullopt;
    return take_out(holders_.begin());
  }
  /// Returns `holder` if it had a place.
  std::optional<Holder> leave(const Holder& holder) {
    const Lock guard(mutex_);
    const auto found = std::ranges::find(holders_, holder);
    return found == holders_.end() ? std::nullopt : std::optional(take_out(found));
  }

 private:
  Holder take_out(typename std::vector<Holder>::iterator at) REQUIRES(mutex_) {
    Holder gone = std::move(*at);
    holders_.erase(at);
    return gone;
  }

  Mutex mutex_;
  std::vector<Holder> holders_ GUARDED_BY(mutex_);
};

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
  /// Peers on this host that reach our memory by themselves, and the regions that they find.
  AccessGates gates{};
  PublishedRegions published{};
  /// What protects connections (UWARP_TLS).
  const TlsKeys tls{TlsKeys::take(settings())};
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
