// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The server of NFS version 4 by COMPOUNDs that our client does not make, and against nonsense.
#include <gtest/gtest.h>

#include <random>

#include "nfs/compound.h"
#include "server.h"
#include "status_of.h"

namespace uwarp::nfs {
namespace {

using Operation = Nfs4Operation;

class Nfs4Server : public testing::Test {
 protected:
  /// One COMPOUND; `take` gets the results.
  void compound(const CompoundRequest& request, const std::function<void(CompoundReply&)>& take,
                size_t reply_max = 4096) {
    rpc.call(
        kNfsProgram, kNfs4Version, 1, reply_max, [&](XdrWriter& out) { request.encode(out); },
        [&](XdrReader& in) {
          CompoundReply reply(in);
          take(reply);
        });
  }

  CompoundRequest at_root() const {
    CompoundRequest request;
    request.put_handle(server.root);
    return request;
  }

  /// The status of the one operation that `request` has behind PUTFH.
  NfsStatus status(const CompoundRequest& request, Operation operation) {
    NfsStatus ended{};
    compound(request, [&](CompoundReply& reply) {
      reply.results_of(Operation::kPutfh);
      ended = reply.status_of(operation);
    });
    return ended;
  }

  uint64_t introduce(const std::string& name, uint8_t life) {
    Verifier verifier{};
    verifier.fill(std::byte{life});
    CompoundRequest request;
    XdrWriter& out = request.add(Operation::kSetclientid);
    encode(out, verifier);
    out.string(name);
    out.u32(0);
    out.string("tcp");
    out.string("0.0.0.0.0.0");
    out.u32(0);
    uint64_t client_id = 0;
    compound(request, [&](CompoundReply& reply) {
      XdrReader& in = reply.results_of(Operation::kSetclientid);
      client_id = in.u64();
      confirmation = decode_verifier(in);
    });
    return client_id;
  }

  NfsStatus confirm(uint64_t client_id) {
    CompoundRequest request;
    XdrWriter& out = request.add(Operation::kSetclientidConfirm);
    out.u64(client_id);
    encode(out, confirmation);
    NfsStatus ended{};
    compound(request, [&](CompoundReply& reply) {
      ended = reply.status_of(Operation::kSetclientidConfirm);
    });
    return ended;
  }

  struct Open {
    uint64_t client_id = 0;
    uint32_t sequence = 0;
    std::string name = "file";
    uint32_t access = kShareAccessRead;
    uint32_t deny = kShareDenyNone;
    uint32_t claim = kClaimNull;
  };

  CompoundRequest open_request(const Open& open) const {
    CompoundRequest request = at_root();
    XdrWriter& out = request.add(Operation::kOpen);
    out.u32(open.sequence);
    out.u32(open.access);
    out.u32(open.deny);
    out.u64(open.client_id);
    out.string("owner");
    out.u32(kOpenNoCreate);
    out.u32(open.claim);
    out.string(open.name);
    return request;
  }
  NfsStatus open_status(const Open& open) { return status(open_request(open), Operation::kOpen); }
  StateId opened(const Open& open) {
    StateId state;
    compound(open_request(open), [&](CompoundReply& reply) {
      reply.results_of(Operation::kPutfh);
      state = decode_state(reply.results_of(Operation::kOpen));
    });
    return state;
  }

  NfsStatus read_status(const FileHandle& handle, const StateId& state) {
    CompoundRequest request;
    request.put_handle(handle);
    XdrWriter& out = request.add(Operation::kRead);
    encode(out, state);
    out.u64(0);
    out.u32(10);
    return status(request, Operation::kRead);
  }

  NfsStatus confirm_status(const FileHandle& handle, StateId& state, uint32_t sequence) {
    CompoundRequest request;
    request.put_handle(handle);
    XdrWriter& out = request.add(Operation::kOpenConfirm);
    encode(out, state);
    out.u32(sequence);
    NfsStatus ended{};
    compound(request, [&](CompoundReply& reply) {
      reply.results_of(Operation::kPutfh);
      ended = reply.status_of(Operation::kOpenConfirm);
      if (ended == NfsStatus::kOk) {
        state = decode_state(reply.reader());
      }
    });
    return ended;
  }

  NfsStatus close_status(const FileHandle& handle, const StateId& state, uint32_t sequence) {
    CompoundRequest request;
    request.put_handle(handle);
    XdrWriter& out = request.add(Operation::kClose);
    out.u32(sequence);
    encode(out, state);
    return status(request, Operation::kClose);
  }

