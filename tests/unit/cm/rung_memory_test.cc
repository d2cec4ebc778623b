// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "cm/rung_memory.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace uwarp {
namespace {

constexpr uint64_t kStart = 1'000'000;

sockaddr_storage peer(const std::string& address, uint16_t port) {
  sockaddr_storage made{};
  (void)IpAddress::from_string(address).value().to_sockaddr(made, port);
  return made;
}

sockaddr_storage numbered_peer(size_t number) {
  return peer("10.1." + std::to_string(number / 256) + '.' + std::to_string(number % 256), 1);
}

TEST(RungMemory, BeginsAtTheTop) {
  RungMemory memory;
  EXPECT_EQ(memory.first_for(peer("192.0.2.1", 7471), kStart), Rung::kPeerToPeer);
}

TEST(RungMemory, KeepsLowerRungsByAddressAndPort) {
  RungMemory memory;
  memory.remember(peer("192.0.2.1", 7471), Rung::kRevision1, kStart);
  memory.remember(peer("2001:db8::1", 7471), Rung::kPlain, kStart);
  EXPECT_EQ(memory.first_for(peer("192.0.2.1", 7471), kStart + 1), Rung::kRevision1);
  EXPECT_EQ(memory.first_for(peer("2001:db8::1", 7471), kStart + 1), Rung::kPlain);
  EXPECT_EQ(memory.first_for(peer("192.0.2.1", 7472), kStart + 1), Rung::kPeerToPeer);
  EXPECT_EQ(memory.first_for(peer("192.0.2.2", 7471), kStart + 1), Rung::kPeerToPeer);
}

TEST(RungMemory, TheTopNeedsNoMemory) {
  RungMemory memory;
  memory.remember(peer("192.0.2.1", 1), Rung::kPeerToPeer, kStart);
  EXPECT_EQ(memory.size(), 0u);
  memory.remember(peer("192.0.2.1", 1), Rung::kPlain, kStart);
  memory.remember(peer("192.0.2.1", 1), Rung::kPeerToPeer, kStart);
  EXPECT_EQ(memory.size(), 0u);
}

TEST(RungMemory, ExpiresHoweverOftenItIsUsed) {
  RungMemory memory;
  const auto one = peer("192.0.2.1", 1);
  memory.remember(one, Rung::kRevision1, kStart);
  memory.remember(one, Rung::kRevision1, kStart + RungMemory::kKeepNs - 1);
  EXPECT_EQ(memory.first_for(one, kStart + RungMemory::kKeepNs - 1), Rung::kRevision1);
  EXPECT_EQ(memory.first_for(one, kStart + RungMemory::kKeepNs), Rung::kPeerToPeer);
  EXPECT_EQ(memory.size(), 0u);
}

TEST(RungMemory, Forgets) {
  RungMemory memory;
  const auto one = peer("192.0.2.1", 1);
  memory.remember(one, Rung::kPlain, kStart);
  memory.forget(one);
  memory.forget(one);
  EXPECT_EQ(memory.first_for(one, kStart), Rung::kPeerToPeer);
}

TEST(RungMemory, IsBoundedAndDropsTheOldest) {
  RungMemory memory;
  for (size_t i = 0; i < RungMemory::kMaxPeers + 10; ++i)
    memory.remember(numbered_peer(i), Rung::kPlain, kStart + i);
  EXPECT_EQ(memory.size(), RungMemory::kMaxPeers);
  EXPECT_EQ(memory.first_for(numbered_peer(9), kStart), Rung::kPeerToPeer);
  EXPECT_EQ(memory.first_for(numbered_peer(10), kStart), Rung::kPlain);
}

TEST(RungMemory, ExpiredOnesMakeRoomFirst) {
  RungMemory memory;
  for (size_t i = 0; i < RungMemory::kMaxPeers; ++i)
    memory.remember(numbered_peer(i), Rung::kPlain, kStart);
  memory.remember(peer("192.0.2.1", 1), Rung::kPlain, kStart + RungMemory::kKeepNs);
  EXPECT_EQ(memory.size(), 1u);
}

TEST(RungMemory, FromManyThreads) {
  RungMemory memory;
  std::vector<std::thread> threads;
  for (size_t number = 0; number < 4; ++number)
    threads.emplace_back([&, number] {
      for (size_t i = 0; i < 2000; ++i) {
        const auto one = numbered_peer((i + number * 100) % 400);
        memory.remember(one, Rung::kRevision1, kStart + i);
        (void)memory.first_for(one, kStart + i);
        if (i % 7 == 0) memory.forget(one);
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_LE(memory.size(), RungMemory::kMaxPeers);
}

}  // namespace
}  // namespace uwarp
