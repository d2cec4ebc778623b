// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Which sources stay quiet, and that the quiet of each ends once.
#include "progress/epoll_muted_sources.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "unit/eventually.h"

namespace uwarp {
namespace {

class Looked : public Source {
 public:
  bool ready(uint32_t) override { return false; }
  void unmute() override { ++ended; }
  bool polled_since() override { return polled; }
  std::atomic<bool> polled{true};
  std::atomic<int> ended{0};
};

struct Quiet : ::testing::Test {
  void begin_sleep() {
    presence.begin_nap();
    quiet.end_all();
  }
  void end_sleep() { presence.end_nap(); }

  Presence presence;
  EpollMutedSources quiet{presence};
};

TEST_F(Quiet, HoldsAFew) {
  std::vector<std::shared_ptr<Looked>> sources;
  for (size_t i = 0; i < EpollMutedSources::kMost; ++i) {
    sources.push_back(std::make_shared<Looked>());
    EXPECT_TRUE(quiet.add(*sources.back()));
  }
  Looked& refused = *sources.emplace_back(std::make_shared<Looked>());
  EXPECT_FALSE(quiet.add(refused));
  begin_sleep();
  for (const auto& source : sources) EXPECT_EQ(source->ended, source.get() == &refused ? 0 : 1);
  end_sleep();
  EXPECT_TRUE(quiet.add(refused));
}

TEST_F(Quiet, NoneWhileAThreadSleeps) {
  const auto source = std::make_shared<Looked>();
  begin_sleep();
  begin_sleep();
  EXPECT_FALSE(quiet.add(*source));
  end_sleep();
  EXPECT_FALSE(quiet.add(*source));
  end_sleep();
  EXPECT_TRUE(quiet.add(*source));
  EXPECT_EQ(source->ended, 0);
}

TEST_F(Quiet, EndsThoseThatNoThreadPolls) {
  const auto busy = std::make_shared<Looked>();
  const auto left = std::make_shared<Looked>();
  auto gone = std::make_shared<Looked>();
  EXPECT_TRUE(quiet.add(*left) && quiet.add(*gone) && quiet.add(*busy));
  left->polled = false;
  gone.reset();
  quiet.end_idle();
  EXPECT_EQ(left->ended, 1);
  EXPECT_EQ(busy->ended, 0);
  busy->polled = false;
  quiet.end_idle();
  EXPECT_EQ(busy->ended, 1);
  quiet.end_idle();
  EXPECT_EQ(left->ended + busy->ended, 2);
}

// When a thread goes to sleep, no source may stay quiet, even if another thread makes it quiet at
// the same time.
TEST_F(Quiet, NothingIsMutedWhileAThreadSleeps) {
  const auto source = std::make_shared<Looked>();
  std::atomic<bool> stop{false};
  std::atomic<int> added{0};
  std::thread adder([&] {
    while (!stop) {
      if (added == source->ended && quiet.add(*source)) ++added;
      std::this_thread::yield();
    }
  });
  std::thread idler([&] {
    while (!stop) quiet.end_idle();
  });
  // Otherwise the loop below might end before the thread has started.
  const bool started = eventually([&] { return added > 0; });
  for (int i = 0; i < 2000; ++i) {
    begin_sleep();
    while (source->ended != added) std::this_thread::yield();
    end_sleep();
    std::this_thread::yield();
  }
  stop = true;
  adder.join();
  idler.join();
  EXPECT_TRUE(started);
}

}  // namespace
}  // namespace uwarp
