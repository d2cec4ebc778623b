// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Events of rdma_cm in their order, and what signals them.
#pragma once

#include <rdma/rdma_user_cm.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

namespace uwarp {

class CmId;
class CmEventQueue;

/// Values of rdma_cm_event_type. Spelled out because <rdma/rdma_cma.h> and the kernel's header do
/// not go together.
enum class CmEventType : uint32_t {
  kAddressResolved = 0,
  kAddressError = 1,
  kRouteResolved = 2,
  kRouteError = 3,
  kConnectRequest = 4,
  kConnectResponse = 5,
  kConnectError = 6,
  kUnreachable = 7,
  kRejected = 8,
  kEstablished = 9,
  kDisconnected = 10,
  kDeviceRemoval = 11,
  kMulticastJoin = 12,
  kMulticastError = 13,
  kTimewaitExit = 15,
  kUser = 18,      ///< an application has written it, rdma_write_cm_event()
  kInternal = 19,  ///< librdmacm has written it, for itself
};

/// One queued event. `request` is the new id of a CONNECT_REQUEST, owned by the event until it is
/// delivered.
struct CmEvent {
  rdma_ucm_event_resp response{};
  std::shared_ptr<CmId> request{};
  /// Of a multicast group: how many of its events were delivered. It counts them apart, beside the
  /// id. Belongs to CmEventQueue's lock.
  std::shared_ptr<uint32_t> group_reported{};
};

/// What an id is to the queues. All members belong to CmEventQueue's one lock.
struct CmEventSource {
  std::shared_ptr<CmEventQueue> queue;
  uint32_t reported = 0;        ///< events delivered through GET_EVENT
  size_t waiting_requests = 0;  ///< undelivered CONNECT_REQUESTs
  bool closed = false;
};

/// An event with the source it is counted for.
struct CmEventEntry {
  std::shared_ptr<CmEventSource> source;
  CmEvent event;

  bool is_request() const { return event.request != nullptr; }
};

/// Room for events, an element each. The command or incoming request that may cause the events
/// makes it, because that can still fail for lack of memory. An event of a connection cannot:
/// without the event of its end an application would wait for ever.
using CmEventReservation = std::list<CmEventEntry>;

/// The events of one queue. There are as many tokens as events, apart from those that readers hold
/// or took too late. The descriptor is readable while there are events. Each call but that of
/// `signals` under one lock, which is a leaf.
template <class Signals>
class BasicCmEvents {
 public:
  template <class... Arguments>
  explicit BasicCmEvents(Arguments... arguments) : signals(arguments...) {}

  /// Takes over the one entry.
  void add(CmEventReservation& entry, bool first) {
    if (entry.front().is_request()) ++entry.front().source->waiting_requests;
    entries_.splice(first ? entries_.begin() : entries_.end(), entry, entry.begin());
    // The token first: a reader that the descriptor wakes must find it.
    signals.post_token();
    signals.make_readable();
  }

  /// Takes the first event, for a reader that has a token. False: it is gone, wait again.
  bool take(CmEventReservation& taken) {
    if (entries_.empty()) return false;
    taken.splice(taken.end(), entries_, entries_.begin());
    if (taken.back().is_request()) --taken.back().source->waiting_requests;
    clear_if_empty();
    return true;
  }

  /// Takes the events of `source` out, in order.
  CmEventReservation extract(const CmEventSource& source) {
    CmEventReservation taken;
    for (auto it = entries_.begin(); it != entries_.end();) {
      const auto at = it++;
      if (at->source.get() != &source) continue;
      if (at->is_request()) --at->source->waiting_requests;
      taken.splice(taken.end(), entries_, at);
      (void)signals.try_token();  // a reader that holds it already finds nothing and waits again
    }
    if (!taken.empty()) clear_if_empty();
    return taken;
  }

  Signals signals;

 private:
  void clear_if_empty() {
    if (entries_.empty()) signals.clear_readable();
  }

  CmEventReservation entries_;
};

}  // namespace uwarp
