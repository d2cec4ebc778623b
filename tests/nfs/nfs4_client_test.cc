// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the client of NFS version 4 keeps and does about its lease, and servers that say nonsense.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "server.h"
#include "status_of.h"
#include "wiretap.h"

namespace uwarp::nfs {
namespace {

using std::chrono::seconds;

class Nfs4 : public testing::Test {
 protected:
  /// A client that knows nothing yet.
  void make_client() {
    nfs = std::make_unique<Nfs4Client>(channel, kRootCaller, server.time.client());
  }
  Found found(const std::string& name) { return nfs->lookup(server.root, name); }
  std::string read(const OpenFile& file) {
    std::string into(100, '?');
    RpcCall call;
    call.done = [](RpcCall&) {};
    nfs->prepare_read(call, file, 0, std::as_writable_bytes(std::span(into)), nullptr);
    channel.start(call);
    into.resize(nfs->finish_read(call).count);
    return into;
  }

  TestServer server;
  Wiretap channel{server.dispatcher, 4096};
  std::unique_ptr<Nfs4Client> nfs =
      std::make_unique<Nfs4Client>(channel, kRootCaller, server.time.client());
};

TEST_F(Nfs4, NamesBeginAtTheRootOfTheServer) {
  auto root = nfs->root();
  ASSERT_TRUE(root);
  auto listed = nfs->list(*root);
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].name, "export");
  EXPECT_EQ(listed[0].handle, server.root);
  EXPECT_EQ(nfs->lookup(*root, "export").handle, server.root);
  EXPECT_EQ(status_of([&] { nfs->lookup(*root, "other"); }), NfsStatus::kNoent);
  EXPECT_EQ(status_of([&] { nfs->make_directory(*root, "d", {}); }), NfsStatus::kRofs);
  EXPECT_EQ(status_of([&] { nfs->remove(*root, "export"); }), NfsStatus::kRofs);
  EXPECT_EQ(status_of([&] { nfs->create(*root, "f", CreateHow::kGuarded, {}); }), NfsStatus::kRofs);
  EXPECT_EQ(nfs->getattr(*root).mode, 0555u);
}

// Client and server count the OPENs of an owner, and have to agree which ones count.
TEST_F(Nfs4, OpensThatFailCount) {
  nfs->close(nfs->create(server.root, "f", CreateHow::kGuarded, {}));
  nfs->make_symlink(server.root, "link", "f");
  FileHandle above = *nfs->root();
  EXPECT_EQ(status_of([&] { nfs->create(server.root, "f", CreateHow::kGuarded, {}); }),
            NfsStatus::kExist);
  EXPECT_EQ(status_of([&] { nfs->create(above, "x", CreateHow::kGuarded, {}); }), NfsStatus::kRofs);
  EXPECT_EQ(status_of([&] { nfs->create(server.root, "..", CreateHow::kGuarded, {}); }),
            NfsStatus::kBadname);
  EXPECT_EQ(status_of([&] { nfs->open(found("link")); }), NfsStatus::kSymlink);
  EXPECT_EQ(status_of([&] { nfs->create({}, "x", CreateHow::kGuarded, {}); }),
            NfsStatus::kBadhandle);  // in front of the OPEN
  nfs->close(nfs->open(found("f")));
}

TEST_F(Nfs4, ALongTransferKeepsItsLease) {
  OpenFile file = nfs->create(server.root, "f", CreateHow::kGuarded, {});
  nfs->close(file);
  file = nfs->open(found("f"));
  for (int i = 0; i < 20; ++i) {
    server.time.now += seconds(60);  // longer than a lease after two of them
    EXPECT_EQ(read(file), "");
  }
  for (int i = 0; i < 20; ++i) {
    server.time.now += seconds(60);
    nfs->getattr(server.root);  // which alone renews nothing
  }
  EXPECT_EQ(read(file), "");
  nfs->close(file);
}

