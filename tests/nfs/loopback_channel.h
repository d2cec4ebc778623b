// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Client and server in one process, without a transport: a call is executed when it is started.
// Results larger than `inline_bytes` go where RDMA would put them.
#pragma once

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "nfs/rpc_channel.h"
#include "nfs/rpc_dispatcher.h"

namespace uwarp::nfs {

class LoopbackChannel : public RpcChannel {
 public:
  LoopbackChannel(RpcDispatcher& dispatcher, size_t inline_bytes)
      : dispatcher_(dispatcher), inline_bytes_(inline_bytes) {}

  uint32_t next_xid() override { return ++xid_; }

  void start(RpcCall& call) override {
    auto reply = std::make_shared<std::vector<std::byte>>(exchange(call));
    call.transport_state = reply;
    call.reply = *reply;
    call.done(call);
  }

  void cancel(RpcCall&) override {}

  std::unique_ptr<RpcBuffer> make_buffer(size_t size) override {
    struct Plain : RpcBuffer {
      explicit Plain(size_t size) : storage(size) {}
      Bytes bytes() override { return storage; }
      std::vector<std::byte> storage;
    };
    return std::make_unique<Plain>(size);
  }

 private:
  static void append_padded(std::vector<std::byte>& to, ConstBytes item) {
    to.insert(to.end(), item.begin(), item.end());
    to.resize(round_up(to.size()));
  }

  std::vector<std::byte> exchange(RpcCall& call) {
    std::vector<std::byte> message = call.message;
    append_padded(message, call.item);
    ReplyRoom room{call.reply_max, std::nullopt};
    bool by_chunk = call.result.size() > inline_bytes_;
    if (by_chunk) {
      room.chunk = call.result.size();
    } else {
      room.message += round_up(call.result.size());
    }
    auto handled = dispatcher_.handle("loopback", message, room);
    call.result_received = 0;
    call.status = handled ? 0 : -ETIMEDOUT;
    if (!handled) {
      return {};
    }
    std::vector<std::byte> reply(handled->message.bytes().begin(), handled->message.bytes().end());
    if (by_chunk) {
      std::ranges::copy(handled->item, call.result.begin());
      call.result_received = handled->item.size();
    } else {
      append_padded(reply, handled->item);
    }
    return reply;
  }

  RpcDispatcher& dispatcher_;
  size_t inline_bytes_;
  uint32_t xid_ = 0;
};

}  // namespace uwarp::nfs