  TestServer server;
  TestClient client{server, kRootCaller, 4};
  RpcCaller rpc{client.channel, kRootCaller};
  Verifier confirmation{};
};

TEST_F(Nfs4Server, StatesAreCheckedStepByStep) {
  OpenFile made = client.create("file");
  client.write(made, 0, bytes_of("data"));
  client.nfs.close(made);
  FileHandle file = made.handle;

  uint64_t id = introduce("one", 1);
  EXPECT_EQ(open_status({.client_id = id, .sequence = 5}), NfsStatus::kExpired);  // not confirmed
  EXPECT_EQ(confirm(id + 1), NfsStatus::kStaleClientid);
  EXPECT_EQ(confirm(id), NfsStatus::kOk);
  EXPECT_EQ(open_status({.client_id = 4711, .sequence = 5}), NfsStatus::kStaleClientid);

  StateId state = opened({.client_id = id, .sequence = 5});
  EXPECT_EQ(read_status(file, state), NfsStatus::kBadStateid);  // OPEN_CONFIRM is missing
  EXPECT_EQ(confirm_status(file, state, 5), NfsStatus::kBadSeqid);
  EXPECT_EQ(confirm_status(server.root, state, 6), NfsStatus::kBadStateid);
  StateId before = state;
  EXPECT_EQ(confirm_status(file, state, 6), NfsStatus::kOk);
  EXPECT_EQ(read_status(file, state), NfsStatus::kOk);
  EXPECT_EQ(read_status(file, before), NfsStatus::kOldStateid);
  EXPECT_EQ(read_status(file, StateId{}), NfsStatus::kOk);  // anonymous

  EXPECT_EQ(open_status({.client_id = id, .sequence = 9}), NfsStatus::kBadSeqid);
  EXPECT_EQ(open_status({.client_id = id, .sequence = 7, .name = "none"}), NfsStatus::kNoent);
  EXPECT_EQ(open_status({.client_id = id, .sequence = 7}), NfsStatus::kBadSeqid);  // that counted
  StateId again = opened({.client_id = id, .sequence = 8});
  EXPECT_EQ(again.other, state.other);  // one owner has a file open once
  EXPECT_EQ(again.sequence, state.sequence + 1);
  EXPECT_EQ(close_status(file, again, 8), NfsStatus::kBadSeqid);
  EXPECT_EQ(close_status(file, again, 9), NfsStatus::kOk);
  EXPECT_EQ(read_status(file, again), NfsStatus::kBadStateid);

  StateId foreign;
  foreign.other.fill(std::byte{7});
  EXPECT_EQ(read_status(file, foreign), NfsStatus::kStaleStateid);
}

TEST_F(Nfs4Server, WhatIsOpenToReadIsNotWritten) {
  client.nfs.close(client.create("file"));
  OpenFile file = client.open("file");
  EXPECT_EQ(status_of([&] { client.write(file, 0, bytes_of("x")); }), NfsStatus::kOpenmode);
  client.nfs.close(file);
  file = client.create("other");
  EXPECT_EQ(status_of([&] { client.read(file, 0, 1); }), NfsStatus::kOpenmode);
}

TEST_F(Nfs4Server, ARestartedClientHasNothingOpen) {
  client.nfs.close(client.create("file"));
  FileHandle file = client.nfs.lookup(server.root, "file").handle;
  uint64_t id = introduce("one", 1);
  confirm(id);
  StateId state = opened({.client_id = id, .sequence = 1});
  confirm_status(file, state, 2);
  EXPECT_EQ(introduce("one", 1), id);  // the same life
  EXPECT_EQ(confirm(id), NfsStatus::kOk);
  EXPECT_EQ(read_status(file, state), NfsStatus::kOk);
  uint64_t next = introduce("one", 2);
  EXPECT_NE(next, id);
  EXPECT_EQ(read_status(file, state), NfsStatus::kOk);  // any client could say so
  EXPECT_EQ(confirm(next), NfsStatus::kOk);
  EXPECT_EQ(read_status(file, state), NfsStatus::kExpired);
}

TEST_F(Nfs4Server, ClientsAreLimited) {
  uint64_t first = introduce("first", 1);
  confirm(first);
  NfsStatus ended = NfsStatus::kOk;
  for (int i = 0; i < 2000 && ended == NfsStatus::kOk; ++i) {
    ended = status_of([&] { introduce(std::to_string(i), 1); });
  }
  EXPECT_EQ(ended, NfsStatus::kResource);
  server.time.now += std::chrono::seconds(OpenFiles::kLeaseSeconds + 1);
  EXPECT_EQ(status_of([&] { introduce("new", 1); }), NfsStatus::kOk);
}

TEST_F(Nfs4Server, WhatItDoesNotHave) {
  uint64_t id = introduce("one", 1);
  confirm(id);
  client.nfs.close(client.create("file"));
  client.nfs.make_directory(server.root, "directory", {});
  client.nfs.make_symlink(server.root, "link", "file");
  EXPECT_EQ(open_status({.client_id = id, .deny = 1}), NfsStatus::kNotsupp);
  EXPECT_EQ(open_status({.client_id = id, .access = 0}), NfsStatus::kInval);
  EXPECT_EQ(open_status({.client_id = id, .claim = 1}), NfsStatus::kNoGrace);
  EXPECT_EQ(open_status({.client_id = id, .claim = 2}), NfsStatus::kNotsupp);
  EXPECT_EQ(open_status({.client_id = id, .name = ".."}), NfsStatus::kBadname);
  EXPECT_EQ(open_status({.client_id = id, .sequence = 1, .name = "directory"}), NfsStatus::kIsdir);
  EXPECT_EQ(open_status({.client_id = id, .sequence = 2, .name = "link"}), NfsStatus::kSymlink);

  CompoundRequest lock = at_root();
  lock.add(Operation::kLock);
  EXPECT_EQ(status(lock, Operation::kLock), NfsStatus::kNotsupp);
  CompoundRequest unknown = at_root();
  unknown.add(static_cast<Operation>(77));
  EXPECT_EQ(status(unknown, Operation::kIllegal), NfsStatus::kOpIllegal);
  CompoundRequest no_handle;
  no_handle.add(Operation::kGetfh);
  compound(no_handle, [](CompoundReply& reply) {
    EXPECT_EQ(reply.status_of(Operation::kGetfh), NfsStatus::kNofilehandle);
  });
  CompoundRequest short_arguments = at_root();
  short_arguments.add(Operation::kLookup).u32(100);
  EXPECT_EQ(status(short_arguments, Operation::kLookup), NfsStatus::kBadxdr);
  CompoundRequest many;
  for (int i = 0; i < 65; ++i) {
    many.add(Operation::kPutrootfh);
  }
  compound(many, [](CompoundReply& reply) {
    EXPECT_EQ(status_of([&] { reply.status_of(Operation::kPutrootfh); }), NfsStatus::kResource);
  });
}

TEST_F(Nfs4Server, OtherMinorVersionsAreRefused) {
  rpc.call(
      kNfsProgram, kNfs4Version, 1, 4096,
      [](XdrWriter& out) {
        out.string("tag");
        out.u32(1);
        out.u32(1);
        out.u32(static_cast<uint32_t>(Operation::kPutrootfh));
      },
      [](XdrReader& in) {
        EXPECT_EQ(in.u32(), static_cast<uint32_t>(NfsStatus::kMinorVersMismatch));
        EXPECT_EQ(in.string(100), "tag");
        EXPECT_EQ(in.u32(), 0u);
      });
}

TEST_F(Nfs4Server, DotDotLeadsOutOfTheExport) {
  CompoundRequest request = at_root();
  request.add(Operation::kLookupp);
  request.add(Operation::kSavefh);
  request.add(Operation::kLookup).string("export");
  request.add(Operation::kGetfh);
  request.add(Operation::kRestorefh);
  request.add(Operation::kLookupp);
  compound(request, [&](CompoundReply& reply) {
    for (Operation operation :
         {Operation::kPutfh, Operation::kLookupp, Operation::kSavefh, Operation::kLookup}) {
      reply.results_of(operation);
    }
    EXPECT_EQ(decode_handle4(reply.results_of(Operation::kGetfh)), server.root);
    reply.results_of(Operation::kRestorefh);
    EXPECT_EQ(reply.status_of(Operation::kLookupp), NfsStatus::kNoent);  // the root of all
  });
}

TEST_F(Nfs4Server, SeveralWritesInOneCompound) {
  OpenFile file = client.create("file");
  CompoundRequest request;
  request.put_handle(file.handle);
  std::string expected;
  for (size_t size : {1, 2, 3, 5}) {  // each is padded
    XdrWriter& out = request.add(Operation::kWrite);
    encode(out, file.state);
    out.u64(expected.size());
    out.u32(0);
    std::string data(size, static_cast<char>('a' + size));
    out.string(data);
    expected += data;
  }
  compound(request, [](CompoundReply& reply) {
    reply.results_of(Operation::kPutfh);
    for (uint32_t size : {1, 2, 3, 5}) {
      XdrReader& in = reply.results_of(Operation::kWrite);
      EXPECT_EQ(in.u32(), size);
      in.u32();
      in.u64();
    }
  });
  client.nfs.close(file);
  EXPECT_EQ(client.read(client.open("file"), 0, 100), expected);
}

TEST_F(Nfs4Server, NothingFollowsFileData) {
  OpenFile file = client.create("file");
  client.write(file, 0, bytes_of("data"));
  CompoundRequest request;
  request.put_handle(file.handle);
  XdrWriter& out = request.add(Operation::kRead);
  encode(out, StateId{});
  out.u64(0);
  out.u32(10);
  request.add(Operation::kGetfh);
  EXPECT_EQ(status(request, Operation::kRead), NfsStatus::kResource);
}

TEST_F(Nfs4Server, ACallSentAgainIsNotExecutedAgain) {
  client.nfs.close(client.create("file"));
  CompoundRequest request = at_root();
  request.add(Operation::kRemove).string("file");
  XdrWriter message;
  encode_call(message, {1, kNfsProgram, kNfs4Version, 1, kRootCaller});
  request.encode(message);
  expect_not_executed_again(server.dispatcher, message.bytes());
}

TEST_F(Nfs4Server, RepliesFitTheRoom) {
  OpenFile file = client.create("file");
  client.write(file, 0, bytes_of(std::string(4000, 'x')));
  for (int i = 0; i < 50; ++i) {
    client.nfs.make_directory(server.root, "entry" + std::to_string(i), {});
  }
  for (size_t size = 0; size < 3000; size += 7) {
    for (Operation operation : {Operation::kRead, Operation::kReaddir, Operation::kGetattr}) {
      CompoundRequest request;
      request.put_handle(operation == Operation::kRead ? file.handle : server.root);
      XdrWriter& out = request.add(operation);
      if (operation == Operation::kRead) {
        encode(out, StateId{});
        out.u64(0);
        out.u32(100000);
      } else if (operation == Operation::kReaddir) {
        for (uint32_t word : {0, 0, 0, 0, 100000, 100000}) {
          out.u32(word);
        }
      }
      if (operation != Operation::kRead) {
        kServedAttributes.encode(out);
      }
      XdrWriter message;
      encode_call(message, {1, kNfsProgram, kNfs4Version, 1, kRootCaller});
      request.encode(message);
      auto reply = server.dispatcher.handle("here", message.bytes(), {size, std::nullopt});
      ASSERT_TRUE(reply);
      size_t length = reply->message.size() + round_up(reply->item.size());
      EXPECT_LE(length, std::max(size, size_t{80})) << size;
    }
  }
}

TEST_F(Nfs4Server, RandomCallsAreSurvived) {
  client.nfs.close(client.create("file"));
  FileHandle file = client.nfs.lookup(server.root, "file").handle;
  uint64_t id = introduce("one", 1);
  confirm(id);
  std::mt19937 source(1);
  auto random = [&] { return static_cast<uint32_t>(source()); };
  for (uint32_t i = 0; i < 60000; ++i) {
    CompoundRequest request;
    if (random() % 8 != 0) {
      request.put_handle(random() % 2 ? server.root : file);
    }
    for (uint32_t operations = random() % 4; operations > 0; --operations) {
      XdrWriter& out = request.add(static_cast<Operation>(random() % 42));
      for (uint32_t words = random() % 10; words > 0; --words) {
        switch (random() % 6) {
          case 0:
            out.u32(random());
            break;
          case 1:
            out.u32(random() % 8);
            break;
          case 2:
            out.u64(id);
            break;
          case 3:
            out.string("file");
            break;
          case 4:
            kServedAttributes.encode(out);
            break;
          case 5:
            encode(out, StateId{});
            break;
        }
      }
    }
    XdrWriter out;
    encode_call(out, {i, kNfsProgram, kNfs4Version, 1, {random() % 2, 0, {}}});
    request.encode(out);
    handle_damaged(server.dispatcher, out, random);
  }
  EXPECT_EQ(client.nfs.getattr(client.root).type, FileType::kDirectory);
}

}  // namespace
}  // namespace uwarp::nfs
