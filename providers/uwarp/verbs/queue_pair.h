// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_qp: an endpoint of the engine with what the application set and is told about it.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "connect/endpoint.h"
#include "datagram/datagram_endpoint.h"
#include "kernel-abi/object_abi.h"
#include "os/clock.h"
#include "verbs/acknowledgement.h"
#include "verbs/completion.h"
#include "verbs/named.h"
#include "verbs/protection_domain.h"
#include "verbs/shared_receive.h"
#include "verbs/work_batch.h"
#include "verbs/xrc_domain.h"

namespace uwarp {

/// What a queue pair is built of; checked before any of it is used. A receiving queue pair of XRC
/// has an XRC domain and nothing else, a sending one no queue for receives.
struct QpParts {
  VerbsPd* pd = nullptr;
  VerbsCq* send_cq = nullptr;
  VerbsCq* recv_cq = nullptr;
  VerbsSrq* srq = nullptr;  // or null
  VerbsXrcd* xrcd = nullptr;
};

struct VerbsQp final : object_abi::Qp, Named<VerbsQp, object_abi::Qp, ibv_qp>, QpEventListener {
  /// Takes a place in all parts; the destructor leaves them. `operations`: those to be posted by
  /// ibv_wr_*; 0 makes a plain ibv_qp.
  VerbsQp(DeviceContext& device, const QpParts& parts, const ibv_qp_init_attr& init,
          uint64_t operations);
  ~VerbsQp() override;

  void qp_event(QpEvent event) override {
    device.raise(static_cast<ibv_event_type>(event), &base, async_events);
  }

  DeviceContext& device;
  const QpParts parts;
  const ibv_qp_init_attr init;  // capacities as given to the application
  /// Kinds of asynchronous events of a queue pair (QpEvent).
  static constexpr size_t kEventKinds = 6;
  const EventReservation event_reservation;
  DeliveredCount async_events{0};
  /// Not modified yet: reported as INIT, as RNICs in the kernel do, which have no RESET.
  std::atomic<bool> untouched{true};
  // One of the two, until end().
  std::shared_ptr<Endpoint> endpoint;
  std::shared_ptr<SharedEndpoint> shared;       // of a receiving queue pair of XRC
  std::shared_ptr<DatagramEndpoint> datagrams;  // of a UD queue pair
  const std::unique_ptr<WorkBatch> batch;       // of an ibv_qp_ex

  /// The application is done with the queue pair, of which others may have a share: it is taken
  /// from its device's engine. What it was made of stays, as a thread that was given an event of
  /// the queue pair may be inside a verb until it has acknowledged the event.
  void stop();
  /// Frees also what it was made of. No thread uses the queue pair any more.
  void end();

  Mutex mutex;
  /// Multicast groups as they were joined: who leaves one must name the same LID, which means
  /// nothing else on Ethernet.
  struct Membership {
    ibv_gid group;
    uint16_t lid;
  };
  std::vector<Membership> memberships GUARDED_BY(mutex);

  /// Its endpoint, of either type.
  AnyEndpoint& any() const {
    return datagrams != nullptr ? static_cast<AnyEndpoint&>(*datagrams) : *endpoint;
  }
  /// Work is flushed.
  void fail() {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    (void)any().modify(attributes, IBV_QP_STATE);
  }
  /// Calls `visit` for all parts that count their users.
  template <typename Visit>
  void each_part(const Visit& visit) {
    if (parts.send_cq != nullptr) visit(*parts.send_cq);
    if (parts.recv_cq != nullptr) visit(*parts.recv_cq);
    if (parts.srq != nullptr) visit(*parts.srq);
    if (parts.xrcd != nullptr) visit(*parts.xrcd);
  }

 private:
  bool stopped_ = false;
};

/// Posts several requests with one taking of the lock, and lets the endpoint transmit once, at the
/// end, also when a later request is refused.
class SCOPED_CAPABILITY QueuePairPoster {
 public:
  explicit QueuePairPoster(Endpoint& endpoint) ACQUIRE(endpoint.qp().post_lock())
      : endpoint_(endpoint) {
    endpoint.qp().post_lock().lock();
  }
  QueuePairPoster(const QueuePairPoster&) = delete;
  QueuePairPoster& operator=(const QueuePairPoster&) = delete;
  ~QueuePairPoster() noexcept(false) RELEASE() {
    endpoint_.qp().post_lock().unlock();
    if (posted_.messages == 0) return;
    endpoint_.qp().flush_late_posts();
    endpoint_.pump(posted_);
  }
  int post(const SendRequest& request) NO_THREAD_SAFETY_ANALYSIS {
    if (const int error = endpoint_.qp().post_send_locked(request)) return error;
    posted_.add(span_ns);
    posted_.bytes += request.outgoing_bytes();
    return 0;
  }

 private:
  Endpoint& endpoint_;
  Posted posted_;
};

}  // namespace uwarp
