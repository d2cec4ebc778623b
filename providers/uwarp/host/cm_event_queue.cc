// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// CmEventQueue.
#include "host/cm_event_queue.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "host/cm_id.h"
#include "host/raw_fds.h"
#include "io/engine_fds.h"

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

bool is_request(const CmEvent& event) { return event.request != nullptr; }

}  // namespace

CmEventQueue::CmEventQueue(int event_fd) : event_fd_(event_fd) { sem_init(&tokens_, 0, 0); }

CmEventQueue::~CmEventQueue() {
  close_engine_fd(event_fd_);
  sem_destroy(&tokens_);
}

void CmEventQueue::add_locked(Entry entry, bool first) {
  if (is_request(entry.event)) ++entry.source->waiting_requests;
  if (first) {
    entries_.push_front(std::move(entry));
  } else {
    entries_.push_back(std::move(entry));
  }
  const uint64_t one = 1;
  raw_write(event_fd_, &one, sizeof one);
  sem_post(&tokens_);
}

void CmEventQueue::clear_readiness_if_empty_locked() {
  if (!entries_.empty()) return;
  // Never blocks, whatever mode the application has set: the count is at least 1, because only
  // this place resets it.
  uint64_t count;
  raw_read(event_fd_, &count, sizeof count);
}

std::vector<CmEventQueue::Entry> CmEventQueue::extract_locked(const CmEventSource& source) {
  std::vector<Entry> taken;
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (it->source.get() != &source) {
      ++it;
      continue;
    }
    if (is_request(it->event)) --it->source->waiting_requests;
    taken.push_back(std::move(*it));
    it = entries_.erase(it);
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

bool CmEventQueue::push(const std::shared_ptr<CmEventSource>& source, CmEvent event) {
  const std::lock_guard guard(event_lock());
  if (source->closed || source->queue == nullptr) return false;
  source->queue->add_locked({source, std::move(event)}, false);
  return true;
}

bool CmEventQueue::push_request(const std::shared_ptr<CmEventSource>& source, CmEvent event,
                                size_t limit) {
  const std::lock_guard guard(event_lock());
  if (source->closed || source->queue == nullptr || source->waiting_requests >= limit) return false;
  event.request->events()->queue = source->queue;
  ++source->queue->sources_;
  source->queue->add_locked({source, std::move(event)}, false);
  return true;
}

uint32_t CmEventQueue::close(CmEventSource& source, std::vector<std::shared_ptr<CmId>>& requests) {
  std::vector<Entry> dropped;
  const std::lock_guard guard(event_lock());
  source.closed = true;
  if (source.queue == nullptr) return source.reported;
  dropped = source.queue->extract_locked(source);
  for (Entry& entry : dropped) {
    if (is_request(entry.event)) requests.push_back(std::move(entry.event.request));
  }
  --source.queue->sources_;
  source.queue = nullptr;
  return source.reported;
}

uint32_t CmEventQueue::move(CmEventSource& source, const std::shared_ptr<CmEventQueue>& to) {
  const std::lock_guard guard(event_lock());
  if (source.queue != to) {
    std::vector<Entry> moving = source.queue->extract_locked(source);
    --source.queue->sources_;
    ++to->sources_;
    source.queue = to;
    for (Entry& entry : moving) {
      if (is_request(entry.event)) {
        auto& queue = entry.event.request->events()->queue;
        --queue->sources_;
        ++to->sources_;
        queue = to;
      }
      to->add_locked(std::move(entry), false);
    }
  }
  return source.reported;
}

int CmEventQueue::take(Entry& entry, bool may_block) {
  for (;;) {
    if ((may_block ? sem_wait(&tokens_) : sem_trywait(&tokens_)) != 0) return errno;
    const std::lock_guard guard(event_lock());
    if (entries_.empty()) continue;
    entry = std::move(entries_.front());
    entries_.pop_front();
    if (is_request(entry.event)) --entry.source->waiting_requests;
    ++entry.source->reported;
    clear_readiness_if_empty_locked();
    return 0;
  }
}

void CmEventQueue::put_back(Entry entry) {
  const std::lock_guard guard(event_lock());
  --entry.source->reported;
  if (entry.source->closed) return;
  // It may have moved meanwhile.
  const std::shared_ptr<CmEventQueue> queue = entry.source->queue;
  queue->add_locked(std::move(entry), true);
}

}  // namespace uwarp
