// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Our server and a client of it, in one process.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bytes.h"
#include "loopback_channel.h"
#include "nfs/mount_client.h"
#include "nfs/mount_service.h"
#include "nfs/nfs3_client.h"
#include "nfs/nfs3_service.h"
#include "nfs/nfs4_client.h"
#include "nfs/nfs4_service.h"

namespace uwarp::nfs {

constexpr Caller kRootCaller{0, 0, {}};

/// Time goes on when a test says so, or when the code under test sleeps.
struct TestTime {
  OpenFiles::Clock::time_point now{};

  Patience::Time client() {
    return {[this] { return now; }, [this](auto duration) { now += duration; }};
  }
};

/// The call as it is, or with a wrong byte, or cut at its end.
template <typename Random>
void handle_damaged(RpcDispatcher& dispatcher, const XdrWriter& call, Random& random) {
  std::vector<std::byte> message(call.bytes().begin(), call.bytes().end());
  if (random() % 3 == 0) {
    message[random() % message.size()] ^= static_cast<std::byte>(random());
  }
  message.resize(message.size() - random() % 8);
  dispatcher.handle("here", message, {random() % 5000, std::nullopt});
}

/// A call that comes again from the same client gets the same reply, and one from another its own.
inline void expect_not_executed_again(RpcDispatcher& dispatcher, ConstBytes call) {
  ReplyRoom room{1000, std::nullopt};
  auto first = dispatcher.handle("here", call, room);
  auto again = dispatcher.handle("here", call, room);
  auto other = dispatcher.handle("there", call, room);
  ASSERT_TRUE(first && again && other);
  EXPECT_TRUE(std::ranges::equal(first->message.bytes(), again->message.bytes()));
  EXPECT_FALSE(std::ranges::equal(first->message.bytes(), other->message.bytes()));
}

struct TestServer {
  explicit TestServer(uint64_t bytes_max = 64 << 20, bool read_only = false) {
    auto tree = std::make_shared<MemoryTree>(bytes_max, read_only);
    dispatcher.add(std::make_unique<MountService>("/export", root));
    dispatcher.add(std::make_unique<Nfs3Service>(tree, handles));
    dispatcher.add(
        std::make_unique<Nfs4Service>(tree, handles, "/export", [this] { return time.now; }));
  }

  TestTime time;
  RpcDispatcher dispatcher;
  NodeHandles handles;
  FileHandle root = handles.handle_of(MemoryTree::kRoot);
};

struct TestClient {
  explicit TestClient(TestServer& server, Caller caller = kRootCaller, unsigned version = 3,
                      size_t inline_bytes = 1024)
      : channel(server.dispatcher, inline_bytes),
        owned(make(server, std::move(caller), version)),
        nfs(*owned),
        root(server.root) {}

  std::unique_ptr<NfsClient> make(TestServer& server, Caller caller, unsigned version) {
    if (version == kNfs4Version) {
      return std::make_unique<Nfs4Client>(channel, std::move(caller), server.time.client());
    }
    return std::make_unique<Nfs3Client>(channel, std::move(caller));
  }

  size_t write(const OpenFile& file, uint64_t offset, ConstBytes data) {
    RpcCall call;
    call.done = [](RpcCall&) {};
    nfs.prepare_write(call, file, offset, data, Stability::kUnstable, nullptr);
    channel.start(call);
    return nfs.finish_write(call).count;
  }

  std::string read(const OpenFile& file, uint64_t offset, size_t count) {
    std::string into(count, '?');
    RpcCall call;
    call.done = [](RpcCall&) {};
    nfs.prepare_read(call, file, offset, std::as_writable_bytes(std::span(into)), nullptr);
    channel.start(call);
    into.resize(nfs.finish_read(call).count);
    return into;
  }

  OpenFile open(const std::string& name) { return nfs.open(nfs.lookup(root, name)); }
  OpenFile create(const std::string& name) {
    return nfs.create(root, name, CreateHow::kGuarded, {});
  }

  LoopbackChannel channel;
  std::unique_ptr<NfsClient> owned;
  NfsClient& nfs;
  FileHandle root;
};

}  // namespace uwarp::nfs
