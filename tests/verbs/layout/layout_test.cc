// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The provider plugin against a fake libibverbs of each release that it supports: it finds the
// context, and sets every operation at the place where that release looks for it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "kernel-abi/provider_abi.h"
#include "verbs/layout/fake_ibverbs.h"
#include "verbs/verbs_table.h"

namespace {

using uwarp::provider_abi::AnyFunction;

struct Opened {
  ibv_context* context = nullptr;
  int opens = 0;
  int closes = 0;
  int result = 0;
  std::vector<std::string> log;
};
Opened engine;

// Addresses that differ and are never called.
int mark = 0;
template <typename Function>
Function marked() {
  return reinterpret_cast<Function>(static_cast<uintptr_t>(0x1000 + 16 * ++mark));
}

uwarp_verbs_table make_table() {
  uwarp_verbs_table table = {};
  table.version = UWARP_VERBS_TABLE_VERSION;
  table.open_context = [](ibv_context* context) {
    ++engine.opens;
    engine.context = context;
    return engine.result;
  };
  table.close_context = [](ibv_context* context) {
    EXPECT_EQ(context, engine.context);
    ++engine.closes;
  };
  table.log = [](const char* line) { engine.log.push_back(line); };
#define MARK(name, result, parameters) table.name = marked<decltype(table.name)>();
  UWARP_VERBS_OPERATIONS(MARK)
#undef MARK
  return table;
}

class Layout : public ::testing::Test {
 protected:
  void SetUp() override {
    engine = {};
    fake.uninitialised = 0;
    fake.claimed_size = fake_context_size();
    ASSERT_NE(fake.driver, nullptr);
  }
  int new_fd() { return open("/dev/full", O_RDWR | O_CLOEXEC); }
  ibv_device device_ = {};
};

TEST_F(Layout, RegistersOnceWithTheSymbolOfThisRelease) {
  EXPECT_EQ(fake.registrations, 1);
  EXPECT_STREQ(fake.driver->name, "uwarp");
  EXPECT_EQ(fake.driver->match_min_abi_version, 1u);
  EXPECT_EQ(fake.driver->match_max_abi_version, 1u);
  EXPECT_EQ(fake.driver->match_table, nullptr);
  EXPECT_EQ(fake.driver->import_context, nullptr);
}

TEST_F(Layout, MatchesOnlyDevicesOfItsOwnTree) {
  char directory[] = "/tmp/uwarp-layout-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  const std::string marker = std::string(directory) + "/uwarp";
  std::vector<char> sysfs(992);
  const auto name = [&](const char* text) { std::strcpy(sysfs.data() + 112, text); };
  std::strcpy(sysfs.data() + 176, directory);

  name("uwarp_lo");
  EXPECT_FALSE(fake.driver->match_device(sysfs.data())) << "no marker";
  std::ofstream(marker) << "1\n";
  EXPECT_TRUE(fake.driver->match_device(sysfs.data()));
  name("siw0");
  EXPECT_FALSE(fake.driver->match_device(sysfs.data())) << "foreign name";
  name("uwarp");
  EXPECT_FALSE(fake.driver->match_device(sysfs.data())) << "prefix only";
  unlink(marker.c_str());
  rmdir(directory);
}

TEST_F(Layout, DeviceAllowsOptionalAccessFlags) {
  std::vector<char> sysfs(992);
  void* device = fake.driver->alloc_device(sysfs.data());
  ASSERT_NE(device, nullptr);
  uint64_t core_support;
  std::memcpy(&core_support, static_cast<char*>(device) + 704, sizeof core_support);
  EXPECT_EQ(core_support, 1u);
  for (size_t i = 0; i < 704; ++i) EXPECT_EQ(static_cast<char*>(device)[i], 0) << i;
  fake.driver->uninit_device(device);
}

TEST_F(Layout, PutsEveryOperationIntoItsSlot) {
  void* block = fake.driver->alloc_context(&device_, new_fd(), nullptr);
  ASSERT_NE(block, nullptr) << (engine.log.empty() ? "" : engine.log[0]);
  EXPECT_EQ(engine.opens, 1);
  EXPECT_EQ(engine.context, fake_context(block));
  // The tail behind the context is inside the block and belongs to uwarp.
  std::memset(engine.context + 1, 0x5a, sizeof(uwarp_context_tail));

  const uwarp_verbs_table& verbs = *uwarp_verbs();
  std::vector<std::string> ours = {"free_context"};
#define EXPECT_IN_PLACE(name, result, parameters) \
  ours.push_back(#name);                          \
  EXPECT_EQ(fake_operation(#name), reinterpret_cast<AnyFunction>(verbs.name)) << #name;
  UWARP_VERBS_OPERATIONS(EXPECT_IN_PLACE)
#undef EXPECT_IN_PLACE
  EXPECT_EQ(engine.context->ops.poll_cq, verbs.poll_cq);
  EXPECT_EQ(engine.context->ops.post_send, verbs.post_send);

  // The plugin changed nothing else, except slots that may get a plain EOPNOTSUPP.
  for (const auto& operation : uwarp::provider_abi::kOperations) {
    const std::string name(operation.name);
    const AnyFunction function = fake_operation(name);
    if (function == nullptr || std::find(ours.begin(), ours.end(), name) != ours.end()) continue;
    if (function == fake_dummy) continue;
    EXPECT_EQ(name, "resize_cq");
    EXPECT_EQ(reinterpret_cast<int (*)()>(function)(), EOPNOTSUPP) << name;
  }

  const AnyFunction free_context = fake_operation("free_context");
  ASSERT_NE(free_context, fake_dummy);
  reinterpret_cast<void (*)(ibv_context*)>(free_context)(engine.context);
  EXPECT_EQ(engine.closes, 1);
  EXPECT_EQ(fake.uninitialised, 1);
}

TEST_F(Layout, FailureOfTheEngineIsReportedAndLeavesNothing) {
  engine.result = ENODEV;
  EXPECT_EQ(fake.driver->alloc_context(&device_, new_fd(), nullptr), nullptr);
  EXPECT_EQ(errno, ENODEV);
  EXPECT_EQ(fake.uninitialised, 1);
  EXPECT_EQ(engine.closes, 0);
}

TEST_F(Layout, UnknownReleaseIsRefused) {
  fake.claimed_size = 4096;
  EXPECT_EQ(fake.driver->alloc_context(&device_, new_fd(), nullptr), nullptr);
  EXPECT_EQ(errno, ENOSYS);
  EXPECT_EQ(engine.opens, 0);
  EXPECT_EQ(engine.log.size(), 1u);
  EXPECT_EQ(fake.uninitialised, 1);
}

TEST_F(Layout, SizeOfAnotherReleaseIsRefused) {
  // The size is that of a known release, but it is stored at the place of another one.
  constexpr size_t kV62 = 352 + sizeof(ibv_context), kV64 = 368 + sizeof(ibv_context);
  fake.claimed_size = fake_context_size() == kV62 ? kV64 : kV62;
  EXPECT_EQ(fake.driver->alloc_context(&device_, new_fd(), nullptr), nullptr);
  EXPECT_EQ(errno, ENOSYS);
  EXPECT_EQ(engine.opens, 0);
}

}  // namespace

const uwarp_verbs_table* uwarp_verbs(void) {
  static const uwarp_verbs_table table = make_table();
  return &table;
}
