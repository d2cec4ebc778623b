// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Times of many round trips, and what a benchmark program prints of them: lines of a name and a
// number, which bench/run reads.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace uwarp::bench {

inline void print_figure(const char* name, double value) { std::printf("%s %.6g\n", name, value); }

class RoundTrips {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RoundTrips(double seconds) : seconds_(seconds) { nanoseconds_.reserve(1 << 20); }

  /// True until the time is over. The first fifth warms up and is not counted; ends are never
  /// decided on fewer than a few round trips.
  bool go_on() {
    const double elapsed = since(start_, Clock::now());
    if (!counting_ && elapsed > seconds_ / 5 && ++warm_ > kFew) counting_ = true;
    return elapsed < seconds_ || nanoseconds_.size() < kFew;
  }
  void begin() { began_ = Clock::now(); }
  void end() {
    if (!counting_) return;
    const auto span = std::chrono::nanoseconds(Clock::now() - began_).count();
    nanoseconds_.push_back(static_cast<uint32_t>(std::min<int64_t>(span, UINT32_MAX)));
  }

  /// Halves of the round trips, in microseconds: median, mean, 99th percentile.
  void print_halves() {
    std::sort(nanoseconds_.begin(), nanoseconds_.end());
    double sum = 0;
    for (const uint32_t each : nanoseconds_) sum += each;
    const size_t count = nanoseconds_.size();
    print_figure("typical_us", nanoseconds_[count / 2] / 2e3);
    print_figure("average_us", sum / static_cast<double>(count) / 2e3);
    print_figure("p99_us", nanoseconds_[count * 99 / 100] / 2e3);
  }

 private:
  static constexpr size_t kFew = 20;

  static double since(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  }

  const double seconds_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point began_;
  size_t warm_ = 0;
  bool counting_ = false;
  std::vector<uint32_t> nanoseconds_;
};

}  // namespace uwarp::bench
