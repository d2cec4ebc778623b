// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// CmEventQueue.
#include "kernel/cm_event_queue.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "engine/engine.h"
#include "kernel/cm_id.h"
#include "kernel/raw_fds.h"
#include "os/engine_fds.h"

namespace uwarp {
namespace {

/// The one lock of all queues and sources. A fresh one in a forked child, whose parent's threads
/// may have held the old one.
struct EventLock {
  std::mutex mutex;
  uint32_t generation = fork_generation();
};

std::mutex& event_lock() {
  static std::atomic<EventLock*> current{new EventLock};
  EventLock* lock = current.load(std::memory_order_acquire);
  if (lock->generation == fork_generation()) return lock->mutex;
  auto fresh = std::make_unique<EventLock>();
  if (current.compare_exchange_strong(lock, fresh.get())) lock = fresh.release();
  return lock->mutex;
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

bool is_request(const CmEvent& event) { return event.request != nullptr; }

}  // namespace

CmEventQueue::CmEventQueue(int event_fd) : event_fd_(event_fd) { sem_init(&tokens_, 0, 0); }

CmEventQueue::~CmEventQueue() {
  close_engine_fd(event_fd_);
  sem_destroy(&tokens_);
}

void CmEventQueue::add_locked(CmEventRoom& entry, bool first) {
  if (is_request(entry.front().event)) ++entry.front().source->waiting_requests;
  entries_.splice(first ? entries_.begin() : entries_.end(), entry, entry.begin());
  const uint64_t one = 1;
  // The token first: a reader that the descriptor wakes must find it.
  sem_post(&tokens_);
  raw_write(event_fd_, &one, sizeof one);
}

void CmEventQueue::clear_readiness_if_empty_locked() {
  if (!entries_.empty()) return;
  // Never blocks, whatever mode the application has set: the count is at least 1, because only
  // this place resets it.
  uint64_t count;
  raw_read(event_fd_, &count, sizeof count);
}

CmEventRoom CmEventQueue::extract_locked(const CmEventSource& source) {
  CmEventRoom taken;
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto at = it++;
    if (at->source.get() != &source) continue;
    if (is_request(at->event)) --at->source->waiting_requests;
    taken.splice(taken.end(), entries_, at);
    // A reader that holds this token already finds nothing and waits again.
    sem_trywait(&tokens_);
  }
  if (!taken.empty()) clear_readiness_if_empty_locked();
  return taken;
}

void CmEventQueue::open(CmEventSource& source, std::shared_ptr<CmEventQueue> queue) {
  const std::lock_guard guard(event_lock());
  ++queue->sources_;
  source.queue = std::move(queue);
}

bool CmEventQueue::takes_from(const CmEventSource& source) const {
  const std::lock_guard guard(event_lock());
  return source.queue.get() == this;
}

bool CmEventQueue::has_sources() const {
  const std::lock_guard guard(event_lock());
  return sources_ != 0;
}

bool CmEventQueue::push(const std::shared_ptr<CmEventSource>& source, CmEvent event,
                        CmEventRoom room) {
  room.front() = {source, std::move(event)};
  const std::lock_guard guard(event_lock());
  if (source->closed || source->queue == nullptr) return false;
  source->queue->add_locked(room, false);
  return true;
}

bool CmEventQueue::push_request(const std::shared_ptr<CmEventSource>& source, CmEvent event,
                                CmEventRoom room, size_t limit) {
  CmEventSource& own = *event.request->events();
  room.front() = {source, std::move(event)};
  const std::lock_guard guard(event_lock());
  if (source->closed || source->queue == nullptr || source->waiting_requests >= limit) return false;
  own.queue = source->queue;
  ++source->queue->sources_;
  source->queue->add_locked(room, false);
  return true;
}

uint32_t CmEventQueue::close(CmEventSource& source, CmEventRoom& dropped) {
  const std::lock_guard guard(event_lock());
  source.closed = true;
  if (source.queue == nullptr) return source.reported;
  dropped = source.queue->extract_locked(source);
  --source.queue->sources_;
  source.queue = nullptr;
  return source.reported;
}

uint32_t CmEventQueue::move(CmEventSource& source, const std::shared_ptr<CmEventQueue>& to) {
  const std::lock_guard guard(event_lock());
  // A source that is being destroyed at the same time has no queue any more.
  if (source.queue != nullptr && source.queue != to) {
    CmEventRoom moving = source.queue->extract_locked(source);
    --source.queue->sources_;
    ++to->sources_;
    source.queue = to;
    while (!moving.empty()) {
      if (const CmEvent& event = moving.front().event; is_request(event)) {
        auto& queue = event.request->events()->queue;
        --queue->sources_;
        ++to->sources_;
        queue = to;
      }
      to->add_locked(moving, false);
    }
  }
  return source.reported;
}

int CmEventQueue::take_token() {
  for (;;) {
    if (sem_trywait(&tokens_) == 0) return 0;
    if (!may_block(event_fd_)) return EAGAIN;
    EventAwaited awaited(tokens_, event_fd_);
    const int error = Engine::instance().progress().drive(awaited);
    if (error == EBUSY) return sem_wait(&tokens_) == 0 ? 0 : errno;
    if (error != 0) return error;
  }
}

int CmEventQueue::take(CmEventRoom& taken) {
  for (;;) {
    if (const int error = take_token()) return error;
    const std::lock_guard guard(event_lock());
    if (entries_.empty()) continue;
    taken.splice(taken.end(), entries_, entries_.begin());
    CmEventEntry& entry = taken.back();
    if (is_request(entry.event)) --entry.source->waiting_requests;
    ++entry.source->reported;
    clear_readiness_if_empty_locked();
    return 0;
  }
}

void CmEventQueue::put_back(CmEventRoom taken) {
  const std::lock_guard guard(event_lock());
  CmEventSource& source = *taken.front().source;
  --source.reported;
  if (source.closed) return;
  // It may have moved meanwhile.
  const std::shared_ptr<CmEventQueue> queue = source.queue;
  queue->add_locked(taken, true);
}

}  // namespace uwarp
