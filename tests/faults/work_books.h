// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Records what has been posted and what has completed. Allocates nothing, so tests can use it while
// allocations fail.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>

class WorkBooks {
 public:
  /// An id for the next request of this queue.
  uint64_t next_id() { return ++last_; }
  void posted(uint64_t id) {
    states_.at(id) = State::kOpen;
    ++open_;
  }
  /// Checks that each request completes once, and a refused one never.
  void completed(uint64_t id) {
    ASSERT_TRUE(id != 0 && id <= last_) << "a completion of nothing: " << id;
    EXPECT_EQ(states_.at(id), State::kOpen)
        << "request " << id
        << (states_.at(id) == State::kDone ? " completes twice" : " was refused and completes");
    states_.at(id) = State::kDone;
    --open_;
  }
  size_t open() const { return open_; }

 private:
  enum class State : uint8_t { kRefused, kOpen, kDone };
  std::array<State, 1024> states_{};
  uint64_t last_ = 0;
  size_t open_ = 0;
};
