// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Our memory and one peer on this host that reads and writes it by itself: whether it may, and how
// long a copy of its has to be waited for. Outlives the connection if need be: what the peer has
// begun it ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "base/remote_memory.h"
#include "carrier/one_sided.h"
#include "os/engine_fds.h"

namespace uwarp {

/// A process, whichever has its number later.
class PeerProcess {
 public:
  /// False: there is none with the number, or the kernel cannot tell.
  bool find(int pid);
  explicit operator bool() const { return static_cast<bool>(pidfd_); }
  /// It has ended.
  bool gone() const { return has_left(-1); }
  /// It has ended, or has closed the other end of the socket, as it does in exec(), after which
  /// other memory has its addresses.
  bool has_left(int socket) const;

 private:
  EngineFd pidfd_;
};

class AccessGate final : public RemoteGate {
 public:
  /// A peer that stays in one copy for longer loses the connection.
  static constexpr uint64_t kLongestCopyNs = 1'000'000'000;

  /// `memory` keeps `control`.
  AccessGate(std::shared_ptr<const void> memory, OneSidedControl& control,
             std::shared_ptr<const PeerProcess> peer)
      : memory_(std::move(memory)), target_(control), peer_(std::move(peer)) {}

  void open(const void* domain, uint32_t access) override {
    domain_.store(domain);
    target_.open(domain, access);
  }
  void shut() override { target_.shut(); }
  /// The socket of the connection, to be shut down if the peer holds on to memory; -1: it is gone.
  void set_socket(int socket);
  /// The peer may be in a copy that it began before: of the entry that is no longer in the
  /// directory, or after shut() of anything. Never where the gate was not open.
  bool uses(uint32_t entry) const {
    return domain_.load(std::memory_order_relaxed) != nullptr && target_.use_of(entry) != 0 &&
           !overdue_.load() && !peer_->gone();
  }
  /// It was open to regions of this domain.
  bool concerns(const void* domain) const {
    return domain_.load(std::memory_order_relaxed) == domain;
  }
  /// Returns once that copy is over. A peer that is in it at `until_ns` loses the connection. Any
  /// thread that owes nothing to others.
  void wait(uint32_t entry, uint64_t until_ns);
  void wait(uint32_t entry);

 private:
  void give_up();

  const std::shared_ptr<const void> memory_;
  TargetGate target_;
  const std::shared_ptr<const PeerProcess> peer_;
  std::atomic<const void*> domain_{nullptr};  // null: it was never open
  Mutex mutex_;
  int socket_ GUARDED_BY(mutex_) = -1;
  std::atomic<bool> overdue_{false};  // it is not waited for any more
};

/// Those of the process. Any thread.
class AccessGates {
 public:
  void add(std::shared_ptr<AccessGate> gate);
  /// Its connection is gone; it is kept as long as the peer uses something.
  void leave(const std::shared_ptr<AccessGate>& gate);
  /// AccessGate::wait() for all that were open to the domain; for no longer than one of them.
  void wait(uint32_t entry, const void* domain);

 private:
  void forget_those_left() REQUIRES(mutex_);

  Mutex mutex_;
  std::map<std::shared_ptr<AccessGate>, bool> gates_ GUARDED_BY(mutex_);  // true: it has left
  size_t left_ GUARDED_BY(mutex_) = 0;                                    // of these
};

}  // namespace uwarp
