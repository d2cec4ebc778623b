// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A queue pair as applications know it: the sans-IO core, its number, its attributes, and the
// connection that carries it, made by rdma_cm or by the rendezvous. verbs/ talks to this class.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/thread_own.h"
#include "base/tuning.h"
#include "connect/connection.h"
#include "connect/qp_attributes.h"
#include "connect/rendezvous.h"
#include "connect/rendezvous_port.h"
#include "net/net_device.h"
#include "observe/stat_page.h"
#include "os/clock.h"
#include "progress/source.h"
#include "qp/queue_pair.h"
#include "stream/stream.h"

namespace uwarp {

class Endpoint;

/// While one exists, buffers that this thread posts to shared receive queues make it note the
/// streams that were promised them; resume() then lets these go on, in this thread.
class PromisedStreams {
 public:
  PromisedStreams() : outer_(std::exchange(thread_own<Current>().list, this)) {}
  ~PromisedStreams() { leave(); }
  PromisedStreams(const PromisedStreams&) = delete;
  PromisedStreams& operator=(const PromisedStreams&) = delete;
  void resume();

  /// False: there is none in this thread, or no room.
  static bool note(std::shared_ptr<Endpoint>& endpoint);

 private:
  static constexpr size_t kCapacity = 8;
  /// The innermost one of the thread.
  struct Current {
    PromisedStreams* list = nullptr;
  };

  void leave() {
    Current& current = thread_own<Current>();
    if (current.list == this) current.list = outer_;
  }

  PromisedStreams* const outer_;
  size_t count_ = 0;
  std::shared_ptr<Endpoint> endpoints_[kCapacity];
};

/// A queue pair of any type as verbs/ knows it: its number, and the attributes that were set.
class AnyEndpoint {
 protected:
  QpNumberLease place_;
  // After a Connection's mutex; before poll groups and the queue pair's sides.
  mutable Mutex mutex_;
  ibv_qp_attr attributes_ GUARDED_BY(mutex_) = initial_attributes();
  bool destroyed_ GUARDED_BY(mutex_) = false;

 public:
  virtual ~AnyEndpoint() = default;

  Qpn number() const { return place_.number(); }
  /// The slots of its completion queues in the page of counters. For the layer that made them.
  void name_queues(uint32_t send_queue, uint32_t receive_queue);
  /// ibv_modify_qp: checks mask and state table, keeps the attributes, whose values are in range,
  /// moves the state, and what else hangs on it. 0 or EINVAL, ENOMEM, EADDRINUSE...
  virtual int modify(const ibv_qp_attr& attributes, int mask) = 0;
  /// All that was set, plus the state at this moment.
  ibv_qp_attr attributes() const;
  /// ibv_destroy_qp: ends what carries it. When it returns no thread touches the queue pair, its
  /// completion queues or the memory of its domain on its behalf any more.
  virtual void destroy() = 0;

 protected:
  explicit AnyEndpoint(QpNumberLease place) : place_(std::move(place)) {}
  virtual QpState state_locked() const REQUIRES(mutex_) = 0;
};

/// Made by create(), for an ibv_qp or as a queue pair of the engine's own, and held by shared_ptr
/// there and by its connection while that runs. modify() moves it through the states of verbs. It
/// has a connection from claim() to release(), whose bytes flow from open_stream() to
/// close_stream(), and without rdma_cm a rendezvous from RTR to ERR, RESET or destroy(). destroy()
/// cuts it off from all of them: then no thread uses its memory or its completion queues. What is
/// left goes with the last reference.
class Endpoint final : public Source, public AnyEndpoint, private ReceiveWaiter {
  ConnectContext& context_;
  const std::vector<IpAddress> addresses_;  // GIDs of the device at creation
  QueuePair qp_;
  Stream stream_;

  QpState verbs_state_ GUARDED_BY(mutex_) = QpState::kReset;  // as the application moved it
  /// rdma_cm connects it: it takes no part in the rendezvous, and the connection moves it to RTR
  /// and RTS.
  bool cm_owned_ GUARDED_BY(mutex_) = false;
  uint16_t peer_depth_ GUARDED_BY(mutex_) = 0;  // ORD that the peer's IRD allows
  std::shared_ptr<Connection> connection_ GUARDED_BY(mutex_);
  std::shared_ptr<Rendezvous> rendezvous_ GUARDED_BY(mutex_);
  std::vector<PendingCall> held_ GUARDED_BY(mutex_);  // calls below RTR

 public:
  /// Makes a queue pair on `device`: reserves its number and with it the rendezvous port.
  /// config.number is filled in here. Errors: ENOMEM, EADDRINUSE (no port), EMFILE.
  static Result<std::shared_ptr<Endpoint>> create(ConnectContext& context, const NetDevice& device,
                                                  const QpConfig& config);
  ~Endpoint() override;

  QueuePair& qp() { return qp_; }
  const QueuePair& qp() const { return qp_; }
  /// A stream runs.
  bool connected() const { return stream_.attached(); }
  /// That the peer of the last connection has proved by TLS; empty without TLS.
  std::string peer_identity() const {
    const Lock guard(mutex_);
    return peer_identity_;
  }
  Stream& stream() { return stream_; }

