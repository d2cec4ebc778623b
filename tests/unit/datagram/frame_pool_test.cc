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
    EXPECT_TRUE(places.count(frame->bytes));
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
