// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a connection has to tell its owner: that it stands, and how it ended. Each is told once, in
// that order, and at most one at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "connect/connection_events.h"

namespace uwarp {

/// Under the connection's mutex, but for due(). Noting a call takes no memory.
class OwnerCalls {
 public:
  explicit OwnerCalls(std::weak_ptr<ConnectionOwner> owner) : owner_(std::move(owner)) {}

  void set_owner(std::weak_ptr<ConnectionOwner> owner) { owner_ = std::move(owner); }
  /// No call begins any more.
  void drop_owner();

  void established(ConnectParameters peer);
  void rejected(int status, ConnectParameters peer);
  void failed(int status);
  /// After established() its end; before, a failure (-ECONNRESET).
  void ended();

  bool was_established() const { return past_ == Past::kEstablished || past_ == Past::kEnded; }
  /// Something is to be told. Also without the mutex, for a look.
  bool due() const { return due_.load() != 0; }
  /// Makes the calls that are due, unless another thread makes them. `lock` is the connection's
  /// mutex, given up during each call; `local` is its address.
  void make(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Connection>& connection,
            sockaddr_storage local);

 private:
  enum class Past : uint8_t { kNothing, kEstablished, kEnded, kNeverWas };
  /// In the order in which they are made.
  enum Call : uint8_t { kEstablishedCall = 1, kRejectedCall = 2, kFailedCall = 4, kEndedCall = 8 };

  void note(Past past, Call call);

  std::weak_ptr<ConnectionOwner> owner_;
  ConnectParameters peer_;  // of established() or rejected(), until that call is made
  int status_ = 0;
  Past past_ = Past::kNothing;
  bool calling_ = false;
  std::atomic<uint8_t> due_{0};
};

}  // namespace uwarp
