// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "carrier/access_gate.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "os/clock.h"
#include "os/raw_call.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434  // the same for all architectures
#endif

namespace uwarp {

bool PeerProcess::find(int pid) {
  pidfd_ = EngineFd(static_cast<int>(raw_call(SYS_pidfd_open, pid, 0)));
  return static_cast<bool>(pidfd_);
}

bool PeerProcess::has_left(int socket) const {
  pollfd fds[] = {{.fd = pidfd_.get(), .events = POLLIN, .revents = 0},
                  {.fd = socket, .events = POLLRDHUP, .revents = 0}};
  constexpr timespec kAtOnce{};
  return raw_call(SYS_ppoll, fds, 2, &kAtOnce, nullptr, 0) != 0;
}

void AccessGate::set_socket(int socket) {
  const Lock guard(mutex_);
  socket_ = socket;
}

void AccessGate::wait(uint32_t entry) { wait(entry, now_ns() + kLongestCopyNs); }

// A copy is short. A peer without a processor may need a moment.
void AccessGate::wait(uint32_t entry, uint64_t until_ns) {
  if (!uses(entry)) return;
  const uint64_t use = target_.use_of(entry);
  for (int round = 0; target_.goes_on(use); ++round) {
    if (round < Atomics::kSpins) {
      Atomics::cpu_relax();
    } else if (round < Atomics::kSpins + Atomics::kYields) {
      Atomics::yield();
    } else if (peer_->gone()) {
      return;
    } else if (now_ns() >= until_ns) {
      return give_up();
    } else {
      Atomics::nap();
    }
  }
}

void AccessGate::give_up() {
  if (overdue_.exchange(true)) return;
  shut();
  log_event("a peer on this host has held on to memory for %u ms: its connection ends",
            static_cast<unsigned>(kLongestCopyNs / kNsPerMs));
  const Lock guard(mutex_);
  if (socket_ >= 0) (void)raw_call(SYS_shutdown, socket_, SHUT_RDWR);
}

void AccessGates::add(std::shared_ptr<AccessGate> gate) {
  const Lock guard(mutex_);
  forget_those_left();
  gates_.emplace(std::move(gate), false);
}

void AccessGates::leave(const std::shared_ptr<AccessGate>& gate) {
  const Lock guard(mutex_);
  gates_.at(gate) = true;
  ++left_;
  forget_those_left();
}

void AccessGates::forget_those_left() {
  if (left_ == 0) return;
  left_ -= std::erase_if(gates_, [](const auto& each) {
    return each.second && !each.first->uses(TargetGate::kAnything);
  });
}

// Without memory of its own: the entry is out of the directory already.
void AccessGates::wait(uint32_t entry, const void* domain) {
  if (entry == RegionDirectory::kNowhere) return;
  const uint64_t until_ns = now_ns() + AccessGate::kLongestCopyNs;
  const auto in_use = [&](const auto& each) {
    return each.first->concerns(domain) && each.first->uses(entry);
  };
  for (std::shared_ptr<AccessGate> gate;;) {
    {
      const Lock guard(mutex_);
      const auto found = std::find_if(gates_.upper_bound(gate), gates_.end(), in_use);
      if (found == gates_.end()) return forget_those_left();
      gate = found->first;
    }
    // One that has taken all the time takes little of the next one's.
    gate->wait(entry, std::max(until_ns, now_ns() + AccessGate::kLongestCopyNs / 20));
  }
}

}  // namespace uwarp
