// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One line on a terminal that says how far a long transfer is. On anything else than a terminal it
// writes nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace uwarp::nfs {

class ProgressBar {
 public:
  ProgressBar(std::string label, uint64_t total);
  /// Clears the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void advance(uint64_t bytes);

  /// The line, for `columns` columns.
  static std::string line(const std::string& label, uint64_t done, uint64_t total, double seconds,
                          size_t columns);

 private:
  using Clock = std::chrono::steady_clock;

  void draw(Clock::time_point now);

  std::string label_;
  uint64_t total_;
  uint64_t done_ = 0;
  bool on_terminal_;
  bool drawn_ = false;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = begin_;
};

/// "1.5 GB"
std::string human_size(double bytes);

}  // namespace uwarp::nfs
