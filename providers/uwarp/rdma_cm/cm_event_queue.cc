// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// CmEventQueue.
#include "rdma_cm/cm_event_queue.h"

#include <cerrno>

#include "base/mutex.h"
#include "base/process_own.h"
#include "engine/engine.h"
#include "events/raw_fds.h"
#include "os/engine_fds.h"
#include "rdma_cm/cm_id.h"

namespace uwarp {

namespace {

/// The one lock of all queues and sources.
Mutex& event_lock() {
  static constinit ProcessOwn<Mutex> event_mutex;
  return event_mutex.get();
}

class EventAwaited : public Awaited {
 public:
  EventAwaited(sem_t& tokens, int event_fd)
      : tokens_(tokens), event_fd_{.fd = event_fd, .events = POLLIN, .revents = 0} {
    patient = true;  // events of connections are rare against messages
  }
  bool arrived() override {
    int count = 0;
    sem_getvalue(&tokens_, &count);
    return count > 0;
  }
  std::span<const pollfd> fds() const override { return {&event_fd_, 1}; }

 private:
  sem_t& tokens_;
  const pollfd event_fd_;
};

}  // namespace

CmEventSignals::~CmEventSignals() {
  close_engine_fd(event_fd_);
  sem_destroy(&tokens_);
}

void CmEventSignals::make_readable() {
  const uint64_t one = 1;
  raw_write(event_fd_, &one, sizeof one);
}

// Never blocks, even if the application has set blocking mode: it is readable, because only this
// resets it.
void CmEventSignals::clear_readable() {
  uint64_t count;
  raw_read(event_fd_, &count, sizeof count);
}

int CmEventSignals::wait_for_token() {
  for (;;) {
    if (try_token()) return 0;
    if (!may_block(event_fd_)) return EAGAIN;
    EventAwaited awaited(tokens_, event_fd_);
    const int error = Engine::instance().progress().drive(awaited);
    if (error == EBUSY) return sem_wait(&tokens_) == 0 ? 0 : errno;
    if (error != 0) return error;
  }
}

void CmEventQueue::open(CmEventSource& source, std::shared_ptr<CmEventQueue> queue) {
  const Lock guard(event_lock());
  ++queue->sources_;
  source.queue = std::move(queue);
}

bool CmEventQueue::takes_from(const CmEventSource& source) const {
  const Lock guard(event_lock());
  return source.queue.get() == this;
}

bool CmEventQueue::has_sources() const {
  const Lock guard(event_lock());
  return sources_ != 0;
}

bool CmEventQueue::push(const std::shared_ptr<CmEventSource>& source, CmEvent event,
                        CmEventReservation reservation) {
  reservation.front() = {source, std::move(event)};
  const Lock guard(event_lock());
  if (source->closed || source->queue == nullptr) return false;
  source->queue->events_.add(reservation, false);
  return true;
}

bool CmEventQueue::push_request(const std::shared_ptr<CmEventSource>& source, CmEvent event,
                                CmEventReservation reservation, size_t limit) {
  CmEventSource& own = *event.request->events();
  reservation.front() = {source, std::move(event)};
  const Lock guard(event_lock());
  if (source->closed || source->queue == nullptr || source->waiting_requests >= limit) return false;
  own.queue = source->queue;
  ++source->queue->sources_;
  source->queue->events_.add(reservation, false);
  return true;
}

uint32_t CmEventQueue::close(CmEventSource& source, CmEventReservation& dropped) {
  const Lock guard(event_lock());
  source.closed = true;
  if (source.queue == nullptr) return source.reported;
  dropped = source.queue->events_.extract(source);
  --source.queue->sources_;
  source.queue = nullptr;
  return source.reported;
}

uint32_t CmEventQueue::forget_group(CmEventSource& source,
                                    const std::shared_ptr<uint32_t>& reported) {
  CmEventReservation dropped;
  const Lock guard(event_lock());
  if (source.queue == nullptr) return *reported;
  CmEventReservation all = source.queue->events_.extract(source);
  while (!all.empty()) {
    if (all.front().event.group_reported == reported)
      dropped.splice(dropped.end(), all, all.begin());
    else
      source.queue->events_.add(all, false);
  }
  return *reported;
}

uint32_t CmEventQueue::move(CmEventSource& source, const std::shared_ptr<CmEventQueue>& to) {
  const Lock guard(event_lock());
  // A source that is being destroyed at the same time has no queue any more.
  if (source.queue != nullptr && source.queue != to) {
    CmEventReservation moving = source.queue->events_.extract(source);
    --source.queue->sources_;
    ++to->sources_;
    source.queue = to;
    while (!moving.empty()) {
      if (moving.front().is_request()) {
        auto& queue = moving.front().event.request->events()->queue;
        --queue->sources_;
        ++to->sources_;
        queue = to;
      }
      to->events_.add(moving, false);
    }
  }
  return source.reported;
}

int CmEventQueue::take(CmEventReservation& taken) {
  for (;;) {
    if (const int error = events_.signals.wait_for_token()) return error;
    const Lock guard(event_lock());
    if (!events_.take(taken)) continue;
    ++taken.back().source->reported;
    if (const auto& group = taken.back().event.group_reported) ++*group;
    return 0;
  }
}

void CmEventQueue::put_back(CmEventReservation taken) {
  const Lock guard(event_lock());
  CmEventSource& source = *taken.front().source;
  --source.reported;
  if (const auto& group = taken.front().event.group_reported) --*group;
  if (source.closed) return;
  // It may have moved meanwhile.
  const std::shared_ptr<CmEventQueue> queue = source.queue;
  queue->events_.add(taken, true);
}

}  // namespace uwarp
