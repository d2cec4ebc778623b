// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "os/errands.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "unit/eventually.h"

namespace uwarp {
namespace {

class Gate {
 public:
  void open() {
    const std::lock_guard guard(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock guard(mutex_);
    changed_.wait(guard, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

struct Counts {
  std::atomic<int> begun{0}, done{0};
};

class Waits : public Errand {
 public:
  Waits(std::shared_ptr<Gate> gate, std::shared_ptr<Counts> counts)
      : gate_(std::move(gate)), counts_(std::move(counts)) {}
  void run() noexcept override {
    ++counts_->begun;
    gate_->pass();
    ++counts_->done;
  }

 private:
  std::shared_ptr<Gate> gate_;
  std::shared_ptr<Counts> counts_;
};

TEST(Errands, AreAllRunByABoundedNumberOfThreads) {
  constexpr int kThreads = Errands::kMostThreads, kMany = 5 * kThreads;
  const auto gate = std::make_shared<Gate>();
  const auto counts = std::make_shared<Counts>();
  Errands errands;
  for (int i = 0; i != kMany; ++i) errands.add(std::make_shared<Waits>(gate, counts));
  EXPECT_TRUE(eventually([&] { return counts->begun == kThreads; }));
  EXPECT_EQ(errands.waiting(), static_cast<size_t>(kMany - kThreads));
  gate->open();
  EXPECT_TRUE(eventually([&] { return counts->done == kMany; }));
  EXPECT_EQ(errands.waiting(), 0u);
}

TEST(Errands, AreACrowdOnceManyWaitBehindThoseThatAreHeldUp) {
  constexpr int kThreads = Errands::kMostThreads, kMany = kThreads + Errands::kCrowd;
  const auto gate = std::make_shared<Gate>();
  const auto counts = std::make_shared<Counts>();
  Errands errands;
  for (int i = 0; i != kMany; ++i) {
    errands.add(std::make_shared<Waits>(gate, counts));
    if (i + 1 == kThreads) {
      EXPECT_TRUE(eventually([&] { return counts->begun == kThreads; }));
    }
    EXPECT_EQ(errands.crowded(), i + 1 == kMany) << i;
  }
  gate->open();
  EXPECT_TRUE(eventually([&] { return !errands.crowded(); }));
}

TEST(Errands, AreAllRunBeforeTheEnd) {
  const auto gate = std::make_shared<Gate>();
  const auto counts = std::make_shared<Counts>();
  gate->open();
  {
    Errands errands;
    for (int i = 0; i != 100; ++i) errands.add(std::make_shared<Waits>(gate, counts));
  }
  EXPECT_EQ(counts->done, 100);
}

}  // namespace
}  // namespace uwarp
