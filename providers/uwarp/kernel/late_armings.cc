// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "kernel/late_armings.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "base/fork.h"
#include "base/process_own.h"
#include "kernel/event_channel.h"

namespace uwarp {

struct LateArming {
  CompletionEvents* events;
  const EventChannel* channel;
  pthread_t thread;
};

struct LateArmings {
  std::mutex lock;
  size_t queues = 0;               // that may be armed
  std::vector<LateArming> list;    // has room for all of them
  std::atomic<bool> empty = true;  // changed under the lock
};

namespace {

ProcessOwn<LateArmings> late_armings;
/// Threads that wait at an epoll set, or at what is not known. Outside of LateArmings, so that
/// counting them allocates nothing.
constinit std::atomic<int> unknown_waits{0};
const InForkedChild forget_waits([] { unknown_waits.store(0); });

/// What epoll_wait() waits for comes as its set alone.
bool is_set(std::span<const pollfd> fds) {
  return fds.size() == 1 && event_channel_of(fds[0].fd) == nullptr;
}

bool waits_at(const EventChannel* channel, std::span<const pollfd> fds) {
  return std::any_of(fds.begin(), fds.end(), [&](const pollfd& wait) {
    return event_channel_of(wait.fd).get() == channel;
  });
}

}  // namespace

LateArmingRoom::LateArmingRoom() : all_(late_armings.get()) {
  const std::lock_guard guard(all_.lock);
  if (all_.queues == all_.list.capacity()) all_.list.reserve(2 * all_.queues + 1);
  ++all_.queues;
}

LateArmingRoom::~LateArmingRoom() {
  if (late_armings.find() != &all_) return;  // the parent's
  const std::lock_guard guard(all_.lock);
  --all_.queues;
}

void note_late_arming(CompletionEvents& events, const EventChannel& channel) {
  LateArmings& all = late_armings.get();
  if (unknown_waits.load() != 0 && events.raise_stored()) return;
  const std::lock_guard guard(all.lock);
  const auto known = std::find_if(all.list.begin(), all.list.end(),
                                  [&](const LateArming& one) { return one.events == &events; });
  if (known != all.list.end())
    known->thread = pthread_self();
  else
    all.list.push_back({&events, &channel, pthread_self()});
  all.empty.store(false, std::memory_order_release);
}

void forget_late_arming(const CompletionEvents& events) {
  LateArmings& all = late_armings.get();
  const std::lock_guard guard(all.lock);
  std::erase_if(all.list, [&](const LateArming& one) { return one.events == &events; });
}

void raise_late_armings(std::span<const pollfd> fds, bool at_set) {
  LateArmings* all = late_armings.find();
  if (all == nullptr || all->empty.load(std::memory_order_acquire)) return;
  const std::lock_guard guard(all->lock);
  std::erase_if(all->list, [&](const LateArming& one) {
    if (!pthread_equal(one.thread, pthread_self()) && !at_set && !waits_at(one.channel, fds))
      return false;
    return one.events->raise_stored();
  });
  all->empty.store(all->list.empty(), std::memory_order_release);
}

LateArmingWait::LateArmingWait(std::span<const pollfd> fds) : at_set_(is_set(fds)) {
  if (at_set_) count_unknown_waits(1);
  raise_late_armings(fds, at_set_);
}

LateArmingWait::~LateArmingWait() {
  if (at_set_) count_unknown_waits(-1);
}

void count_unknown_waits(int change) { unknown_waits += change; }

}  // namespace uwarp
