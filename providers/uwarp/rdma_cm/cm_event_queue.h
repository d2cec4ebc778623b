// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The events of one rdma_cm channel and their exact accounting: librdmacm waits at rdma_destroy_id
// until it has acknowledged as many events as the kernel says it has delivered, so a wrong count
// hangs it or frees what is in use. Knows ids only as sources of events.
#pragma once

#include <semaphore.h>

#include <cstdint>
#include <memory>

#include "rdma_cm/cm_events.h"

namespace uwarp {

/// What signals the events of a queue: see BasicCmEvents.
class CmEventSignals {
 public:
  /// `event_fd` is the engine's own copy; closed by the destructor.
  explicit CmEventSignals(int event_fd) : event_fd_(event_fd) { sem_init(&tokens_, 0, 0); }
  ~CmEventSignals();
  CmEventSignals(const CmEventSignals&) = delete;
  CmEventSignals& operator=(const CmEventSignals&) = delete;

  void post_token() { sem_post(&tokens_); }
  bool try_token() { return sem_trywait(&tokens_) == 0; }
  void make_readable();
  void clear_readable();
  /// Takes a token, and waits for it if need be and the descriptor is not O_NONBLOCK. 0, or EAGAIN,
  /// EINTR. A cancellation point where it waits.
  int wait_for_token();

 private:
  const int event_fd_;
  sem_t tokens_;
};

/// Queue of one channel. All queues of the process share one lock, because an id may move from one
/// to another; events are rare against messages. The lock is a leaf.
///
/// Readiness for poll() is the count of an eventfd. Blocking readers wait on a semaphore: it is a
/// cancellation point, and returns EINTR or goes on after a signal as a system call would.
class CmEventQueue {
 public:
  /// `event_fd` is the engine's own copy; closed by the destructor.
  explicit CmEventQueue(int event_fd) : events_(event_fd) {}

  /// Starts to take events of `source`.
  static void open(CmEventSource& source, std::shared_ptr<CmEventQueue> queue);
  /// The events of `source` come here: its id belongs to this channel.
  bool takes_from(const CmEventSource& source) const;
  bool has_sources() const;
  /// Queues an event of `source` in `reservation` for one, unless that is closed (false; the event
  /// is dropped). Needs no memory.
  static bool push(const std::shared_ptr<CmEventSource>& source, CmEvent event,
                   CmEventReservation reservation);
  /// Queues a CONNECT_REQUEST unless `limit` of them are waiting already (false). The new id starts
  /// on the channel of its listener.
  static bool push_request(const std::shared_ptr<CmEventSource>& source, CmEvent event,
                           CmEventReservation reservation, size_t limit);
  /// No event of `source` is delivered any more; hands out those that were not, with the ids of
  /// CONNECT_REQUESTs. Returns how many events were delivered.
  static uint32_t close(CmEventSource& source, CmEventReservation& dropped);
  /// No event of this group of `source` is delivered any more. Returns how many were.
  static uint32_t forget_group(CmEventSource& source, const std::shared_ptr<uint32_t>& reported);
  /// Undelivered events move along. Returns how many were delivered so far.
  static uint32_t move(CmEventSource& source, const std::shared_ptr<CmEventQueue>& to);

  /// Waits for an event, if need be and the channel is not O_NONBLOCK, and takes it into `taken`,
  /// counting it as delivered. 0, or EAGAIN, EINTR. A cancellation point where it waits.
  int take(CmEventReservation& taken);
  /// A taken event could not be delivered after all: it is the first again and not counted.
  void put_back(CmEventReservation taken);

 private:
  BasicCmEvents<CmEventSignals> events_;  ///< under the one lock, but for its signals
  size_t sources_ = 0;                    ///< those whose `queue` this is
};

}  // namespace uwarp
