// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "carrier/access_gate.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <utility>
#include <vector>

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

// A copy is short. A peer without a processor may need a moment.
void AccessGate::wait(uint32_t entry) {
  if (overdue_.load(std::memory_order_relaxed) || !target_.used(entry)) return;
  const uint64_t until_ns = now_ns() + kLongestCopyNs;
  for (int round = 0; target_.used(entry); ++round) {
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
  log_event("a peer on this host has held on to memory for %u ms: its connection ends",
            static_cast<unsigned>(kLongestCopyNs / kNsPerMs));
  const Lock guard(mutex_);
  if (socket_ >= 0) (void)raw_call(SYS_shutdown, socket_, SHUT_RDWR);
}

void AccessGates::add(std::shared_ptr<AccessGate> gate) {
  const Lock guard(mutex_);
  gates_.emplace(std::move(gate), false);
}

void AccessGates::leave(const std::shared_ptr<AccessGate>& gate) {
  const Lock guard(mutex_);
  if (gate->used())
    gates_[gate] = true;
  else
    gates_.erase(gate);
}

void AccessGates::wait(uint32_t entry) {
  if (entry == RegionDirectory::kNowhere) return;
  std::vector<std::shared_ptr<AccessGate>> gates;
  {
    const Lock guard(mutex_);
    gates.reserve(gates_.size());
    for (const auto& [gate, left] : gates_) gates.push_back(gate);
  }
  for (const auto& gate : gates) gate->wait(entry);
  const Lock guard(mutex_);
  std::erase_if(gates_, [](const auto& entry) { return entry.second && !entry.first->used(); });
}

}  // namespace uwarp
