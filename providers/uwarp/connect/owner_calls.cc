// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "connect/owner_calls.h"

#include <cerrno>
#include <new>
#include <utility>

#include "base/log.h"

namespace uwarp {

void OwnerCalls::drop_owner() {
  owner_.reset();
  due_.store(0);
}

void OwnerCalls::note(Past past, Call call) {
  past_ = past;
  if (!owner_.expired()) due_.fetch_or(call);
}

void OwnerCalls::established(ConnectParameters peer) {
  if (past_ != Past::kNothing) return;
  peer_ = std::move(peer);
  note(Past::kEstablished, kEstablishedCall);
}

void OwnerCalls::rejected(int status, ConnectParameters peer) {
  if (past_ != Past::kNothing) return;
  status_ = status;
  peer_ = std::move(peer);
  note(Past::kNeverWas, kRejectedCall);
}

void OwnerCalls::failed(int status) {
  if (past_ != Past::kNothing) return;
  status_ = status;
  note(Past::kNeverWas, kFailedCall);
}

void OwnerCalls::ended() {
  if (past_ == Past::kEstablished) note(Past::kEnded, kEndedCall);
  failed(-ECONNRESET);
}

void OwnerCalls::make(std::unique_lock<std::mutex>& lock,
                      const std::shared_ptr<Connection>& connection, sockaddr_storage local) {
  while (!calling_ && due()) {
    const std::shared_ptr<ConnectionOwner> owner = owner_.lock();
    const uint8_t due = due_.load();
    const auto call = static_cast<Call>(due & -due);  // the lowest bit
    due_.fetch_xor(call);
    if (owner == nullptr) continue;
    const ConnectParameters peer = call < kFailedCall ? std::move(peer_) : ConnectParameters();
    calling_ = true;
    lock.unlock();
    try {
      if (call == kEstablishedCall) owner->connection_established(connection, local, peer);
      if (call == kRejectedCall) owner->connection_rejected(connection, status_, peer.private_data);
      if (call == kFailedCall) owner->connection_failed(connection, status_);
      if (call == kEndedCall) owner->connection_ended(connection);
    } catch (const std::bad_alloc&) {
      log_event("connection: its owner has no memory to hear of it");
    }
    lock.lock();
    calling_ = false;
  }
}

}  // namespace uwarp
