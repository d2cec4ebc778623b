// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Client and server against each other, and the server against nonsense.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "nfs/remote_tree.h"
#include "server.h"
#include "status_of.h"

namespace uwarp::nfs {
namespace {

class EachVersion : public testing::TestWithParam<unsigned> {
 protected:
  TestServer server;
  TestClient client{server, kRootCaller, GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Service, EachVersion, testing::Values(3u, 4u));

TEST_P(EachVersion, WhatWasWrittenIsRead) {
  OpenFile file = client.create("file");
  std::string data(5001, 'x');
  EXPECT_EQ(client.write(file, 3, bytes_of(data)), data.size());
  client.nfs.commit(file);
  client.nfs.close(file);
  file = client.open("file");
  EXPECT_EQ(client.read(file, 3, data.size()), data);              // where RDMA would put it
  EXPECT_EQ(client.read(file, 0, 5), std::string("\0\0\0xx", 5));  // inside the reply
  EXPECT_EQ(client.read(file, 5000, 100), "xxxx");
  EXPECT_EQ(client.read(file, 10000, 2000), "");
  EXPECT_EQ(client.nfs.getattr(file.handle).size, 5004u);
  client.nfs.close(file);
}

TEST_P(EachVersion, DataOfAnyLength) {
  for (size_t size : {1, 2, 3, 4, 5, 1021, 1022, 1023, 1024, 1025, 4001}) {
    std::string name = std::to_string(size);
    std::string data;
    for (size_t i = 0; i < size; ++i) {
      data += static_cast<char>(i * 7 + size);
    }
    OpenFile file = client.create(name);
    EXPECT_EQ(client.write(file, 0, bytes_of(data)), size);
    client.nfs.close(file);
    file = client.open(name);
    EXPECT_EQ(client.read(file, 0, size), data);
    client.nfs.close(file);
  }
}

TEST_P(EachVersion, ManyNamesAreListedOnce) {
  std::set<std::string> names;
  for (int i = 0; i < 1000; ++i) {
    std::string name =
        "a rather long name so that one reply cannot hold them all " + std::to_string(i);
    client.nfs.close(client.create(name));
    names.insert(name);
  }
  auto listed = client.nfs.list(client.root);
  EXPECT_EQ(listed.size(), names.size());
  std::set<std::string> found;
  for (const DirectoryEntry& entry : listed) {
    found.insert(entry.name);
    EXPECT_TRUE(entry.handle && entry.attributes);
  }
  EXPECT_EQ(found, names);
}

TEST_P(EachVersion, EveryProcedureOfTheClient) {
  NfsClient& nfs = client.nfs;
  nfs.null();
  NewAttributes wanted;
  wanted.mode = 0751;
  FileHandle directory = nfs.make_directory(client.root, "d", wanted);
  EXPECT_EQ(nfs.getattr(directory).mode, 0751u);
  EXPECT_EQ(nfs.getattr(directory).type, FileType::kDirectory);
  nfs.make_symlink(directory, "s", "some where");
  EXPECT_EQ(nfs.read_link(nfs.lookup(directory, "s").handle), "some where");
  OpenFile file = nfs.create(directory, "f", CreateHow::kUnchecked, {});
  wanted = {};
  wanted.size = 12345;
  wanted.uid = 17;
  wanted.gid = 18;
  wanted.accessed.how = NewAttributes::NewTime::How::kServerTime;
  wanted.modified = {NewAttributes::NewTime::How::kClientTime, {1000000000, 5}};
  nfs.setattr(file.handle, wanted);
  nfs.close(file);
  auto attributes = nfs.lookup(directory, "f").attributes;
  EXPECT_EQ(attributes.size, 12345u);
  EXPECT_EQ(attributes.uid, 17u);
  EXPECT_EQ(attributes.gid, 18u);
  EXPECT_EQ(attributes.modified, (NfsTime{1000000000, 5}));
  nfs.rename(directory, "f", client.root, "g");
  EXPECT_EQ(status_of([&] { nfs.lookup(directory, "f"); }), NfsStatus::kNoent);
  EXPECT_EQ(status_of([&] { nfs.remove_directory(client.root, "d"); }), NfsStatus::kNotempty);
  EXPECT_EQ(status_of([&] { nfs.create(client.root, "g", CreateHow::kGuarded, {}); }),
            NfsStatus::kExist);
  nfs.remove(directory, "s");
  nfs.remove_directory(client.root, "d");
  EXPECT_EQ(status_of([&] { nfs.getattr(directory); }), NfsStatus::kStale);
  EXPECT_GE(nfs.filesystem_info(client.root).read_bytes_max, 1u << 20);
}

TEST_P(EachVersion, PermissionsAreChecked) {
  NewAttributes secret;
  secret.mode = 0600;
  client.nfs.close(client.nfs.create(client.root, "f", CreateHow::kGuarded, secret));
  TestClient other(server, {1234, 1234, {}}, GetParam());
  EXPECT_EQ(status_of([&] { other.read(other.open("f"), 0, 1); }), NfsStatus::kAcces);
  EXPECT_EQ(status_of([&] { other.create("g"); }), NfsStatus::kAcces);
  EXPECT_EQ(status_of([&] { other.nfs.remove(other.root, "f"); }), NfsStatus::kAcces);
}

TEST(Service, MountAndPaths) {
  TestServer server;
  TestClient client(server);
  RpcCaller rpc(client.channel, kRootCaller);
  ChannelMountClient mount(rpc);
  EXPECT_TRUE(mount.available());
  ASSERT_EQ(mount.exports().size(), 1u);
  EXPECT_EQ(mount.exports()[0].path, "/export");
  EXPECT_EQ(status_of([&] { mount.mount("/etc"); }), NfsStatus::kNoent);
  NewAttributes wanted;
  FileHandle directory = client.nfs.make_directory(client.root, "d", wanted);
  client.nfs.create(directory, "f", CreateHow::kGuarded, {});
  RemoteTree tree(client.nfs, "/export", mount.mount("/export"));
  EXPECT_EQ(tree.find("/export/d").handle, directory);
  EXPECT_EQ(tree.find("/export").handle, client.root);
  EXPECT_EQ(tree.find("/export/d/f").attributes.type, FileType::kRegular);
  EXPECT_FALSE(tree.find_if_exists("/export/d/g"));
  EXPECT_EQ(tree.place_of("/export/d/g").name, "g");
  EXPECT_EQ(tree.place_of("/export/d/g").directory, directory);
  EXPECT_EQ(status_of([&] { tree.place_of("/export"); }), NfsStatus::kInval);
  EXPECT_EQ(status_of([&] { tree.find("/export/d/f/x"); }), NfsStatus::kNotdir);
  EXPECT_EQ(choose_export(mount.exports(), "/export/d/f"), "/export");
  EXPECT_THROW(choose_export(mount.exports(), "/other"), RpcError);
}

TEST_P(EachVersion, HandlesOfAnotherRunAreStale) {
  TestServer other;
  EXPECT_EQ(status_of([&] { client.nfs.getattr(other.root); }), NfsStatus::kStale);
  EXPECT_EQ(status_of([&] { client.nfs.getattr(FileHandle(3)); }), NfsStatus::kBadhandle);
}

TEST(Service, ACallSentAgainIsNotExecutedAgain) {
  TestServer server;
  XdrWriter out;
  encode_call(out,
              {77, kNfsProgram, kNfs3Version, static_cast<uint32_t>(NfsProcedure::kRemove), {}});
  encode_handle(out, server.root);
  out.string("file");
  TestClient client(server);
  client.nfs.create(client.root, "file", CreateHow::kGuarded, {});
  expect_not_executed_again(server.dispatcher, out.bytes());
}

TEST(Service, RepliesFitTheRoom) {
  TestServer server;
  TestClient client(server);
  OpenFile file = client.nfs.create(client.root, "file", CreateHow::kGuarded, {});
  client.write(file, 0, bytes_of(std::string(4000, 'x')));
  for (int i = 0; i < 50; ++i) {
    client.nfs.create(client.root, "entry" + std::to_string(i), CreateHow::kGuarded, {});
  }
  for (size_t size = 0; size < 3000; size += 7) {
    for (NfsProcedure procedure : {NfsProcedure::kRead, NfsProcedure::kReaddirplus}) {
      XdrWriter out;
      encode_call(out, {1, kNfsProgram, kNfs3Version, static_cast<uint32_t>(procedure), {}});
      encode_handle(out, procedure == NfsProcedure::kRead ? file.handle : server.root);
      for (uint32_t word : {0u, 0u, 100000u, 0u, 100000u, 100000u}) {
        out.u32(word);
      }
      auto reply = server.dispatcher.handle("here", out.bytes(), {size, std::nullopt});
      ASSERT_TRUE(reply);
      size_t length = reply->message.size() + round_up(reply->item.size());
      EXPECT_LE(length, std::max(size, size_t{130})) << size;
    }
  }
}

TEST(Service, RefusalsOfRpc) {
  TestServer server;
  TestClient client(server);
  RpcCaller rpc(client.channel, kRootCaller);
  auto nothing = [](auto&) {};
  EXPECT_THROW(rpc.call(4711, 1, 0, 0, nothing, nothing), RpcRefused);
  EXPECT_THROW(rpc.call(kNfsProgram, 5, 0, 0, nothing, nothing), RpcRefused);
  EXPECT_THROW(rpc.call(kNfsProgram, 3, 99, 0, nothing, nothing), RpcRefused);
  EXPECT_THROW(rpc.call(kNfsProgram, 3, 1, 0, nothing, nothing), RpcRefused);
}

TEST(Service, RandomCallsOfVersion3AreSurvived) {
  TestServer server(1 << 20);
  TestClient client(server);
  client.nfs.create(client.root, "file", CreateHow::kGuarded, {});
  std::mt19937 source(1);
  auto random = [&] { return static_cast<uint32_t>(source()); };
  for (uint32_t i = 0; i < 60000; ++i) {
    XdrWriter out;
    uint32_t program = i % 5 == 0 ? kMountProgram : kNfsProgram;
    encode_call(out, {i, program, 3, random() % 24, {random() % 2, 0, {}}});
    if (random() % 4 != 0) {
      encode_handle(out, server.root);
    }
    for (uint32_t words = random() % 12; words > 0; --words) {
      switch (random() % 5) {
        case 0:
          out.u32(random());
          break;
        case 1:
          out.u32(random() % 8);
          break;
        case 2:
          out.u64(~uint64_t{0});
          break;
        case 3:
          out.string("file");
          break;
        case 4:
          encode_handle(out, server.root);
          break;
      }
    }
    handle_damaged(server.dispatcher, out, random);
  }
  EXPECT_EQ(client.nfs.getattr(client.root).type, FileType::kDirectory);
}

}  // namespace
}  // namespace uwarp::nfs
