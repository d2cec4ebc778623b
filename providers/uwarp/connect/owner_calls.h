// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a connection has to tell its owner: that it is established, and how it ended. Each is told
// once, in that order, and at most one at a time.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "base/log.h"
#include "connect/connection_events.h"

namespace uwarp {

/// Under the connection's mutex, but for due(). Noting a call takes no memory.
class OwnerCalls {
 public:
  /// In the order in which they are made.
  enum Call : uint8_t { kEstablished = 1, kRejected = 2, kFailed = 4, kEnded = 8 };

  explicit OwnerCalls(std::weak_ptr<ConnectionOwner> owner) : owner_(std::move(owner)) {}

  void set_owner(std::weak_ptr<ConnectionOwner> owner) { owner_ = std::move(owner); }
  /// No call begins any more.
  void drop_owner() {
    owner_.reset();
    due_.store(0);
  }
  /// Notes the first call, or kEnded after kEstablished; nothing else.
  void tell(Call call, int status = 0, ConnectParameters peer = {}) {
    if (noted_ != (call == kEnded ? kEstablished : 0)) return;
    noted_ |= call;
    if (call != kEnded) {
      status_ = status;
      peer_ = std::move(peer);
    }
    if (!owner_.expired()) due_.fetch_or(call);
  }
  void tell_end() { tell(was_established() ? kEnded : kFailed, -ECONNRESET); }
  bool was_established() const { return (noted_ & kEstablished) != 0; }
  /// Something is to be told. Also without the mutex, for a look.
  bool due() const { return due_.load() != 0; }

  /// Makes the calls that are due, unless another thread makes them. `lock` is the connection's
  /// mutex, given up during each call; `local` is its address.
  void make(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Connection>& connection,
            const sockaddr_storage local) {
    while (!calling_ && due()) {
      const std::shared_ptr<ConnectionOwner> owner = owner_.lock();
      const uint8_t due = due_.load();
      const auto call = static_cast<Call>(due & -due);  // the lowest bit
      due_.fetch_xor(call);
      if (owner == nullptr) continue;
      const ConnectParameters peer = call != kEnded ? std::move(peer_) : ConnectParameters();
      calling_ = true;
      lock.unlock();
      try {
        if (call == kEstablished) owner->connection_established(connection, local, peer);
        if (call == kRejected) owner->connection_rejected(connection, status_, peer.private_data);
        if (call == kFailed) owner->connection_failed(connection, status_);
        if (call == kEnded) owner->connection_ended(connection);
      } catch (const std::bad_alloc&) {
        log_event("connection: its owner had no memory for an event, which is lost");
      }
      lock.lock();
      calling_ = false;
    }
  }

 private:
  std::weak_ptr<ConnectionOwner> owner_;
  ConnectParameters peer_;  // for kEstablished or kRejected, until that call is made
  int status_ = 0;
  uint8_t noted_ = 0;  // of Call
  bool calling_ = false;
  std::atomic<uint8_t> due_{0};  // of Call
};

}  // namespace uwarp
