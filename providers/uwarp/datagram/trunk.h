// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The path to one process of a peer: datagrams are collected in frames, which go over the current
// connection. Calls the peer when there is something to send and no connection. If the peer cannot
// be reached, or takes nothing, its datagrams are dropped.
#pragma once

#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "base/spinlock.h"
#include "datagram/frame_pool.h"
#include "datagram/trunk_connection.h"
#include "net/net_device.h"
#include "progress/source.h"
#include "qp/datagram_queue_pair.h"

namespace uwarp {

/// Made by Trunks, for an address handle or for the call of a peer. Idle until there is something
/// to send; then calling, and open while it has a connection; unreachable for a pause if the peer
/// did not answer. Trunks lets go of it when it is among too many that are idle, and with the last
/// UD queue pair of the process. It ends with the last of its connections, address handles and
/// requests that wait: no frame of it is on its way then.
class Trunk final : public Source, public DatagramPath {
 public:
  const TrunkKey key;

 private:
  /// Frames that are filled, wait and are on their way at most.
  static constexpr size_t kMostFrames = TrunkConnection::kDepth;
  enum class State : uint8_t { kIdle, kCalling, kOpen, kUnreachable };

  Trunks& trunks_;
  const std::shared_ptr<const NetDevice> device_;

  SpinLock lock_;
  State state_ GUARDED_BY(lock_) = State::kIdle;
  TrunkNonce calling_ GUARDED_BY(lock_) = 0;  // of the last call, until it has ended
  std::shared_ptr<TrunkConnection> connection_ GUARDED_BY(lock_);
  Frame* filling_ GUARDED_BY(lock_) = nullptr;
  FrameQueue ready_ GUARDED_BY(lock_);
  FrameQueue in_flight_ GUARDED_BY(lock_);
  std::shared_ptr<DatagramWaiter> waiters_ GUARDED_BY(lock_);
  uint64_t full_since_ns_ GUARDED_BY(lock_) = 0;  // 0: there is room, or no queue pair wants it
  uint64_t open_since_ns_ GUARDED_BY(lock_) = 0;  // of the connection
  uint32_t brief_ GUARDED_BY(lock_) = 0;     // connections in a row that ended once they were open
  bool stalled_ GUARDED_BY(lock_) = false;   // the peer has taken nothing for too long
  uint64_t retry_ns_ GUARDED_BY(lock_) = 0;  // unreachable until then
  uint64_t pause_ns_ GUARDED_BY(lock_) = 0;  // length of the last such time
  bool logged_ GUARDED_BY(lock_) = false;    // the log knows that it cannot be reached

 public:
  Trunk(Trunks& trunks, const TrunkKey& key, std::shared_ptr<const NetDevice> device)
      : key(key), trunks_(trunks), device_(std::move(device)) {}
  /// Its connections hold it: nothing is on its way any more.
  ~Trunk() override;

  const NetDevice& device() const { return *device_; }

  /// No queue pair waits for room, and no datagram waits to be posted.
  bool idle();
  bool open();
  /// Its connection came of the call with this nonce.
  bool holds(TrunkNonce nonce);

  // DatagramPath.
  Taken append(const DatagramHeader& header, BufferList& payload) override;
  bool wait_for_space(std::shared_ptr<DatagramWaiter> waiter) override;
  void flush() override;
  void flush_soon() override;

  // ---- For its connections, no locks.
  /// A connection is there, and the peer has proved that it has its port. The first one is used,
  /// unless the new one replaces it.
  void connection_open(std::shared_ptr<TrunkConnection> connection);
  /// One that was open has ended: 0, or a negative errno if it was given up.
  void connection_over(const TrunkConnection& connection, int status);
  /// One is about to be closed: what is on it belongs to it from now on, and goes out first. False:
  /// it must not be closed now, because it is not open yet or only receives.
  bool connection_closing(TrunkConnection& connection);
  /// The call with this nonce has ended. `status`: 0, or why the peer was not reached. A connection
  /// that was asked for did not open, unless it is there.
  void call_over(TrunkNonce nonce, int status);
  /// It is asked again whether the peer of `connection` has its port: another process may have it
  /// now.
  void prove_again(TrunkConnection& connection);

  // Source.
  bool ready(uint32_t events) override;
  void deadline_passed() override;

 private:
  bool has_space_locked() const REQUIRES(lock_) {
    return ready_.size() + in_flight_.size() < kMostFrames;
  }
  bool take_frame_locked() REQUIRES(lock_);
  size_t take_done_locked() REQUIRES(lock_);
  void close_frame_locked() REQUIRES(lock_);
  void post_locked(uint32_t& frames, uint64_t& bytes) REQUIRES(lock_);
  bool ask_for_done_locked() REQUIRES(lock_);
  void drop_all_locked() REQUIRES(lock_);
  bool pause_locked() REQUIRES(lock_);
  void log_pause(int status);
  void begin_call();
  void call(TrunkNonce nonce, bool replaces);
  static void wake(std::shared_ptr<DatagramWaiter> waiters);
  std::shared_ptr<DatagramWaiter> take_waiters_locked() REQUIRES(lock_);
};

}  // namespace uwarp
