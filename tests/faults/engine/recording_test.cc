// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Captures and traces record what passes the socket. Without memory they omit entries, and throw
// nothing.
#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "faults/engine/without_memory.h"
#include "observe/capture.h"
#include "observe/trace_file.h"

namespace uwarp {
namespace {

class File {
 public:
  File() { close(mkstemp(name_.data())); }
  ~File() { unlink(name_.c_str()); }
  const std::string& name() const { return name_; }

 private:
  std::string name_ = "/tmp/uwarp-recording.XXXXXX";
};

TEST(RecordingWithoutMemory, Capture) {
  const File file;
  const auto capture = Capture::create(file.name());
  ASSERT_NE(capture, nullptr);
  CapturedConnection connection(*capture, {}, {}, true);
  std::byte bytes[256] = {};
  iovec pieces[64];
  for (size_t i = 0; i < 64; ++i) pieces[i] = {bytes + i, 1};
  EXPECT_TRUE(without_memory([&] { connection.received(pieces, 64); }));
  connection.received(pieces, 64);
}

TEST(RecordingWithoutMemory, Trace) {
  const File file;
  const auto trace = TraceFile::create(file.name());
  ASSERT_NE(trace, nullptr);
  std::thread([&] {
    EXPECT_TRUE(without_memory([&] { trace->note({}); }));
    trace->note({});
  }).join();
  EXPECT_TRUE(without_memory([&] { trace->finish(); }));
}

}  // namespace
}  // namespace uwarp
