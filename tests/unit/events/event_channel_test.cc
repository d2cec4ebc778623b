// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Event channels as libibverbs reads them.
#include "events/event_channel.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <set>
#include <thread>

#include "engine/engine.h"
#include "events/raw_fds.h"

namespace uwarp {
namespace {

/// When this source is served, another thread sends a record, and then the serving thread sends
/// one.
class TwoRecords final : public Source {
 public:
  explicit TwoRecords(EventChannel& channel) : channel_(channel) {}
  ~TwoRecords() override { close(fd_); }
  bool ready(uint32_t /*events*/) override {
    uint64_t count;
    if (read(fd_, &count, sizeof count) != sizeof count) return false;
    std::thread([&] { channel_.send(CompletionEventRecord{1}); }).join();
    channel_.send(CompletionEventRecord{2});
    return false;
  }
  int fd() const { return fd_; }

 private:
  EventChannel& channel_;
  const int fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
};

class EventChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto pair = EventChannel::create();
    ASSERT_TRUE(pair.ok());
    channel_ = pair->channel;
    fd_ = pair->reader_fd;
  }
  void TearDown() override { close(fd_); }

  /// The cq of the next record; 0 if there is none.
  uint64_t next() {
    CompletionEventRecord record;
    const ssize_t got = recv(fd_, &record, sizeof record, MSG_DONTWAIT);
    return got == sizeof record ? record.cq : 0;
  }
  bool readable() {
    pollfd wait{fd_, POLLIN, 0};
    return poll(&wait, 1, 0) == 1;
  }

  std::shared_ptr<EventChannel> channel_;
  int fd_ = -1;
};

TEST_F(EventChannelTest, RecordsComeInOrderAndWhole) {
  EXPECT_FALSE(readable());
  channel_->send(CompletionEventRecord{7});
  channel_->send(CompletionEventRecord{8});
  EXPECT_TRUE(readable());
  CompletionEventRecord record;
  // A plain read, like that of libibverbs.
  ASSERT_EQ(read(fd_, &record, sizeof record), 8);
  EXPECT_EQ(record.cq, 7u);
  EXPECT_EQ(next(), 8u);
  EXPECT_FALSE(readable());
}

// The reading thread serves sources while it waits, and also reads records that it sends itself.
TEST_F(EventChannelTest, AReaderFindsWhatOthersHaveSentBefore) {
  const auto source = std::make_shared<TwoRecords>(*channel_);
  const auto registration = Engine::instance().progress().add(*source, source->fd());
  ASSERT_TRUE(registration.ok());
  for (int round = 0; round < 20; ++round) {
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const uint64_t one = 1;
      ASSERT_EQ(write(source->fd(), &one, sizeof one), 8);
    });
    for (const uint64_t expected : {1, 2}) {
      CompletionEventRecord record;
      ASSERT_EQ(channel_->read(fd_, std::as_writable_bytes(std::span(&record, 1))), 8);
      EXPECT_EQ(record.cq, expected) << "round " << round;
    }
    later.join();
  }
  Engine::instance().progress().remove(*registration);
}

TEST_F(EventChannelTest, AsyncRecord) {
  channel_->send(AsyncEventRecord{0x1234, 5, 0});
  AsyncEventRecord record;
  ASSERT_EQ(read(fd_, &record, sizeof record), 16);
  EXPECT_EQ(record.element, 0x1234u);
  EXPECT_EQ(record.event_type, 5u);
}

TEST_F(EventChannelTest, NothingIsLostWhenTheSocketIsFull) {
  constexpr uint64_t kMany = 5000;
  for (uint64_t i = 1; i <= kMany; ++i) channel_->send(CompletionEventRecord{i});
  for (uint64_t i = 1; i <= kMany; ++i) {
    ASSERT_EQ(next(), i);
    channel_->records_read();
  }
  EXPECT_FALSE(readable());
}

TEST_F(EventChannelTest, RemoveKeepsTheOthersInOrder) {
  for (uint64_t i = 1; i <= 600; ++i) channel_->send(CompletionEventRecord{i});
  const size_t removed = channel_->remove_if([](EventChannel::Record record) {
    uint64_t cq;
    memcpy(&cq, record.data(), sizeof cq);
    return cq % 2 == 0;
  });
  EXPECT_EQ(removed, 300u);
  for (uint64_t i = 1; i <= 600; i += 2) {
    ASSERT_EQ(next(), i);
    channel_->records_read();
  }
  EXPECT_FALSE(readable());
}

TEST_F(EventChannelTest, WhatAClosedReaderIsSentCanBeTakenBack) {
  close(fd_);
  fd_ = -1;
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(channel_->send(CompletionEventRecord{1}));
  EXPECT_EQ(channel_->remove_if([](EventChannel::Record) { return true; }), 1000u);
  const std::weak_ptr<EventChannel> ends = channel_;
  channel_.reset();
  EXPECT_TRUE(ends.expired());
}

TEST_F(EventChannelTest, ReaderSeesTheEndWhenTheChannelGoes) {
  channel_.reset();
  char byte;
  EXPECT_EQ(read(fd_, &byte, 1), 0);
}

TEST_F(EventChannelTest, OneUnreadEventPerQueue) {
  CompletionEvents events(channel_, {42});
  events.raise();
  events.raise();
  events.raise();
  EXPECT_EQ(next(), 42u);
  EXPECT_FALSE(readable());
  // The two events raised meanwhile count as one.
  events.record_read();
  EXPECT_EQ(next(), 42u);
  events.record_read();
  EXPECT_FALSE(readable());
  events.raise();
  EXPECT_EQ(next(), 42u);
}

