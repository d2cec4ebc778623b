// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "connect/startup.h"

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

TEST(StartupModeCache, BeginsAtTheTop) {
  StartupModeCache memory;
  EXPECT_EQ(memory.first_for(peer("192.0.2.1", 7471), kStart), StartupMode::kPeerToPeer);
}

TEST(StartupModeCache, KeepsLaterModesByAddressAndPort) {
  StartupModeCache memory;
  memory.remember(peer("192.0.2.1", 7471), StartupMode::kRevision1, kStart);
  memory.remember(peer("2001:db8::1", 7471), StartupMode::kPlain, kStart);
  EXPECT_EQ(memory.first_for(peer("192.0.2.1", 7471), kStart + 1), StartupMode::kRevision1);
  EXPECT_EQ(memory.first_for(peer("2001:db8::1", 7471), kStart + 1), StartupMode::kPlain);
  EXPECT_EQ(memory.first_for(peer("192.0.2.1", 7472), kStart + 1), StartupMode::kPeerToPeer);
  EXPECT_EQ(memory.first_for(peer("192.0.2.2", 7471), kStart + 1), StartupMode::kPeerToPeer);
}

TEST(StartupModeCache, TheTopNeedsNoMemory) {
  StartupModeCache memory;
  memory.remember(peer("192.0.2.1", 1), StartupMode::kPeerToPeer, kStart);
  EXPECT_EQ(memory.size(), 0u);
  memory.remember(peer("192.0.2.1", 1), StartupMode::kPlain, kStart);
  memory.remember(peer("192.0.2.1", 1), StartupMode::kPeerToPeer, kStart);
  EXPECT_EQ(memory.size(), 0u);
}

TEST(StartupModeCache, ExpiresAlthoughItIsUsed) {
  StartupModeCache memory;
  const auto one = peer("192.0.2.1", 1);
  memory.remember(one, StartupMode::kRevision1, kStart);
  memory.remember(one, StartupMode::kRevision1, kStart + StartupModeCache::kKeepNs - 1);
  EXPECT_EQ(memory.first_for(one, kStart + StartupModeCache::kKeepNs - 1), StartupMode::kRevision1);
  EXPECT_EQ(memory.first_for(one, kStart + StartupModeCache::kKeepNs), StartupMode::kPeerToPeer);
  EXPECT_EQ(memory.size(), 0u);
}

TEST(StartupModeCache, Forgets) {
  StartupModeCache memory;
  const auto one = peer("192.0.2.1", 1);
  memory.remember(one, StartupMode::kPlain, kStart);
  memory.forget(one);
  memory.forget(one);
  EXPECT_EQ(memory.first_for(one, kStart), StartupMode::kPeerToPeer);
}

TEST(StartupModeCache, IsBoundedAndDropsTheOldest) {
  StartupModeCache memory;
  for (size_t i = 0; i < StartupModeCache::kMaxPeers + 10; ++i)
    memory.remember(numbered_peer(i), StartupMode::kPlain, kStart + i);
  EXPECT_EQ(memory.size(), StartupModeCache::kMaxPeers);
  EXPECT_EQ(memory.first_for(numbered_peer(9), kStart), StartupMode::kPeerToPeer);
  EXPECT_EQ(memory.first_for(numbered_peer(10), kStart), StartupMode::kPlain);
}

TEST(StartupModeCache, ExpiredOnesMakeRoomFirst) {
  StartupModeCache memory;
  for (size_t i = 0; i < StartupModeCache::kMaxPeers; ++i)
    memory.remember(numbered_peer(i), StartupMode::kPlain, kStart);
  memory.remember(peer("192.0.2.1", 1), StartupMode::kPlain, kStart + StartupModeCache::kKeepNs);
  EXPECT_EQ(memory.size(), 1u);
}

TEST(StartupModeCache, FromManyThreads) {
  StartupModeCache memory;
  std::vector<std::thread> threads;
  for (size_t number = 0; number < 4; ++number)
    threads.emplace_back([&, number] {
      for (size_t i = 0; i < 2000; ++i) {
        const auto one = numbered_peer((i + number * 100) % 400);
        memory.remember(one, StartupMode::kRevision1, kStart + i);
        (void)memory.first_for(one, kStart + i);
        if (i % 7 == 0) memory.forget(one);
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_LE(memory.size(), StartupModeCache::kMaxPeers);
}

}  // namespace
}  // namespace uwarp
