// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A channel that counts calls and changes replies.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "loopback_channel.h"
#include "nfs/nfs_status.h"

namespace uwarp::nfs {

/// Between client and server: looks at calls, and changes replies.
class Wiretap : public LoopbackChannel {
 public:
  using LoopbackChannel::LoopbackChannel;
  using Change = std::function<void(std::vector<std::byte>&)>;

  unsigned calls = 0;
  Change change;
  /// Whether the reply to this call, counted from 0, is changed.
  std::function<bool(unsigned)> changes = [](unsigned) { return false; };

  void start(RpcCall& call) override {
    auto done = std::move(call.done);
    call.done = [](RpcCall&) {};
    LoopbackChannel::start(call);
    if (changes(calls++)) {
      auto reply = std::make_shared<std::vector<std::byte>>(call.reply.begin(), call.reply.end());
      change(*reply);
      call.transport_state = reply;
      call.reply = *reply;
    }
    call.done = std::move(done);
    call.done(call);
  }
};

/// A reply of version 4 that comes to no operation.
inline void replace_by_status(std::vector<std::byte>& reply, NfsStatus status) {
  XdrWriter out;
  out.u32(static_cast<uint32_t>(status));
  out.u32(0);
  out.u32(0);
  reply.resize(kReplyHeaderBytes);
  reply.insert(reply.end(), out.bytes().begin(), out.bytes().end());
}

}  // namespace uwarp::nfs
