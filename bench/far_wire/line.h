// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// One direction of a wire between two far places: a queue before the sender's end that takes a
// limited number of bytes, a rate, a delay, and frames that get lost. Knows no devices and no
// clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <random>
#include <vector>

namespace uwarp::bench {

using Clock = std::chrono::steady_clock;

struct LineShape {
  std::chrono::microseconds delay{0};  // one way
  double bytes_per_second = 125e6;
  double queue_bytes = 1e6;  // what waits for the rate; a frame beyond it is lost
  double loss = 0;           // of all frames, 0 to 1
};

class Line {
 public:
  Line(const LineShape& shape, unsigned seed) : shape_(shape), random_(seed) {}

  /// A frame comes in. It is copied, unless it is lost.
  void enter(const std::byte* bytes, size_t size, Clock::time_point now) {
    free_at_ = std::max(free_at_, now);
    const double waiting =
        std::chrono::duration<double>(free_at_ - now).count() * shape_.bytes_per_second;
    if (waiting > shape_.queue_bytes || chance_(random_) < shape_.loss) {
      ++lost_;
      return;
    }
    free_at_ += std::chrono::nanoseconds(
        static_cast<int64_t>(static_cast<double>(size) / shape_.bytes_per_second * 1e9));
    frames_.push_back({free_at_ + shape_.delay, {bytes, bytes + size}});
  }

  bool has_due(Clock::time_point now) const {
    return !frames_.empty() && frames_.front().arrival <= now;
  }
  std::vector<std::byte> take() {
    std::vector<std::byte> bytes = std::move(frames_.front().bytes);
    frames_.pop_front();
    return bytes;
  }
  /// When the next frame arrives; `never` if none is under way.
  Clock::time_point next(Clock::time_point never) const {
    return frames_.empty() ? never : frames_.front().arrival;
  }
  size_t lost() const { return lost_; }

 private:
  struct Frame {
    Clock::time_point arrival;
    std::vector<std::byte> bytes;
  };

  const LineShape shape_;
  std::mt19937 random_;
  std::uniform_real_distribution<double> chance_{0, 1};
  std::deque<Frame> frames_;
  Clock::time_point free_at_;
  size_t lost_ = 0;
};

}  // namespace uwarp::bench
