// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The engine over fork, exit and SIGKILL, and regions that are removed during traffic.
#include "engine/engine.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "os/engine_fds.h"
#include "unit/connect/node.h"

namespace {
bool in_forked_child = false;
}

/// LeakSanitizer asks at exit. In a forked child the parent's threads are missing, so it would
/// report what they had on their stacks as leaks.
extern "C" __attribute__((visibility("default"), used)) int __lsan_is_turned_off() {
  return in_forked_child ? 1 : 0;
}

namespace uwarp {
namespace {

using namespace std::chrono_literals;

#if defined(__SANITIZE_THREAD__)
constexpr bool kForkAndThreads = false;  // ThreadSanitizer does not support threads after fork
#else
constexpr bool kForkAndThreads = true;
#endif

class TwoProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kForkAndThreads) GTEST_SKIP() << "threads after fork";
    ASSERT_EQ(pipe(up_), 0);
    ASSERT_EQ(pipe(down_), 0);
  }
  void TearDown() override {
    for (const int fd : {up_[0], up_[1], down_[0], down_[1]}) close(fd);
  }
  static void put(int fd, uint32_t value) {
    if (write(fd, &value, sizeof value) != sizeof value) _exit(9);
  }
  static uint32_t get(int fd) {
    uint32_t value = 0;
    return read(fd, &value, sizeof value) == sizeof value ? value : 0;
  }
  /// A child with a connected queue pair; `last_words` decides how it ends.
  template <typename LastWords>
  void spawn(LastWords last_words) {
    child_ = fork();
    if (child_ != 0) return;
    in_forked_child = true;
    alarm(60);
    auto* node = new Node;  // leaked, because the process ends
    put(up_[1], node->endpoint->number().value);
    const Qpn peer{get(down_[0])};
    if (node->init() != 0 || node->rtr(peer) != 0 || node->rts() != 0) _exit(3);
    if (node->post_send(1, 0, 4) != 0) _exit(4);
    if (node->wait_polling().status != WcStatus::kSuccess) _exit(5);
    put(up_[1], 1);
    last_words(*node);
    _exit(6);
  }
  void connect() {
    const Qpn peer{get(up_[0])};
    put(down_[1], node_.endpoint->number().value);
    ASSERT_EQ(node_.init(), 0);
    ASSERT_EQ(node_.post_recv(1, 0, 64), 0);
    ASSERT_EQ(node_.post_recv(2, 0, 64), 0);
    ASSERT_EQ(node_.rtr(peer), 0);
    ASSERT_EQ(node_.rts(), 0);
    EXPECT_EQ(node_.wait_passive().status, WcStatus::kSuccess);
    EXPECT_EQ(get(up_[0]), 1u);
  }
  void reap(int expected_signal) {
    int status = 0;
    ASSERT_EQ(waitpid(child_, &status, 0), child_);
    if (expected_signal != 0) {
      EXPECT_TRUE(WIFSIGNALED(status));
    } else {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    }
  }

  Node node_;
  pid_t child_ = -1;
  int up_[2] = {-1, -1}, down_[2] = {-1, -1};
};

TEST_F(TwoProcesses, AKilledPeerIsNoticed) {
  spawn([](Node&) { pause(); });
  connect();
  kill(child_, SIGKILL);
  reap(SIGKILL);
  EXPECT_EQ(node_.wait_passive().status, WcStatus::kWrFlushErr);
  EXPECT_TRUE(eventually([&] { return node_.events().size() == 1; }));
  EXPECT_EQ(node_.state(), QpState::kErr);
}

TEST_F(TwoProcesses, APeerThatExitsIsNot) {
  spawn([](Node&) { exit(0); });
  connect();
  reap(0);
  std::this_thread::sleep_for(100ms);
  WorkCompletion none;
  EXPECT_FALSE(node_.poll(none));
  EXPECT_TRUE(node_.events().empty());
  EXPECT_EQ(node_.state(), QpState::kRts);
}

TEST_F(TwoProcesses, APeerThatDestroysItsQueuePairIsNot) {
  spawn([](Node& self) {
    self.endpoint->destroy();
    exit(0);
  });
  connect();
  reap(0);
  std::this_thread::sleep_for(100ms);
  EXPECT_TRUE(node_.events().empty());
  EXPECT_EQ(node_.state(), QpState::kRts);
}