TEST_F(Nfs4, AnExpiredLeaseIsAnError) {
  nfs->close(nfs->create(server.root, "f", CreateHow::kGuarded, {}));
  OpenFile file = nfs->open(found("f"));
  server.time.now += seconds(100);
  EXPECT_EQ(status_of([&] { read(file); }), NfsStatus::kExpired);
  EXPECT_EQ(status_of([&] { nfs->close(file); }), NfsStatus::kExpired);
}

TEST_F(Nfs4, WithoutOpenFilesALeaseMayExpire) {
  nfs->close(nfs->create(server.root, "f", CreateHow::kGuarded, {}));
  server.time.now += seconds(1000);
  nfs->getattr(server.root);
  OpenFile file = nfs->open(found("f"));
  EXPECT_EQ(read(file), "");
  nfs->close(file);
  server.time.now += seconds(1000);
  file = nfs->open(found("f"));
  nfs->close(file);
}

TEST_F(Nfs4, TheServerMayAskTheClientToWait) {
  nfs->close(nfs->create(server.root, "f", CreateHow::kGuarded, {}));
  auto begin = server.time.now;
  for (NfsStatus status : {NfsStatus::kGrace, NfsStatus::kJukebox}) {
    channel.change = [status](auto& reply) { replace_by_status(reply, status); };
    unsigned first = channel.calls;
    channel.changes = [&](unsigned call) { return call < first + 5; };
    nfs->getattr(server.root);
    EXPECT_EQ(channel.calls, first + 6);
  }
  EXPECT_GT(server.time.now, begin);
  channel.changes = [](unsigned) { return true; };
  EXPECT_EQ(status_of([&] { nfs->getattr(server.root); }), NfsStatus::kJukebox);
}

TEST_F(Nfs4, AnotherFileOfTheSameNameIsNotRead) {
  nfs->close(nfs->create(server.root, "f", CreateHow::kGuarded, {}));
  Found old = found("f");
  nfs->remove(server.root, "f");
  nfs->close(nfs->create(server.root, "f", CreateHow::kGuarded, {}));
  EXPECT_EQ(status_of([&] { nfs->open(old); }), NfsStatus::kStale);
  nfs->close(nfs->open(found("f")));
}

TEST_F(Nfs4, ASilentServerIsNotAskedAgain) {
  OpenFile file = nfs->create(server.root, "f", CreateHow::kGuarded, {});
  RpcCall call;
  std::string data = "data";
  nfs->prepare_write(call, file, 0, bytes_of(data), Stability::kUnstable, nullptr);
  call.status = -ETIMEDOUT;
  EXPECT_THROW(nfs->finish_write(call), RpcUnanswered);
  unsigned before = channel.calls;
  nfs->abandon(file);
  EXPECT_EQ(channel.calls, before);
}

/// Each makes calls whose replies the client decodes, from a new client on.
std::vector<std::function<void(Nfs4Client&, const FileHandle&)>> all_actions() {
  return {
      [](Nfs4Client& nfs, const FileHandle&) { nfs.null(); },
      [](Nfs4Client& nfs, const FileHandle&) { nfs.root(); },
      [](Nfs4Client& nfs, const FileHandle& root) { nfs.getattr(root); },
      [](Nfs4Client& nfs, const FileHandle& root) {
        NewAttributes wanted;
        wanted.mode = 0755;
        nfs.setattr(root, wanted);
      },
      [](Nfs4Client& nfs, const FileHandle& root) {
        nfs.read_link(nfs.lookup(root, "link").handle);
      },
      [](Nfs4Client& nfs, const FileHandle& root) { nfs.list(root); },
      [](Nfs4Client& nfs, const FileHandle& root) { nfs.filesystem_info(root); },
      [](Nfs4Client& nfs, const FileHandle& root) {
        nfs.make_directory(root, "d", {});
        nfs.rename(root, "d", root, "e");
        nfs.remove_directory(root, "e");
      },
      [](Nfs4Client& nfs, const FileHandle& root) {
        nfs.make_symlink(root, "s", "t");
        nfs.remove(root, "s");
      },
      [](Nfs4Client& nfs, const FileHandle& root) {
        OpenFile file = nfs.open(nfs.lookup(root, "file"));
        std::string into(8, '?');
        RpcCall call;
        nfs.prepare_read(call, file, 0, std::as_writable_bytes(std::span(into)), nullptr);
        call.done = [](RpcCall&) {};
        nfs.channel().start(call);
        nfs.finish_read(call);
        nfs.close(file);
      },
      [](Nfs4Client& nfs, const FileHandle& root) {
        OpenFile file = nfs.create(root, "new", CreateHow::kUnchecked, {});
        std::string data = "data";
        RpcCall call;
        nfs.prepare_write(call, file, 0, bytes_of(data), Stability::kUnstable, nullptr);
        call.done = [](RpcCall&) {};
        nfs.channel().start(call);
        nfs.finish_write(call);
        nfs.commit(file);
        nfs.close(file);
        nfs.remove(root, "new");
      },
  };
}

