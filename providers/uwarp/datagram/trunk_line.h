// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One connection of a trunk, from its call to its end: a queue pair of our own that carries frames
// of datagrams both ways. What comes is handed to the queue pairs that it names.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/ids.h"
#include "base/result.h"
#include "base/spinlock.h"
#include "connect/connection_events.h"
#include "connect/endpoint.h"
#include "datagram/frame_pool.h"
#include "datagram/recent_endpoints.h"
#include "net/ip_address.h"
#include "net/net_device.h"
#include "progress/source.h"
#include "protocol/wire/global_route_header.h"
#include "qp/completion_queue.h"
#include "qp/datagram_queue_pair.h"
#include "qp/receive/message_sink.h"

namespace uwarp {

class Trunk;
class Trunks;
struct RendezvousCall;

/// Of what goes over a trunk: docs/wire.md.
inline constexpr uint32_t kTrunkVersion = 1;

/// Both hosts, and the port that tells the process on the other one.
struct TrunkKey {
  IpAddress own;
  IpAddress peer;
  uint16_t port = 0;
  friend auto operator<=>(const TrunkKey&, const TrunkKey&) = default;
};

class TrunkLine final : public Source,
                        public ConnectionOwner,
                        public DatagramHolder,
                        private MessageSink,
                        private CompletionNotifier {
 public:
  /// Frames that may be posted at a time: all that a trunk has, so that none is left behind when
  /// the line is closed.
  static constexpr uint32_t kDepth = 64;

  /// Calls the process that `key` names. `source` is the queue pair that has something to send.
  /// Errors: EMFILE, ENOMEM, EADDRNOTAVAIL...; what becomes of the call is told to `trunk`.
  static Result<std::shared_ptr<TrunkLine>> dial(Trunks& trunks, const TrunkKey& key,
                                                 const NetDevice& device, Qpn source,
                                                 std::shared_ptr<Trunk> trunk);
  /// Answers a call.
  static Result<std::shared_ptr<TrunkLine>> answer(Trunks& trunks, const TrunkKey& key,
                                                   const NetDevice& device,
                                                   const std::shared_ptr<Connection>& request,
                                                   std::shared_ptr<Trunk> trunk);
  ~TrunkLine() override;

  /// Ends it in order, if it is open. What was sent before goes out.
  void close();
  /// Ends it at once. `status`: 0 or a negative errno, for the trunk.
  void give_up(int status);
  /// Nothing of queue pairs that have gone is kept on return.
  void forget_endpoints();

  // ---- For its trunk, under the trunk's lock.
  /// False: no room in its queue, or the line has failed.
  bool post(const Frame& frame);
  /// How many posted frames are done with since the last call, oldest first.
  size_t take_done();
  /// These are posted; they are given back when it is over.
  void keep_frames(FrameQueue frames);
  /// An event is wanted as soon as there is something to take. False: there is something already.
  bool ask_for_done() { return !completions_.arm(false); }

  // ---- Without locks.
  /// Sends what was posted.
  void pump(uint32_t frames, uint64_t bytes);

  // Source.
  bool ready(uint32_t events) override;
  void deadline_passed() override;
  void receive_came() override { go_on(true); }
  // ConnectionOwner.
  void connection_established(const std::shared_ptr<Connection>& connection,
                              const sockaddr_storage& local,
                              const ConnectParameters& peer) override;
  void connection_rejected(const std::shared_ptr<Connection>& connection, int status,
                           std::span<const std::byte> private_data) override;
  void connection_failed(const std::shared_ptr<Connection>& connection, int status) override;
  void connection_ended(const std::shared_ptr<Connection>& connection) override;

 private:
  TrunkLine(Trunks& trunks, const TrunkKey& key, const NetDevice& device,
            std::shared_ptr<Trunk> trunk, bool dialed);
  std::shared_ptr<TrunkLine> shared_line() {
    return std::static_pointer_cast<TrunkLine>(shared_from_this());
  }
  void set_connection(std::shared_ptr<Connection> connection) {
    const std::lock_guard lock(lock_);
    connection_.swap(connection);
  }
  int make_endpoint(const NetDevice& device);
  // MessageSink and CompletionNotifier.
  std::span<std::byte> room() override;
  void arrived(size_t bytes) override;
  void completion_event() override;
  void completion_overrun() override {}
  void deliver();
  void go_on(bool told);
  bool wait_for_receive(DatagramQueuePair& qp);
  bool hold_for(DatagramEndpoint& endpoint);
  void end_hold();
  bool deliver_one(const DatagramHeader& header, const std::byte* payload);
  void set_alarm();
  void give_back_kept();
  std::shared_ptr<Connection> connection() {
    const std::lock_guard lock(lock_);
    return connection_;
  }
  void over(int status);

  Trunks& trunks_;
  const int ifindex_;
  // Memory of its frames is sent from here: it stays until the end of both. The trunk lets go of a
  // line that is over.
  const std::shared_ptr<Trunk> trunk_;
  CompletionQueue completions_{kDepth, this};
  std::shared_ptr<Endpoint> endpoint_;
  const bool dialed_;
  std::atomic<bool> open_{false};  // it was established
  std::atomic<bool> over_{false};  // it has ended, or was given up
  std::atomic<bool> used_{false};  // since the last look
  SpinLock lock_;
  // Under lock_:
  std::shared_ptr<Connection> connection_;
  FrameQueue kept_;
  bool done_ = false;  // no frame is sent from any more

  // Under the receive side of the endpoint.
  GlobalRouteHeader route_;
  RecentEndpoints recent_;
  std::unique_ptr<std::byte[]> buffer_;        // kFrameBytes; from the first message on
  size_t filled_ = 0;                          // bytes of the message in it ...
  size_t next_ = 0;                            // ... of which these have been delivered or dropped
  uint64_t patience_until_ns_ = 0;             // a datagram waits for a receive; 0: none does
  std::shared_ptr<DatagramEndpoint> held_at_;  // receive_came() will be called by this one
  Qpn first_;                                  // that has been served
  bool several_ = false;                       // others have, too
  uint64_t idle_at_ns_ = ~uint64_t{0};         // when to look whether it was used
};

}  // namespace uwarp
