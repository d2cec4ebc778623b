// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The memory that the kernel counts for connections over shared memory.
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <string>

#include "verbs/verbs_fixture.h"

namespace {

/// Resident memory of the mapped rings, in KiB. Both ends are in this process, so the same memory
/// counts twice.
size_t ring_kib() {
  std::ifstream maps("/proc/self/smaps");
  size_t sum = 0;
  bool rings = false;
  for (std::string line; std::getline(maps, line);) {
    // Lines with addresses begin in lower case, names of values in upper case.
    if (std::isupper(static_cast<unsigned char>(line[0])) == 0)
      rings = line.find("uwarp-rings") != std::string::npos;
    if (rings && line.rfind("Rss:", 0) == 0) sum += std::strtoul(line.c_str() + 4, nullptr, 10);
  }
  return sum;
}

class SharedMemory : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    const char* const set = getenv("UWARP_SHM");
    if (set != nullptr && *set == '0') GTEST_SKIP() << "all connections stay on TCP";
  }
};

// A Write might need no ring.
void send_all(Pair& pair, int count) {
  for (int i = 0; i < count; ++i) ASSERT_EQ(pair.b.post_receive(i, 0, 4096), 0);
  for (int i = 0; i < count; ++i) ASSERT_EQ(pair.a.post_send(i, 0, 4096), 0);
  EXPECT_EQ(next_completions(pair.a.cq.get(), count).size(), static_cast<size_t>(count));
  EXPECT_EQ(next_completions(pair.b.cq.get(), count).size(), static_cast<size_t>(count));
}

TEST_F(SharedMemory, IsReturnedByIdleConnections) {
  Pair pair(context());
  ASSERT_TRUE(wait_until([&] {
    send_all(pair, 32);
    return ring_kib() > 64 || HasFailure();
  })) << "no connection left TCP";
  EXPECT_TRUE(wait_until([] { return ring_kib() <= 2 * 12; })) << ring_kib() << " KiB";
  // The connection still works, and its memory shrinks again.
  send_all(pair, 64);
  EXPECT_TRUE(wait_until([] { return ring_kib() <= 2 * 12; })) << ring_kib() << " KiB";
}

}  // namespace
