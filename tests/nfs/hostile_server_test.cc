// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A server that wants files outside the destination, or the client's memory.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "loopback_channel.h"
#include "nfs/file_descriptor.h"
#include "nfs/getter.h"
#include "nfs/nfs3_client.h"
#include "nfs/remote_tree.h"

namespace uwarp::nfs {
namespace {

struct Listed {
  std::string name;
  FileType type;
  uint64_t number;  // its handle
};

/// Answers what the test wants.
class HostileService : public RpcService {
 public:
  std::map<uint64_t, std::vector<Listed>> listings;
  bool endless = false;
  bool cookies_move = false;  // each page goes on where the last one ended
  bool has_root = true;
  uint32_t read_count = 4;
  std::string target;

  uint32_t program() const override { return kNfsProgram; }
  uint32_t version() const override { return kNfs3Version; }
  bool is_idempotent(uint32_t) const override { return true; }

  void call(uint32_t procedure, const Caller&, XdrReader& in, const ReplyRoom&,
            ServiceReply& reply) override {
    XdrWriter& out = reply.message;
    FileHandle handle = decode_handle(in);
    if (!has_root) {
      out.u32(static_cast<uint32_t>(NfsStatus::kNoent));
      out.boolean(false);  // no attributes
      return;
    }
    out.u32(static_cast<uint32_t>(NfsStatus::kOk));
    out.boolean(false);  // no attributes
    switch (static_cast<NfsProcedure>(procedure)) {
      case NfsProcedure::kReaddirplus:
        list(out, XdrReader(handle).u64());
        return;
      case NfsProcedure::kReadlink:
        out.string(target);
        return;
      case NfsProcedure::kRead:
        out.u32(read_count);
        out.boolean(true);
        out.opaque(std::vector<std::byte>(read_count));
        return;
      default:
        throw NoSuchProcedure();
    }
  }

  static FileHandle handle(uint64_t number) {
    XdrWriter out;
    out.u64(number);
    return {out.bytes().begin(), out.bytes().end()};
  }

  static Attributes attributes(FileType type) {
    Attributes attributes;
    attributes.type = type;
    attributes.mode = 0755;
    attributes.size = 4;
    return attributes;
  }

 private:
  void list(XdrWriter& out, uint64_t number) {
    out.u64(0);
    for (const Listed& entry : listings[number]) {
      out.boolean(true);
      out.u64(entry.number);
      out.string(entry.name);
      out.u64(cookies_move ? ++cookie_ : entry.number);
      out.boolean(true);
      encode(out, attributes(entry.type));
      out.boolean(true);
      encode_handle(out, handle(entry.number));
    }
    out.boolean(false);
    out.boolean(!endless);
  }

  uint64_t cookie_ = 0;
};

class HostileServer : public testing::Test {
 protected:
  HostileServer() {
    auto owned = std::make_unique<HostileService>();
    service = owned.get();
    dispatcher.add(std::move(owned));
    std::string name = testing::TempDir() + "nfs-hostile-XXXXXX";
    folder = mkdtemp(name.data());
    std::filesystem::create_directory(folder / "in");
    std::filesystem::create_directory(folder / "out");
  }
  ~HostileServer() override { std::filesystem::remove_all(folder); }

  void get() {
    FileDescriptor directory(open((folder / "in").c_str(), O_RDONLY | O_DIRECTORY), folder);
    TransferSlots slots(channel, 2, 1024);
    CopyOptions options;
    options.recursive = true;
    Getter(client, slots, options)
        .get({HostileService::handle(1), HostileService::attributes(FileType::kDirectory), {}},
             {directory.get(), "got", "got"}, "remote");
  }

  bool outside_is_empty() const { return std::filesystem::is_empty(folder / "out"); }

  std::filesystem::path folder;
  HostileService* service;
  RpcDispatcher dispatcher;
  LoopbackChannel channel{dispatcher, 4096};
  Nfs3Client client{channel, {}};
};

TEST_F(HostileServer, AnHonestOneIsCopied) {
  service->listings[1] = {{"file", FileType::kRegular, 2}};
  get();
  EXPECT_EQ(std::filesystem::file_size(folder / "in" / "got" / "file"), 4u);
}

TEST_F(HostileServer, NamesWithSlashesAreRefused) {
  for (const std::string& name : {std::string("../../out/x"), std::string("/etc/x"),
                                  std::string(""), std::string("x\0y", 3), std::string(256, 'x')}) {
    service->listings[1] = {{name, FileType::kRegular, 2}};
    EXPECT_THROW(get(), RpcError) << name;
  }
  EXPECT_TRUE(outside_is_empty());
}

TEST_F(HostileServer, DotDotIsLeftOut) {
  service->listings[1] = {{"..", FileType::kDirectory, 3}, {".", FileType::kDirectory, 3}};
  service->listings[3] = {{"file", FileType::kRegular, 2}};
  get();
  EXPECT_TRUE(std::filesystem::is_empty(folder / "in" / "got"));
}

TEST_F(HostileServer, ItsLinksAreNotFollowed) {
  service->target = folder / "out";
  service->listings[1] = {{"x", FileType::kSymlink, 2}, {"x", FileType::kDirectory, 3}};
  service->listings[3] = {{"file", FileType::kRegular, 4}};
  EXPECT_THROW(get(), std::system_error);
  EXPECT_TRUE(outside_is_empty());
  service->target = folder / "out" / "new";
  service->listings[1] = {{"y", FileType::kSymlink, 2}, {"y", FileType::kRegular, 4}};
  get();
  EXPECT_TRUE(outside_is_empty());
  EXPECT_TRUE(std::filesystem::is_regular_file(
      std::filesystem::symlink_status(folder / "in" / "got" / "y")));
}

TEST_F(HostileServer, ATreeWithoutEnd) {
  service->listings[1] = {{"d", FileType::kDirectory, 1}};
  EXPECT_THROW(get(), RpcError);
}

TEST_F(HostileServer, AListingWithoutEnd) {
  service->endless = true;
  EXPECT_THROW(get(), RpcError);  // empty, but more is to come
  service->listings[1] = {{"file", FileType::kRegular, 2}};
  EXPECT_THROW(get(), RpcError);  // the same over and over
  service->cookies_move = true;
  service->listings[1] = {{".", FileType::kDirectory, 3}};
  EXPECT_THROW(get(), RpcError);  // nothing that would ever be too much
}

TEST_F(HostileServer, ARootThatIsNotThere) {
  service->has_root = false;
  for (const std::string root : {"/", "/exported"}) {
    RemoteTree tree(client, root, HostileService::handle(1));
    EXPECT_THROW(tree.missing((root == "/" ? "" : root) + "/a/b"), NfsError) << root;
  }
}

TEST_F(HostileServer, NamesOnTheTerminalAreHarmless) {
  service->listings[1] = {{"\033[2Jx", FileType::kFifo, 2}};
  testing::internal::CaptureStderr();
  get();
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "nfs-rdma: remote/?[2Jx: special file left out\n");
}

TEST_F(HostileServer, MoreDataThanWasAskedFor) {
  service->listings[1] = {{"file", FileType::kRegular, 2}};
  for (uint32_t count : {0u, 3u, 5u, 2000u}) {
    service->read_count = count;
    EXPECT_THROW(get(), RpcError) << count;
    EXPECT_TRUE(std::filesystem::is_empty(folder / "in" / "got")) << count;
  }
}

}  // namespace
}  // namespace uwarp::nfs