class HostileNfs4 : public Nfs4 {
 protected:
  HostileNfs4() {
    OpenFile file = nfs->create(server.root, "file", CreateHow::kGuarded, {});
    nfs->close(file);
    nfs->make_symlink(server.root, "link", "somewhere");
  }

  /// What an earlier action left behind when it failed.
  void clean_up() {
    channel.changes = [](unsigned) { return false; };
    server.time.now += seconds(100);  // what earlier clients have open is forgotten
    make_client();
    for (const char* name : {"d", "e", "s", "new"}) {
      status_of([&] { nfs->remove(server.root, name); });
    }
    make_client();
    channel.calls = 0;
  }

  /// True: it ended as if nothing was wrong.
  bool survives(const std::function<void(Nfs4Client&, const FileHandle&)>& action) {
    try {
      action(*nfs, server.root);
      return true;
    } catch (const NfsError&) {
    } catch (const RpcError&) {
    }
    return false;
  }
};

TEST_F(HostileNfs4, RepliesCutAnywhere) {
  for (const auto& action : all_actions()) {
    clean_up();
    ASSERT_TRUE(survives(action));
    unsigned calls = channel.calls;
    for (unsigned cut_call = 0; cut_call < calls; ++cut_call) {
      size_t length = 1;
      for (size_t size = 0; size < length; ++size) {
        clean_up();
        channel.changes = [&](unsigned call) { return call == cut_call; };
        channel.change = [&](auto& reply) {
          length = reply.size();
          reply.resize(std::min(size, length));
        };
        // The tail of some results is not looked at: change information, for one.
        bool went_well = survives(action);
        EXPECT_FALSE(went_well && size < kReplyHeaderBytes + 12) << size << " of " << length;
      }
    }
  }
}

TEST_F(HostileNfs4, Noise) {
  std::mt19937 random(1);
  int went_well = 0, failed = 0;
  for (const auto& action : all_actions()) {
    for (int i = 0; i < 1500; ++i) {
      clean_up();
      unsigned first = random() % 4;
      channel.changes = [&](unsigned call) { return call >= first; };
      channel.change = [&](auto& reply) {
        for (unsigned flips = random() % 3; flips > 0 && reply.size() > 24; --flips) {
          size_t place = 24 + random() % (reply.size() - 24);
          reply[place] = static_cast<std::byte>(random() % 3 == 0 ? random() : random() % 8);
        }
      };
      ++(survives(action) ? went_well : failed);
    }
  }
  EXPECT_GT(went_well, 1000);
  EXPECT_GT(failed, 1000);
}

/// A server of which each reply is what the test says, behind the header of an accepted call.
class ScriptedService : public RpcService {
 public:
  std::function<void(XdrWriter&)> results;

  uint32_t program() const override { return kNfsProgram; }
  uint32_t version() const override { return kNfs4Version; }
  bool is_idempotent(uint32_t) const override { return true; }
  void call(uint32_t, const Caller&, XdrReader&, const ReplyRoom&, ServiceReply& reply) override {
    results(reply.message);
  }
};

