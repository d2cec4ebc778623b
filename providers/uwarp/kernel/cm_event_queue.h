// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The events of one rdma_cm channel and their exact accounting: librdmacm waits at rdma_destroy_id
// until it has acknowledged as many events as the kernel says it has delivered, so a wrong count
// hangs it or frees what is in use. Knows ids only as sources of events.
#pragma once

#include <rdma/rdma_user_cm.h>
#include <semaphore.h>

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
  kTimewaitExit = 15,
};

/// One queued event. `request` is the new id of a CONNECT_REQUEST, owned by the event until it is
/// delivered.
struct CmEvent {
  rdma_ucm_event_resp response{};
  std::shared_ptr<CmId> request;
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
};

/// Room for events, an element each. It is made by what may bring them about, a command or a
/// request that comes in, because that can still fail for lack of memory. An event of a connection
/// cannot: whoever is not told of an end waits for it for ever.
using CmEventRoom = std::list<CmEventEntry>;

/// Queue of one channel. All queues of the process share one lock, because an id may move from one
/// to another; events are rare against messages. The lock is a leaf.
///
/// Readiness for poll() is the count of an eventfd, non-zero while the queue is not empty. Blocking
/// readers wait on a semaphore of one token per event: it is a cancellation point, and returns
/// EINTR or goes on after a signal as a system call would.
class CmEventQueue {
 public:
  /// `event_fd` is the engine's own copy; closed by the destructor.
  explicit CmEventQueue(int event_fd);
  ~CmEventQueue();
  CmEventQueue(const CmEventQueue&) = delete;
  CmEventQueue& operator=(const CmEventQueue&) = delete;

  /// Starts to take events of `source`.
  static void open(CmEventSource& source, std::shared_ptr<CmEventQueue> queue);
  /// The events of `source` come here: its id belongs to this channel.
  bool takes_from(const CmEventSource& source) const;
  bool has_sources() const;
  /// Queues an event of `source` in `room` for one, unless that is closed (false; the event is
  /// dropped). Needs no memory.
  static bool push(const std::shared_ptr<CmEventSource>& source, CmEvent event, CmEventRoom room);
  /// Queues a CONNECT_REQUEST unless `limit` of them are waiting already (false). The new id starts
  /// on the channel of its listener.
  static bool push_request(const std::shared_ptr<CmEventSource>& source, CmEvent event,
                           CmEventRoom room, size_t limit);
  /// No event of `source` is delivered any more; hands out those that were not, with the ids of
  /// CONNECT_REQUESTs. Returns how many events were delivered.
  static uint32_t close(CmEventSource& source, CmEventRoom& dropped);
  /// Undelivered events move along. Returns how many were delivered so far.
  static uint32_t move(CmEventSource& source, const std::shared_ptr<CmEventQueue>& to);

  /// Waits for an event, if need be and the channel is not O_NONBLOCK, and takes it into `taken`,
  /// counting it as delivered. 0, or EAGAIN, EINTR. A cancellation point where it waits.
  int take(CmEventRoom& taken);
  /// A taken event could not be delivered after all: it is the first again and not counted.
  void put_back(CmEventRoom taken);

 private:
  int take_token();
  /// Takes over the one entry.
  void add_locked(CmEventRoom& entry, bool first);
  /// Takes the entries of `source` out, in order.
  CmEventRoom extract_locked(const CmEventSource& source);
  void clear_readiness_if_empty_locked();

  const int event_fd_;
  sem_t tokens_;
  size_t sources_ = 0;  ///< those whose `queue` this is
  CmEventRoom entries_;
};

}  // namespace uwarp