  int modify(const ibv_qp_attr& attributes, int mask) override;
  /// A new queue pair of the engine's own: to INIT, to be connected as rdma_cm does it.
  int init_for_cm();
  /// What an rdma_cm id was given for its queue pair.
  void set_retries(const RetryAttributes& retries);

  /// Hot path, after a call has posted: if no thread transmits, transmits in the caller, unless
  /// more posts are expected at once. Takes no memory.
  void pump(const Posted& posted) {
    if (!stream_.attached()) [[unlikely]]
      return pump_at_once();
    if (stream_.pace().may_wait(span_ns, posted, qp_.awaits_answers()))
      return stream_.transmit_soon();
    stream_.transmit_posted();
    if (posted.bytes >= tuning::kLargePostBytes) receive_after_sending(posted.bytes);
    stream_.pace().sent(span_ns());
  }
  /// Hot path: posts a receive. The caller calls receives_posted() after one or several of them.
  int post_recv(uint64_t wr_id, std::span<const Sge> sges) { return qp_.post_recv(wr_id, sges); }
  /// A stream that was held for want of receives goes on, in the caller.
  void receives_posted() {
    if (qp_.receive_resumable()) [[unlikely]]
      resume();
  }
  /// A held stream may go on: a receive was posted, also through an SRQ. Looks with the receive
  /// side held, because a stream enters the line a moment before it says that it is held.
  void resume() { stream_.resume(); }
  /// The same for Progress, when another thread than the poster's has to do it.
  bool ready(uint32_t) override {
    resume();
    return false;
  }
  /// What a FaultScript has held long enough goes on.
  void script_deadline_passed();

  void destroy() override;

  /// XRC: `queue` has left the domain. On return no thread uses it, nor its completion queue, on
  /// this queue pair's behalf.
  void forget(const XrcQueue& queue);

  // ---- For Connection, under its mutex.
  /// Takes the queue pair for a connection that is being made. Errors: EINVAL (state, taken).
  int claim(const std::shared_ptr<Connection>& connection, bool rendezvous);
  void release(const Connection& connection);
  /// Enters FPDU mode. False: the queue pair is not in a state for it any more.
  bool open_stream(Connection& connection, StreamConfig config, const Stream::Ends& ends);
  /// Notes the carrier in the page of counters and in the trace.
  void describe_carrier(bool shared_memory);
  /// Leaves FPDU mode. On return no byte moves any more.
  void close_stream();
  /// XRC: polls of the completion queue that a message has named shall drive the stream.
  void follow_receives();
  /// Receiver::complete_deferred(). False: that has failed the stream.
  bool complete_deferred();
  /// When a message without a buffer has waited long enough; 0: never.
  uint64_t rnr_deadline_ns() const;
  /// From timeout and retry count; 0: not set, or infinite.
  uint32_t peer_timeout_ms() const;

  // ---- For the rendezvous, no locks.
  /// A peer's call came in on the rendezvous port.
  void answer(std::shared_ptr<Connection> request, const RendezvousCall& call);
  /// The peer has not answered in time: waiting requests fail with RETRY_EXC_ERR, or are lost.
  void rendezvous_failed();

 private:
  int change(const ibv_qp_attr& attributes, int mask);
  void receive_after_sending(uint64_t bytes);
  Endpoint(ConnectContext& context, const NetDevice& device, QpNumberLease place,
           const QpConfig& config);
  void receive_posted() override;
  QpState state_locked() const override REQUIRES(mutex_);
  bool unreliable() const { return is_unreliable(qp_.config().transport); }
  int check_address_locked(const ibv_qp_attr& attributes, int mask) const REQUIRES(mutex_);
  RendezvousTerms terms_locked() const REQUIRES(mutex_);
  // Given up meanwhile, which the analysis cannot follow in these.
  int modify_for_cm(const ibv_qp_attr& attributes, int mask, QpState to, Lock<Mutex>& lock)
      REQUIRES(mutex_) NO_THREAD_SAFETY_ANALYSIS;
  int to_init(Lock<Mutex>& lock) REQUIRES(mutex_) NO_THREAD_SAFETY_ANALYSIS;
  void to_rtr(Lock<Mutex>& lock) REQUIRES(mutex_) NO_THREAD_SAFETY_ANALYSIS;
  void to_rts(Lock<Mutex>& lock) REQUIRES(mutex_) NO_THREAD_SAFETY_ANALYSIS;
  void to_sqd(Lock<Mutex>& lock, bool notify_named) REQUIRES(mutex_) NO_THREAD_SAFETY_ANALYSIS;
  void to_error_or_reset(Lock<Mutex>& lock, QpState to) REQUIRES(mutex_);
  void cut_off(Lock<Mutex>& lock) REQUIRES(mutex_) NO_THREAD_SAFETY_ANALYSIS;
  void shut_out_peer(Lock<Mutex>& lock) REQUIRES(mutex_) NO_THREAD_SAFETY_ANALYSIS;
  void pump_at_once();
  void describe_connection(const StreamConfig& config, Connection& connection) REQUIRES(mutex_);
  void trace_carrier(bool shared_memory);

  std::string peer_identity_ GUARDED_BY(mutex_);
};

}  // namespace uwarp