class ScriptedNfs4 : public testing::Test {
 protected:
  ScriptedNfs4() {
    auto owned = std::make_unique<ScriptedService>();
    service = owned.get();
    dispatcher.add(std::move(owned));
  }
  static void begin(XdrWriter& out, std::initializer_list<Nfs4Operation> operations) {
    out.u32(0);
    out.u32(0);
    out.u32(static_cast<uint32_t>(operations.size()) + 1);
    for (Nfs4Operation operation : operations) {
      out.u32(static_cast<uint32_t>(operation));
      out.u32(0);
    }
  }

  ScriptedService* service;
  RpcDispatcher dispatcher;
  LoopbackChannel channel{dispatcher, 4096};
  Nfs4Client nfs{channel, kRootCaller};
};

TEST_F(ScriptedNfs4, ListingsWithoutEnd) {
  bool with_entry = false;
  std::string name = "file";
  service->results = [&](XdrWriter& out) {
    begin(out, {Nfs4Operation::kPutfh, Nfs4Operation::kReaddir});
    out.u64(0);
    if (with_entry) {
      out.boolean(true);
      out.u64(7);
      out.string(name);
      out.u32(0);  // no attributes
      out.u32(0);
    }
    out.boolean(false);
    out.boolean(false);  // and not all
  };
  EXPECT_THROW(nfs.list({}), RpcError);
  with_entry = true;
  EXPECT_THROW(nfs.list({}), RpcError);
  for (const std::string& bad : {std::string("../x"), std::string(), std::string("a\0b", 3)}) {
    name = bad;
    EXPECT_THROW(nfs.list({}), RpcError) << bad;
  }
}

TEST_F(ScriptedNfs4, DataThatWasNotAskedFor) {
  uint32_t length = 0;
  service->results = [&](XdrWriter& out) {
    begin(out, {Nfs4Operation::kPutfh, Nfs4Operation::kRead});
    out.boolean(true);
    out.u32(length);
    out.fixed_opaque(std::vector<std::byte>(12));
  };
  auto read = [&] {
    std::string into(8, '?');
    RpcCall call;
    nfs.prepare_read(call, {}, 0, std::as_writable_bytes(std::span(into)), nullptr);
    call.done = [](RpcCall&) {};
    channel.start(call);
    return nfs.finish_read(call).count;
  };
  for (uint32_t bad : {9u, 12u, 13u, UINT32_MAX}) {
    length = bad;
    EXPECT_THROW(read(), RpcError) << bad;
  }
  length = 8;
  EXPECT_EQ(read(), 8u);
}

TEST_F(ScriptedNfs4, MoreWrittenThanGiven) {
  uint32_t count = 0;
  uint32_t stability = 0;
  service->results = [&](XdrWriter& out) {
    begin(out, {Nfs4Operation::kPutfh, Nfs4Operation::kWrite});
    out.u32(count);
    out.u32(stability);
    out.u64(1);
  };
  auto write = [&] {
    std::string data = "data";
    RpcCall call;
    nfs.prepare_write(call, {}, 0, bytes_of(data), Stability::kUnstable, nullptr);
    call.done = [](RpcCall&) {};
    channel.start(call);
    return nfs.finish_write(call).count;
  };
  EXPECT_THROW(write(), RpcError);
  count = 5;
  EXPECT_THROW(write(), RpcError);
  count = 3;
  EXPECT_EQ(write(), 3u);
  stability = 3;
  EXPECT_THROW(write(), RpcError);
}

TEST_F(ScriptedNfs4, FilesWithoutAType) {
  service->results = [](XdrWriter& out) {
    begin(out, {Nfs4Operation::kPutfh, Nfs4Operation::kGetattr});
    out.u32(0);
    out.u32(0);
  };
  EXPECT_THROW(nfs.getattr({}), RpcError);
}

}  // namespace
}  // namespace uwarp::nfs
