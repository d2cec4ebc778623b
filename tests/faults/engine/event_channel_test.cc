// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// An event may be raised in the middle of any work, so the memory for it is allocated in advance.
#include "events/event_channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include "faults/engine/without_memory.h"

namespace uwarp {
namespace {

struct Channel {
  Channel() {
    auto made = EventChannel::create();
    EXPECT_TRUE(made.ok());
    channel = made->channel;
    fd = made->reader_fd;
  }
  ~Channel() { close(fd); }
  /// The completion queue named in the next record; 0 if there is none.
  uint64_t next() {
    CompletionEventRecord record;
    return recv(fd, &record, sizeof record, MSG_DONTWAIT) == sizeof record ? record.cq : 0;
  }
  std::shared_ptr<EventChannel> channel;
  int fd = -1;
};

uint64_t records_in_a_socket() {
  Channel full;
  for (uint64_t i = 1; i <= 100'000; ++i) full.channel->send(CompletionEventRecord{i});
  uint64_t count = 0;
  while (full.next() != 0) ++count;
  EXPECT_LT(count, 100'000u);
  return count;
}

TEST(EventChannelWithoutMemory, RecordsWithRoomAreDelivered) {
  constexpr uint64_t kMore = 1000;
  const uint64_t fit = records_in_a_socket();
  Channel channel;
  const EventReservation room(*channel.channel, kMore);
  EXPECT_FALSE(without_memory([&] {
    for (uint64_t i = 1; i <= fit + kMore; ++i)
      if (!channel.channel->send(CompletionEventRecord{i})) return;
  }));
  for (uint64_t i = 1; i <= fit + kMore; ++i) {
    ASSERT_EQ(channel.next(), i);
    channel.channel->records_read();
  }
  EXPECT_EQ(channel.next(), 0u);
}

// The records of other objects stay.
TEST(EventChannelWithoutMemory, RecordsOfOneObjectAreTakenBack) {
  Channel channel;
  for (uint64_t i = 1; i <= 10; ++i) channel.channel->send(CompletionEventRecord{i % 3 + 1});
  size_t removed = 0;
  EXPECT_FALSE(without_memory([&] {
    removed = channel.channel->remove_if(
        [](EventChannel::Record record) { return static_cast<uint8_t>(record[0]) == 2; });
  }));
  EXPECT_EQ(removed, 4u);
  for (const uint64_t cq : {3, 1, 3, 1, 3, 1}) EXPECT_EQ(channel.next(), cq);
  EXPECT_EQ(channel.next(), 0u);
}

TEST(EventChannelWithoutMemory, LateArming) {
  const int fd = create_completion_channel();
  int raised = 0;
  CompletionEvents events(event_channel_of(fd), {7}, [&] { ++raised; });
  EXPECT_FALSE(without_memory([&] { events.armed_late(); }));
  EXPECT_EQ(raised, 0);
  EXPECT_FALSE(without_memory([&] {
    const pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
    const ChannelWait wait({&readable, 1});
    events.armed_late();
  }));
  EXPECT_EQ(raised, 2);
  EXPECT_FALSE(without_memory([&] { events.raise(); }));
  EXPECT_EQ(events.stop(), 0u);
  application_file_closed(fd);
  close(fd);
}

}  // namespace
}  // namespace uwarp
