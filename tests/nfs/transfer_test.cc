// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Files that go over in several requests, and servers that want to be asked again.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

#include "nfs/file_reader.h"
#include "nfs/file_writer.h"
#include "server.h"
#include "status_of.h"
#include "wiretap.h"

namespace uwarp::nfs {
namespace {

using std::chrono::seconds;

struct CloseFile {
  void operator()(FILE* file) const { fclose(file); }
};
using LocalFile = std::unique_ptr<FILE, CloseFile>;

LocalFile local_file(const std::string& content) {
  LocalFile file(tmpfile());
  EXPECT_EQ(pwrite(fileno(file.get()), content.data(), content.size(), 0),
            static_cast<ssize_t>(content.size()));
  return file;
}

std::string content_of(const LocalFile& file) {
  std::string content(100000, '?');
  content.resize(static_cast<size_t>(pread(fileno(file.get()), content.data(), content.size(), 0)));
  return content;
}

TEST(Transfer, TheServerMayAskTheClientToWait) {
  TestServer server;
  Wiretap channel(server.dispatcher, 1024);
  Nfs4Client nfs(channel, kRootCaller, server.time.client());
  TransferSlots slots(channel, 3, 4001);
  std::string content;
  for (int i = 0; content.size() < 30000; ++i) {
    content += std::to_string(i);
  }
  OpenFile file = nfs.create(server.root, "file", CreateHow::kGuarded, {});
  channel.change = [](auto& reply) { replace_by_status(reply, NfsStatus::kJukebox); };
  channel.changes = [&, first = channel.calls](unsigned call) {
    return call == first + 1 || call == first + 4;
  };
  ProgressBar progress("", content.size());
  FileWriter(nfs, slots).write(fileno(local_file(content).get()), content.size(), file, progress);
  nfs.close(file);
  file = nfs.open(nfs.lookup(server.root, "file"));
  channel.changes = [&, first = channel.calls](unsigned call) { return call == first + 2; };
  LocalFile back = local_file("");
  FileReader(nfs, slots).read(file, content.size(), fileno(back.get()), progress);
  nfs.close(file);
  EXPECT_EQ(content_of(back), content);
}

TEST(Transfer, WaitingForTheServerEnds) {
  TestServer server;
  Patience patience(server.time.client());
  auto begin = server.time.now;
  unsigned tries = 0;
  while (patience.wait_after(NfsError(NfsStatus::kGrace))) {
    ++tries;
  }
  EXPECT_GT(tries, 20u);
  EXPECT_GT(server.time.now - begin, seconds(100));
  EXPECT_LE(server.time.now - begin, seconds(150));
  patience.renew();
  EXPECT_TRUE(patience.wait_after(NfsError(NfsStatus::kJukebox)));
  EXPECT_FALSE(patience.wait_after(NfsError(NfsStatus::kNospc)));
}

}  // namespace
}  // namespace uwarp::nfs
