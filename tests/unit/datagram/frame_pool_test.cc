// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "datagram/frame_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace uwarp {
namespace {

TEST(FramePool, FramesAreApartAndComeBackEmpty) {
  RegionTable regions;
  FramePool pool(regions);
  std::set<std::byte*> places;
  std::vector<Frame*> taken;
  for (int i = 0; i < 200; ++i) {
    Frame* const frame = pool.take();
    ASSERT_NE(frame, nullptr);
    EXPECT_EQ(frame->size, 0u);
    EXPECT_EQ(frame->datagrams, 0u);
    const auto above = places.lower_bound(frame->bytes);
    EXPECT_TRUE(above == places.end() || *above >= frame->bytes + kFrameBytes);
    places.insert(frame->bytes);
    frame->size = 100;
    frame->datagrams = 3;
    taken.push_back(frame);
  }
  for (Frame* frame : taken) pool.give_back(*frame);
  for (int i = 0; i < 200; ++i) {
    Frame* const frame = pool.take();
    EXPECT_EQ(frame->size, 0u);
    EXPECT_EQ(frame->datagrams, 0u);
  }
}

TEST(FramePool, HasAnEnd) {
  RegionTable regions;
  FramePool pool(regions);
  std::vector<Frame*> taken;
  while (Frame* frame = pool.take()) taken.push_back(frame);
  EXPECT_EQ(taken.size(), 64u * 64u);
  pool.give_back(*taken.back());
  EXPECT_EQ(pool.take(), taken.back());
  EXPECT_EQ(pool.take(), nullptr);
}

TEST(FramePool, MemoryComesBackButForOneChunk) {
  RegionTable regions;
  FramePool pool(regions);
  for (int round = 0; round < 3; ++round) {
    std::vector<Frame*> taken;
    while (Frame* frame = pool.take()) taken.push_back(frame);
    EXPECT_EQ(pool.chunks(), FramePool::kMostChunks);
    EXPECT_EQ(regions.live_count(), FramePool::kMostChunks);
    // In another order than they were taken in.
    for (size_t step = 0; step < 7; ++step)
      for (size_t i = step; i < taken.size(); i += 7) pool.give_back(*taken[i]);
    EXPECT_EQ(pool.chunks(), 1u);
    EXPECT_EQ(regions.live_count(), 1u);
  }
  // One frame that comes and goes costs no system call.
  const std::byte* const same = pool.take()->bytes;
  EXPECT_EQ(pool.chunks(), 1u);
  EXPECT_NE(pool.take()->bytes, same);
}

// Frames that are taken come from few chunks, so that the others can go.
TEST(FramePool, OneFrameKeepsOneChunk) {
  RegionTable regions;
  FramePool pool(regions);
  std::vector<Frame*> taken;
  while (Frame* frame = pool.take()) taken.push_back(frame);
  for (size_t i = 0; i + 1 < taken.size(); ++i) pool.give_back(*taken[i]);
  EXPECT_EQ(pool.chunks(), 2u);
  pool.give_back(*taken.back());
  EXPECT_EQ(pool.chunks(), 1u);
}

TEST(FramePool, TheLastQuarterIsForThoseThatHoldFew) {
  RegionTable regions;
  FramePool pool(regions);
  size_t greedy = 0;
  while (pool.take(greedy) != nullptr) ++greedy;
  EXPECT_EQ(greedy, FramePool::kMostFrames / 4 * 3);
  for (size_t held = 0; held < FramePool::kFewFrames; ++held) EXPECT_NE(pool.take(held), nullptr);
  EXPECT_EQ(pool.take(FramePool::kFewFrames), nullptr);
}

TEST(FrameQueue, KeepsTheOrder) {
  Frame frames[3];
  FrameQueue queue;
  for (Frame& frame : frames) queue.push(frame);
  EXPECT_EQ(queue.size(), 3u);
  for (Frame& frame : frames) EXPECT_EQ(&queue.pop(), &frame);
  EXPECT_TRUE(queue.empty());
  queue.push(frames[1]);
  EXPECT_EQ(&queue.front(), &queue.back());
}

}  // namespace
}  // namespace uwarp
