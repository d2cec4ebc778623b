// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Completion queues that an application has armed while completions were in them. Arming raises
// nothing by itself, because the application polls next, as a rule. If it waits instead, it has to
// be told, or it sleeps with completions at hand.
#pragma once

#include <poll.h>

#include <span>

namespace uwarp {

class CompletionEvents;
class EventChannel;
struct LateArmings;

/// Room for one queue with a channel to be armed late, which takes no memory then.
class LateArmingRoom {
 public:
  /// Throws std::bad_alloc.
  LateArmingRoom();
  ~LateArmingRoom();
  LateArmingRoom(const LateArmingRoom&) = delete;
  LateArmingRoom& operator=(const LateArmingRoom&) = delete;

 private:
  LateArmings& all_;
};

/// The calling thread has armed the queue of `events`, which has completions.
void note_late_arming(CompletionEvents& events, const EventChannel& channel);
/// The queue goes away. On return no other thread is in its raise_stored().
void forget_late_arming(const CompletionEvents& events);
/// The calling thread is about to wait for `fds`: raises the event of each queue that this thread
/// has armed, or whose channel is among `fds`, if completions from before are still there.
/// `at_set`: `fds` is one epoll set, which may have any channel in it. The thread holds no lock.
void raise_late_armings(std::span<const pollfd> fds, bool at_set = false);

/// The same, for as long as the calling thread waits: a queue that another thread arms late
/// meanwhile, and whose channel may be in the set that this one waits at, has its event at once.
class LateArmingWait {
 public:
  explicit LateArmingWait(std::span<const pollfd> fds);
  ~LateArmingWait();
  LateArmingWait(const LateArmingWait&) = delete;
  LateArmingWait& operator=(const LateArmingWait&) = delete;

 private:
  const bool at_set_;
};
/// Adds `change` to the number of threads that wait in the kernel for something not known here.
void count_unknown_waits(int change);

}  // namespace uwarp
