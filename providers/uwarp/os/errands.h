// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What may wait for another process, done by threads that owe nothing to any connection. To close a
// descriptor that another process has handed over may wait for as long as that process likes (a TCP
// socket with SO_LINGER, a file of FUSE), and so may a look at a place in its memory.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>

#include "base/mutex.h"

namespace uwarp {

/// Derive from it, own the object by shared_ptr, and give it to Errands::add(); again only once it
/// has been run.
class Errand {
 public:
  Errand() = default;
  Errand(const Errand&) = delete;
  Errand& operator=(const Errand&) = delete;
  virtual ~Errand() = default;
  virtual void run() noexcept = 0;

 private:
  friend class Errands;
  std::shared_ptr<Errand> next_;
};

/// Any thread. Takes no memory, waits for nothing.
class Errands {
 public:
  /// So many errands may wait for other processes before the next ones wait behind them.
  static constexpr size_t kMostThreads = 16;
  /// So many may wait behind them before crowded().
  static constexpr size_t kCrowd = 16;

  /// Waits until all have been run. The engine's lives as long as the process.
  ~Errands();

  /// run() is called by a thread that ends when there is nothing left to do. Where no thread can be
  /// started, `errand` is kept until another one is added, or crowded() is called.
  void add(std::shared_ptr<Errand> errand);
  /// Nothing that will need an errand is to be begun: it would be kept for as long as other
  /// processes like.
  bool crowded();
  /// One that is added now is begun at once, as a rule.
  bool has_space() const;
  /// Not begun yet.
  size_t waiting() const;

 private:
  static void* thread_main(void* self);
  void start_thread();
  std::shared_ptr<Errand> pop();

  mutable Mutex mutex_;
  std::condition_variable thread_ended_;
  std::shared_ptr<Errand> first_ GUARDED_BY(mutex_);
  Errand* last_ GUARDED_BY(mutex_) = nullptr;
  size_t waiting_ GUARDED_BY(mutex_) = 0;
  size_t threads_ GUARDED_BY(mutex_) = 0;
};

}  // namespace uwarp
