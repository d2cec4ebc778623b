// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Delivery of rdma_cm events: counting, migration, readiness, blocking, cancellation.
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <future>
#include <iterator>
#include <string>
#include <thread>

#include "unit/rdma_cm/cm_channel.h"

namespace uwarp {
namespace {

TEST_F(RdmaCmNodeTest, MigrationTakesUndeliveredEventsAlong) {
  Channel other(ids_, transport_);
  Channel::known = {{channel_.fd(), channel_.node()}, {other.fd(), other.node()}};
  const uint32_t id = channel_.create();
  ASSERT_EQ(channel_.resolve(id), 0);
  EXPECT_EQ(channel_.next_event(), kAddressResolved);
  ASSERT_EQ(channel_.resolve_route(id), 0);
  rdma_ucm_migrate_resp response{};
  const auto migrate = [&](Channel& to, int from_fd, uint32_t number) {
    return to.command(
        RDMA_USER_CM_CMD_MIGRATE_ID,
        rdma_ucm_migrate_id{address_of(response), number, static_cast<uint32_t>(from_fd)},
        sizeof response);
  };
  EXPECT_EQ(migrate(other, 9999, id), EINVAL);
  EXPECT_EQ(migrate(other, channel_.fd(), 60000), ENOENT);
  EXPECT_EQ(migrate(other, other.fd(), id), EINVAL);
  ASSERT_EQ(migrate(other, channel_.fd(), id), 0);
  EXPECT_EQ(response.events_reported, 1u);
  EXPECT_FALSE(channel_.readable());
  EXPECT_TRUE(other.readable());
  EXPECT_EQ(channel_.next_event(), kNone);
  EXPECT_EQ(other.next_event(), kRouteResolved);
  EXPECT_EQ(channel_.destroy(id), -EINVAL);
  EXPECT_EQ(other.destroy(id), 2);
}

TEST_F(RdmaCmNodeTest, AnApplicationMayWriteEvents) {
  const uint32_t id = channel_.create(0xabcdef);
  ASSERT_EQ(channel_.resolve(id), 0);
  ASSERT_EQ(channel_.write_event(id, kUser, 7, 0x1122334455667788), 0);
  ASSERT_EQ(channel_.write_event(id, kInternal), 0);
  EXPECT_EQ(channel_.next_event(), kAddressResolved);
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  EXPECT_EQ(event.event, uint32_t{kUser});
  EXPECT_EQ(event.uid, 0xabcdefu);
  EXPECT_EQ(event.id, id);
  EXPECT_EQ(event.status, 7u);
  uint64_t argument = 0;
  memcpy(&argument, &event.param, sizeof argument);
  EXPECT_EQ(argument, 0x1122334455667788u);
  EXPECT_EQ(channel_.next_event(), kInternal);
  EXPECT_FALSE(channel_.readable());
  EXPECT_EQ(channel_.write_event(id, kEstablished), EINVAL) << "those are the kernel's";
  EXPECT_EQ(channel_.write_event(id + 1, kUser), ENOENT);
  EXPECT_EQ(channel_.destroy(id), 3);
}

TEST_F(RdmaCmNodeTest, MigratingANewRequestReportsNoEvents) {
  Channel other(ids_, transport_);
  Channel::known = {{channel_.fd(), channel_.node()}};
  listening_id();
  request();
  rdma_ucm_event_resp event{};
  ASSERT_EQ(channel_.event(event), 0);
  rdma_ucm_migrate_resp response{99};
  ASSERT_EQ(other.command(RDMA_USER_CM_CMD_MIGRATE_ID,
                          rdma_ucm_migrate_id{address_of(response), event.id,
                                              static_cast<uint32_t>(channel_.fd())},
                          sizeof response),
            0);
  EXPECT_EQ(response.events_reported, 0u);
  EXPECT_EQ(other.accept(event.id, 4), 0);
}

TEST_F(RdmaCmNodeTest, ReadinessFollowsTheQueue) {
  const uint32_t first = channel_.create();
  const uint32_t second = channel_.create();
  channel_.resolve(first);
  channel_.resolve(second);
  EXPECT_EQ(channel_.next_event(), kAddressResolved);
  EXPECT_TRUE(channel_.readable());
  // The event is dropped, not read.
  EXPECT_EQ(channel_.destroy(second), 0);
  EXPECT_FALSE(channel_.readable());
  EXPECT_EQ(channel_.next_event(), kNone);
}

/// True if the kernel has put this thread of the process to sleep.
bool sleeps(pid_t thread) {
  std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(stat), {}};
  const size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text.substr(name_end + 2, 1) == "S";
}

// When the descriptor wakes a reader, the event must already be there: if the reader found nothing,
// no second edge would come. The counter of the eventfd is full here, so the thread that makes the
// event stops where it writes to the eventfd.
TEST_F(RdmaCmNodeTest, TheEventIsQueuedBeforeTheDescriptorIsReadable) {
  const uint32_t id = channel_.create();
  channel_.block();
  const uint64_t full = UINT64_MAX - 1;
  ASSERT_EQ(write(channel_.fd(), &full, sizeof full), static_cast<ssize_t>(sizeof full));
  std::atomic<pid_t> maker_thread{0};
  std::thread maker([&] {
    maker_thread = gettid();
    EXPECT_EQ(channel_.resolve(id), 0);
  });
  while (maker_thread == 0 || !sleeps(maker_thread)) std::this_thread::yield();
  fcntl(channel_.fd(), F_SETFL, O_NONBLOCK);
  auto reader = std::async(std::launch::async, [&] { return channel_.next_event(); });
  reader.wait_for(std::chrono::milliseconds(200));  // until it has looked, or waits for the maker
  uint64_t count = 0;
  ASSERT_EQ(read(channel_.fd(), &count, sizeof count), static_cast<ssize_t>(sizeof count));
  maker.join();
  EXPECT_EQ(reader.get(), kAddressResolved);
  EXPECT_FALSE(channel_.readable());
}

TEST_F(RdmaCmNodeTest, GetEventBlocksUntilThereIsOne) {
  const uint32_t id = channel_.create();
  channel_.block();
  std::atomic<bool> done{false};
  std::thread reader([&] {
    rdma_ucm_event_resp event{};
    EXPECT_EQ(channel_.event(event), 0);
    EXPECT_EQ(event.event, kAddressResolved);
    done = true;
  });
  usleep(20'000);
  EXPECT_FALSE(done);
  channel_.resolve(id);
  reader.join();
  EXPECT_FALSE(channel_.readable());
}

void* block_in_get_event(void* channel) {
  rdma_ucm_event_resp event{};
  static_cast<Channel*>(channel)->event(event);
  return nullptr;
}

TEST_F(RdmaCmNodeTest, AThreadInGetEventCanBeCancelled) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "ASan takes the stack of a cancelled thread for poisoned";
#endif
  channel_.block();
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, nullptr, block_in_get_event, &channel_), 0);
  usleep(20'000);
  ASSERT_EQ(pthread_cancel(thread), 0);
  void* result;
  ASSERT_EQ(pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
  // No event was lost with the cancelled reader.
  const uint32_t id = channel_.create();
  channel_.resolve(id);
  EXPECT_EQ(channel_.next_event(), kAddressResolved);
}

TEST_F(RdmaCmNodeTest, ManyReadersGetEachEventOnce) {
  constexpr int kIds = 200;
  channel_.block();
  std::atomic<int> got{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      for (int n = 0; n < kIds / 4; ++n) {
        rdma_ucm_event_resp event{};
        if (channel_.event(event) == 0) ++got;
      }
    });
  }
  std::vector<uint32_t> ids;
  for (int i = 0; i < kIds; ++i) {
    ids.push_back(channel_.create());
    channel_.resolve(ids.back());
  }
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(got, kIds);
  EXPECT_FALSE(channel_.readable());
  for (const uint32_t id : ids) EXPECT_EQ(channel_.destroy(id), 1);
}

}  // namespace
}  // namespace uwarp