TEST_F(TwoProcesses, AForkedChildLeavesItsParentsConnectionsAlone) {
  Node a;
  ASSERT_EQ(a.init(), 0);
  ASSERT_EQ(node_.init(), 0);
  ASSERT_EQ(a.rtr(node_.endpoint->number()), 0);
  ASSERT_EQ(node_.rtr(a.endpoint->number()), 0);
  ASSERT_EQ(a.rts(), 0);
  ASSERT_EQ(node_.rts(), 0);
  const auto send = [&] {
    ASSERT_EQ(node_.post_recv(1, 0, 64), 0);
    ASSERT_EQ(a.post_send(2, 0, 8), 0);
    EXPECT_EQ(a.wait_polling().status, WcStatus::kSuccess);
    EXPECT_EQ(node_.wait_polling().status, WcStatus::kSuccess);
  };
  send();
  child_ = fork();
  if (child_ == 0) {
    alarm(60);
    Engine* const parents = &a.engine;
    if (parents->alive()) _exit(2);
    a.endpoint->destroy();  // harmless
    if (a.move(QpState::kErr) == 0) _exit(3);
    if (&Engine::instance() == parents) _exit(4);
    Node own, other;
    if (own.init() != 0 || other.init() != 0 || own.rtr(other.endpoint->number()) != 0 ||
        other.rtr(own.endpoint->number()) != 0 || own.rts() != 0)
      _exit(5);
    if (other.post_recv(1, 0, 8) != 0 || own.post_send(1, 0, 8) != 0) _exit(6);
    if (other.wait_passive().status != WcStatus::kSuccess) _exit(7);
    _exit(0);
  }
  reap(0);
  send();
  EXPECT_TRUE(a.events().empty());
}

TEST(Engine, RegionsMayGoAwayUnderTraffic) {
  Node a, b;
  ASSERT_EQ(a.init(), 0);
  ASSERT_EQ(b.init(), 0);
  ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
  ASSERT_EQ(b.rtr(a.endpoint->number()), 0);
  ASSERT_EQ(a.rts(), 0);
  ASSERT_EQ(b.rts(), 0);
  // The target of Writes is deregistered and then freed while they arrive.
  std::vector<std::byte> doomed(1 << 20);
  MemoryRegion* region =
      b.engine.regions()
          .add(b.domain, doomed.data(), doomed.size(), 0, kAccessLocalWrite | kAccessRemoteWrite)
          .value();
  SendRequest request;
  request.opcode = SendOpcode::kWrite;
  request.rkey = region->key.load();
  std::thread remover([&] {
    std::this_thread::sleep_for(3ms);
    b.engine.remove_region(*region);
    doomed.clear();
    doomed.shrink_to_fit();
  });
  bool failed = false;
  for (int i = 0; i < 100'000 && !failed; ++i) {
    request.wr_id = static_cast<uint64_t>(i);
    if (a.post(request, 0, 200'000) != 0) {
      std::this_thread::yield();
    }
    WorkCompletion done;
    while (a.cq.poll(&done, 1) == 1) failed = failed || done.status != WcStatus::kSuccess;
  }
  remover.join();
  EXPECT_TRUE(failed || eventually([&] { return a.state() == QpState::kErr; }));
  EXPECT_TRUE(eventually([&] { return b.events() == std::vector{QpEvent::kAccessError}; }));
}

TEST(Engine, NoFdIsLeft) {
  const auto count = [] {
    static std::atomic<int> fds;
    fds = 0;
    visit_engine_fds([](int) { ++fds; });
    return fds.load();
  };
  { const Node warm_up; }
  const int before = count();
  for (int round = 0; round < 20; ++round) {
    Node a, b;
    ASSERT_EQ(a.init(), 0);
    ASSERT_EQ(b.init(), 0);
    ASSERT_EQ(a.rtr(b.endpoint->number()), 0);
    ASSERT_EQ(b.rtr(a.endpoint->number()), 0);
    ASSERT_EQ(a.rts(), 0);
    ASSERT_EQ(b.post_recv(1, 0, 64), 0);
    ASSERT_EQ(a.post_send(1, 0, 4), 0);
    EXPECT_EQ(b.wait_polling().status, WcStatus::kSuccess);
  }
  // Connections of earlier tests may still have been draining when `before` was counted.
  EXPECT_TRUE(eventually([&] { return count() <= before; })) << count() << " instead of " << before;
}

}  // namespace
}  // namespace uwarp
