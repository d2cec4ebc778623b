// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// All trunks of the process, and what they share.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/mutex.h"
#include "connect/connect_context.h"
#include "connect/network_places.h"
#include "datagram/datagram_endpoint.h"
#include "datagram/frame_pool.h"
#include "datagram/multicast.h"
#include "datagram/trunk_connection.h"
#include "progress/progress.h"
#include "qp/completion_queue.h"
#include "qp/datagram_queue_pair.h"
#include "stream/poller.h"

namespace uwarp {

// Which callers of trunks are called back, and what is repeated to them. A port at an address is
// called by one call back at a time, however many callers say that it is theirs: they share it, and
// only the process that has the port sees the nonces.

/// A value without sockets, time or locks. Throws std::bad_alloc where it says so.
class CallBacks {
 public:
  /// A caller says that it is `key`, and names `nonce`. True: the caller of this function begins a
  /// call back; false: the one under way is followed by another. Throws.
  bool ask(const TrunkKey& key, TrunkNonce nonce) {
    const auto [at, is_new] = waiting_.try_emplace(key);
    at->second.add(nonce);
    return is_new;
  }
  /// The nonces that the call back to `key` that begins now repeats. Throws.
  std::vector<TrunkNonce> take(const TrunkKey& key) {
    const auto found = waiting_.find(key);
    return found == waiting_.end() ? std::vector<TrunkNonce>{} : found->second.take();
  }
  /// The call back to `key` has been answered, or has failed. True: others have asked since it
  /// began, so that another one is due.
  bool over(const TrunkKey& key) {
    const auto found = waiting_.find(key);
    if (found == waiting_.end()) return false;
    if (found->second.count != 0) return true;
    waiting_.erase(found);
    return false;
  }
  /// No call back is under way, and none is due.
  void forget(const TrunkKey& key) { waiting_.erase(key); }
  size_t size() const { return waiting_.size(); }

 private:
  // Of more nonces than there is room for the last ones are kept: the right caller calls again.
  struct Waiting {
    std::array<TrunkNonce, TrunkCall::kMostNonces> nonces;
    size_t count = 0;
    void add(TrunkNonce nonce) { nonces[count++ % nonces.size()] = nonce; }
    std::vector<TrunkNonce> take() {
      const size_t held = std::min(std::exchange(count, 0), nonces.size());
      return {nonces.begin(), nonces.begin() + static_cast<ptrdiff_t>(held)};
    }
  };
  std::map<TrunkKey, Waiting> waiting_;
};

/// How many connections others may have made us open if the process may open `open_files` files,
/// each with a descriptor: a quarter of them. An eighth of these is for call backs under way.
struct TrunkPlaces {
  static constexpr uint64_t kMost = 4096;
  static constexpr size_t kMostUnproved = 256;
  explicit constexpr TrunkPlaces(uint64_t open_files) {
    const auto all = static_cast<size_t>(std::clamp<uint64_t>(open_files / 4, 2, kMost));
    unproved = std::clamp<size_t>(all / 8, 1, kMostUnproved);
    proved = all - unproved;
  }
  size_t unproved;
  size_t proved;
};

/// Any thread. Made at first use, lives as long as the engine.
class Trunks final : public TrunkCalls, public LastWork {
 public:
  /// Peers that are remembered without an address handle or a connection to them.
  static constexpr size_t kMostIdle = 1024;

  Trunks(ConnectContext& context, RegionTable& regions)
      : context_(context), regions_(regions), frames_(regions), buffers_(regions) {}

  ConnectContext& context() { return context_; }
  RegionTable& regions() { return regions_; }
  FramePool& frames() { return frames_; }
  /// For what comes.
  FramePool& buffers() { return buffers_; }
  DatagramTable& endpoints() { return endpoints_; }
  MulticastGroups& groups() { return groups_; }
  /// Whose group the streams of all connections are in. Nothing is ever completed on it.
  CompletionQueue& polled() { return polled_; }
  PollGroup& group() { return PollGroup::of(polled_); }

  /// The path from `from` to the queue pair `number` at `to`. Throws std::bad_alloc.
  std::shared_ptr<DatagramPath> path_to(Destination& to, Qpn number, const DatagramEndpoint& from);

  void endpoint_made();
  /// Nothing refers to it on return. With the last one all trunks end, those that are being called
  /// for when they have been: what was sent before goes out.
  void endpoint_gone();

  // ---- For connections.
  /// There are queue pairs that take datagrams, and exit() does not wait for the connections to
  /// end.
  bool in_use() {
    const Lock lock(mutex_);
    return endpoint_count_ != 0 && !ending_;
  }
  /// A call back takes a place, perhaps that of another.
  void keep(const std::shared_ptr<TrunkConnection>& connection);
  void let_go(TrunkConnection& connection);
  /// The peer of this call back has its port: the place is one for connections from now on.
  void proved(const std::shared_ptr<TrunkConnection>& connection);
  /// A call back to `key` was answered, or has failed.
  void call_back_over(const TrunkKey& key);

  void trunk_called(std::shared_ptr<Connection> request, const RendezvousCall& call) override;

  /// Asks the peers of all connections whether they have their ports, as each connection does by
  /// itself once a minute.
  void prove_again();

  // LastWork, at exit: datagrams whose requests are complete go out, as they have from an adapter.
  void begin() override;
  bool done() override;
  void end() override { set_ending(false); }

 private:
  using Lines = NetworkPlaces<std::shared_ptr<TrunkConnection>>;
  /// A peer that says it is `key` has called: what it is answered.
  RendezvousVerdict called(const TrunkKey& key, TrunkNonce nonce);
  /// ... has called back. False: that is not the answer to a call of ours.
  bool called_back(const TrunkKey& key, const std::shared_ptr<Connection>& request);
  /// Begins a call back. False: it cannot be made.
  bool call_back(const TrunkKey& key);
  std::shared_ptr<Trunk> trunk_locked(const TrunkKey& key,
                                      const std::shared_ptr<const NetDevice>& device)
      REQUIRES(mutex_);
  void forget_unused_locked() REQUIRES(mutex_);
  void close_connections();
  void set_ending(bool on);
  template <typename Visit>
  void visit_connections(Visit visit);

  ConnectContext& context_;
  RegionTable& regions_;
  FramePool frames_;
  FramePool buffers_;
  DatagramTable endpoints_;
  MulticastGroups groups_{context_, frames_};
  CompletionQueue polled_{1, nullptr};

  Mutex mutex_;
  size_t endpoint_count_ GUARDED_BY(mutex_) = 0;
  bool ending_ GUARDED_BY(mutex_) = false;
  size_t trim_at_ GUARDED_BY(mutex_) = kMostIdle;  // trunks
  std::map<TrunkKey, std::shared_ptr<Trunk>> trunks_ GUARDED_BY(mutex_);
  std::map<TrunkConnection*, std::shared_ptr<TrunkConnection>> connections_ GUARDED_BY(mutex_);
  // Ours, by what their call back shows.
  std::map<TrunkNonce, std::shared_ptr<TrunkConnection>> calls_ GUARDED_BY(mutex_);
  CallBacks call_backs_ GUARDED_BY(mutex_);
  Lines unproved_ GUARDED_BY(mutex_);
  Lines proved_ GUARDED_BY(mutex_);
};

}  // namespace uwarp