TEST_F(EventChannelTest, StopTakesBackWhatIsUnread) {
  CompletionEvents first(channel_, {1});
  CompletionEvents second(channel_, {2});
  first.raise();
  second.raise();
  first.raise();
  EXPECT_EQ(first.stop(), 0u);
  EXPECT_EQ(next(), 2u);
  EXPECT_FALSE(readable());
  first.raise();
  first.record_read();
  EXPECT_FALSE(readable());
}

TEST_F(EventChannelTest, StopCountsWhatHasBeenRead) {
  CompletionEvents events(channel_, {1});
  for (int i = 0; i < 3; ++i) {
    events.raise();
    EXPECT_EQ(next(), 1u);
    if (i < 2) events.record_read();
  }
  events.raise();  // kept until the reader reports that it has read
  EXPECT_EQ(events.stop(), 3u);
  events.record_read();
  EXPECT_FALSE(readable());
  EXPECT_EQ(events.stop(), 3u);
}

TEST_F(EventChannelTest, AForkedChildCannotDisturbTheParent) {
  CompletionEvents events(channel_, {3});
  const pid_t child = fork();
  if (child == 0) {
    channel_->send(CompletionEventRecord{9});
    events.raise();
    channel_.reset();
    _exit(0);
  }
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(readable());
  events.raise();
  EXPECT_EQ(next(), 3u);
}

/// A queue that is armed with completions in it, and how often that has raised its event.
class LateArmingTest : public ::testing::Test {
 protected:
  void TearDown() override {
    events_.stop();
    application_file_closed(fd_);
    close(fd_);
  }
  const int fd_ = create_completion_channel();
  const pollfd at_channel_[2] = {{-1, POLLIN, 0}, {fd_, POLLIN, 0}};
  const pollfd elsewhere_[1] = {{STDIN_FILENO, POLLIN, 0}};
  int raised_ = 0;
  CompletionEvents events_{event_channel_of(fd_), {7}, [this] { ++raised_; }};
};

TEST_F(LateArmingTest, RaisesItsEventWhenAThreadBeginsToWait) {
  EXPECT_TRUE(events_.armed_late());
  EXPECT_TRUE(events_.armed_late());
  for (int round = 0; round < 2; ++round) {
    const ChannelWait elsewhere(elsewhere_);
    EXPECT_EQ(raised_, 0);
  }
  for (int round = 0; round < 2; ++round) {
    const ChannelWait wait(at_channel_);
    EXPECT_EQ(raised_, 1);
  }
}

TEST_F(LateArmingTest, RaisesItsEventAtOnceWhileAThreadWaits) {
  const ChannelWait elsewhere(elsewhere_);
  EXPECT_TRUE(events_.armed_late());
  std::optional<ChannelWait> first(at_channel_), second(at_channel_);
  EXPECT_EQ(raised_, 1);
  EXPECT_FALSE(events_.armed_late());
  first.reset();
  EXPECT_FALSE(events_.armed_late());
  EXPECT_EQ(raised_, 3);
  second.reset();
  EXPECT_TRUE(events_.armed_late());
}

TEST_F(LateArmingTest, AnEpollSetMayHaveAnyChannel) {
  static constexpr uwarp_preload_table kPreload = {
      0, [](int, uwarp_fd_kind) {},
      [](int fd) { return fd == STDIN_FILENO ? UWARP_FD_EPOLL : UWARP_FD_FOREIGN; }, [] {}};
  use_preload(&kPreload);
  EXPECT_TRUE(events_.armed_late());
  {
    const ChannelWait wait(elsewhere_);
    EXPECT_EQ(raised_, 1);
    EXPECT_FALSE(events_.armed_late());
  }
  use_preload(nullptr);
}

TEST_F(LateArmingTest, WaitsUntilAnUnreadEventIsRead) {
  events_.raise();
  EXPECT_TRUE(events_.armed_late());
  const ChannelWait before(at_channel_);
  EXPECT_TRUE(events_.armed_late());
  EXPECT_EQ(raised_, 0);
  events_.record_read();
  const ChannelWait after(at_channel_);
  EXPECT_EQ(raised_, 1);
}

TEST_F(LateArmingTest, EndsWithTheQueue) {
  CompletionEvents other(event_channel_of(fd_), {8}, [this] { raised_ += 10; });
  EXPECT_TRUE(events_.armed_late());
  EXPECT_TRUE(other.armed_late());
  events_.stop();
  {
    const ChannelWait wait(at_channel_);
    EXPECT_EQ(raised_, 10);
  }
  other.stop();
}

TEST(CompletionChannelTable, FindsByFd) {
  const int fd = create_completion_channel();
  ASSERT_GE(fd, 0);
  const auto channel = event_channel_of(fd);
  ASSERT_NE(channel, nullptr);
  EXPECT_EQ(event_channel_of(fd + 1000), nullptr);
  // A copy is the same channel, and lives longer than the original.
  application_file_duplicated(fd, fd + 1000);
  application_file_closed(fd);
  EXPECT_EQ(event_channel_of(fd), nullptr);
  EXPECT_EQ(event_channel_of(fd + 1000), channel);
  application_file_closed(fd + 1000);
  application_file_closed(fd + 1000);
  EXPECT_EQ(event_channel_of(fd + 1000), nullptr);
  close(fd);
}

}  // namespace
}  // namespace uwarp
