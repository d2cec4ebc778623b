// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Polling on the only processor.
#include "stream/poller.h"

#include <algorithm>
#include <utility>

#include "base/tuning.h"
#include "os/call_cost.h"
#include "os/clock.h"
#include "os/thread_activity.h"

namespace uwarp {

CpuContention::Reading CpuContention::read() {
  return {now_ns(), thread_run_ns(), thread_switches().value_or(0)};
}

bool CpuContention::check(const Reading& reading) {
  const Reading before = std::exchange(last_, reading);
  if (before.now_ns == 0) return false;
  const uint64_t elapsed_ns = reading.now_ns - before.now_ns;
  const uint64_t lost_ns = elapsed_ns - (reading.run_ns - before.run_ns);
  const uint64_t switches = reading.switches - before.switches;
  const bool taken =
      wanted_ ? switches * tuning::kSwitchNs >= elapsed_ns : lost_ns >= tuning::kLossNs;
  if (taken && switches != 0) until_ns_ = reading.now_ns + tuning::kBelievedNs;
  return wanted_ = reading.now_ns < until_ns_;
}

// Choosing which streams a poller reads directly.

PollGroup& PollGroup::of(CompletionQueue& cq) {
  if (PollGroup* group = find(cq)) return *group;
  auto* made = new PollGroup;
  CompletionQueueDriver* current = nullptr;
  if (cq.driver.compare_exchange_strong(current, made)) return *made;
  delete made;
  return *static_cast<PollGroup*>(current);
}

void PollGroup::publish_extra_locked() {
  direct_count_.store(direct_.size(), std::memory_order_relaxed);
  extra_.store(streams_.members() - direct_.size(), std::memory_order_relaxed);
}

void PollGroup::add(Stream& stream) {
  const auto stay = streams_.stay();
  direct_.reserve(tuning::kDirectStreams);  // polling allocates nothing
  streams_.join(stay, stream);
  if (direct_.size() < tuning::kDirectStreams) direct_.push_back({&stream, 0});
  publish_extra_locked();
}

void PollGroup::remove(Stream& stream) {
  const auto stay = streams_.stay();
  if (!streams_.leave(stay, stream)) return;
  std::erase_if(direct_, [&](const Direct& entry) { return entry.stream == &stream; });
  publish_extra_locked();
}

void PollGroup::note_busy(Stream& stream) {
  if (!needs_epoll()) return;
  const auto stay = streams_.try_stay();
  if (!stay) return;
  const auto same = [&](const Direct& entry) { return entry.stream == &stream; };
  if (std::any_of(direct_.begin(), direct_.end(), same)) return;
  if (!stream.member_of(*this)) return;  // not yet, or not any more
  if (direct_.size() < tuning::kDirectStreams) {
    direct_.push_back({&stream, 0});
  } else {
    // The one that has been silent longest makes room, unless all are busy.
    const auto idlest = std::max_element(
        direct_.begin(), direct_.end(),
        [](const Direct& a, const Direct& b) { return a.idle_turns < b.idle_turns; });
    if (idlest->idle_turns == 0) return;
    *idlest = {&stream, 0};
  }
  publish_extra_locked();
}

void PollGroup::transmit_waiting() {
  transmit_own();
  if (PollGroup* const others = shared()) [[unlikely]]
    others->transmit_own();
}

void PollGroup::transmit_own() {
  while (streams_.any()) {
    StreamEvents notice;
    {
      const auto stay = streams_.try_stay();
      if (!stay) return;
      while (notice.owner == nullptr) {
        Stream* const stream = streams_.take(stay);
        if (stream == nullptr) break;
        stream->transmit_waiting(*this, notice);
      }
    }
    Stream::deliver(notice);
  }
}

size_t PollGroup::poll() {
  size_t received = streams_.members() != 0 ? poll_own() : 0;
  if (PollGroup* const others = shared()) [[unlikely]]
    received += others->poll();
  return received;
}

// In turn, from where the last look ended. Answers come in the order of the questions, and who
// polls asks anew in the order of the answers: behind one that has come, the first that has not
// come yet is followed by others of that kind.
size_t PollGroup::poll_own() {
  size_t received = 0;
  bool bulk = false;
  StreamEvents notice;
  {
    const auto stay = streams_.try_stay();
    if (!stay) return 0;
    for (size_t left = direct_.size(); left > 0; --left) {
      if (next_ >= direct_.size()) next_ = 0;
      Direct& entry = direct_[next_];
      Stream& stream = *entry.stream;
      const size_t found = stream.receive(notice);
      bulk |= stream.awaits_bulk();
      if (found != 0) {
        received += found;
        entry.idle_turns = 0;
        ++next_;
      } else {
        ++entry.idle_turns;
        if (received != 0) break;  // the next poll begins here
        ++next_;
      }
      // One notice at a time: its owner must be told without this lock.
      if (notice.owner != nullptr) break;
    }
  }
  awaits_bulk_.store(bulk, std::memory_order_relaxed);
  Stream::deliver(notice);
  return received;
}

void PollGroup::take_acknowledgements() {
  for (size_t next = 0;;) {
    StreamEvents notice;
    {
      const auto stay = streams_.stay();
      for (; next < direct_.size() && notice.owner == nullptr; ++next)
        direct_[next].stream->take_acknowledgements(notice);
    }
    if (notice.owner == nullptr) return;
    Stream::deliver(notice);
  }
}

bool PollGroup::shares_core() {
  if (PollGroup* const others = shared(); others != nullptr && others->shares_core()) return true;
  const auto stay = streams_.try_stay();
  return stay && !direct_.empty() && direct_[next_ % direct_.size()].stream->shares_core();
}

bool PollGroup::peers_elsewhere() {
  if (PollGroup* const others = shared(); others != nullptr && !others->peers_elsewhere())
    return false;
  const auto stay = streams_.try_stay();
  return stay && !direct_.empty() && !needs_epoll() &&
         std::all_of(direct_.begin(), direct_.end(),
                     [](const Direct& entry) { return entry.stream->peer_elsewhere(); });
}

// On the only processor nothing can come as long as the caller keeps it, unless the peers have
// other ones. Where system calls are dear one of them looks and sleeps.
void Poller::poll_and_give_way(CompletionQueue& cq) {
  if (calls_are_dear()) {
    (void)progress_.note_polls(1);
    return progress_.nap();
  }
  const uint32_t polls = check(cq, 1) ? 0 : idle_polls_.load(std::memory_order_relaxed) + 1;
  idle_polls_.store(polls, std::memory_order_relaxed);
  if (polls % tuning::kYieldsPerNap != 0) {
    sched_yield();
  } else if (polls != 0) {
    PollGroup* const group = PollGroup::find(cq);
    if (group == nullptr || !group->peers_elsewhere()) progress_.nap();
  }
}

}  // namespace uwarp
