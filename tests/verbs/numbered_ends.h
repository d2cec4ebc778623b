// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Many connected ends of one process that exchange numbered messages, and know so of each message
// that is lost, comes twice or comes late. Plain librdmacm; nothing of uwarp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "verbs/cm_ends.h"

/// The queue pair of an id. Each message that comes is answered by one, until the end is quiet.
class NumberedEnd {
 public:
  /// Receives that are posted all the time; more than one end sends ahead of the answers.
  static constexpr uint64_t kReceives = 8;
  static constexpr uint64_t kSends = 32;
  static constexpr uint64_t kAhead = 4;

  explicit NumberedEnd(rdma_cm_id* with_queue_pair);
  /// Sends the first messages, which its peer answers.
  void begin() { owe(kAhead); }
  void take(const ibv_wc& wc);
  /// True: each message that was sent has its answer.
  bool all_answered() const { return received_ == posted_ && completed_ == posted_; }

  rdma_cm_id* id() const { return id_; }
  uint64_t received() const { return received_; }
  /// Requests that were posted and have no completion yet.
  uint64_t outstanding() const { return posted_ - completed_ - failed() + kReceives - flushed_; }
  uint64_t failed() const { return flushed_sends_ + retried_; }
  uint64_t flushed_receives() const { return flushed_; }
  uint64_t retried() const { return retried_; }
  const std::string& wrong() const { return wrong_; }  ///< what should not happen; empty

  bool quiet = false;
  int disconnected = 0;  ///< events

 private:
  void owe(uint64_t messages);
  void post_receive(uint64_t slot);
  bool post_send();
  void take_failed(const ibv_wc& wc);
  void take_message(uint64_t slot);

  rdma_cm_id* const id_;
  std::vector<uint64_t> slots_ = std::vector<uint64_t>(kReceives + kSends);
  Mr mr_;
  uint64_t received_ = 0, posted_ = 0, completed_ = 0, owed_ = 0;
  uint64_t flushed_ = 0, flushed_sends_ = 0, retried_ = 0;
  std::string wrong_;
};

/// All of a process. They share a completion queue.
class NumberedEnds {
 public:
  explicit NumberedEnds(int most) : most_(most) {}
  ~NumberedEnds() { clear(); }
  /// Makes the queue pair of the id and its end. Null, and errno, if the queue pair cannot be made.
  NumberedEnd* add(rdma_cm_id* id);
  /// Null if the id has none.
  NumberedEnd* find(const rdma_cm_id* id);
  void remove(rdma_cm_id* id);
  void clear();
  /// Hands out what has completed. False: nothing has.
  bool poll();
  auto& all() { return ends_; }

 private:
  const int most_;
  Cq cq_;
  std::unordered_map<uint32_t, std::unique_ptr<NumberedEnd>> ends_;
};
