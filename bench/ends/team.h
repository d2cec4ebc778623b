// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Processes with threads that do the same work at the same time. Any failure ends them all.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace uwarp::bench {

class Team {
 public:
  /// Before the process has threads.
  Team(uint32_t processes, uint32_t threads);

  /// Has each thread of each process call `work`, numbered from 0; the first process is the calling
  /// one. Returns when all have ended. The other processes end without exit handlers.
  void run(const std::function<void(uint32_t process, uint32_t thread)>& work);

  /// Returns when all threads of all processes have called it as often.
  void meet();
  /// Adds to the sum of the team.
  void add(double figure) { shared_->sum.fetch_add(figure); }
  double sum() const { return shared_->sum.load(); }

 private:
  struct Shared {
    std::atomic<uint32_t> met{0};
    std::atomic<double> sum{0};
  };
  void run_threads(const std::function<void(uint32_t, uint32_t)>& work, uint32_t process) const;

  const uint32_t processes_;
  const uint32_t threads_;
  Shared* const shared_;
};

/// The part of `count` that is that of member `index` of `members`.
inline uint32_t part_of(uint32_t count, uint32_t index, uint32_t members) {
  return count / members + (index < count % members ? 1 : 0);
}

}  // namespace uwarp::bench
