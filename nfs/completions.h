// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Hands calls that are done from the transport's thread to the thread that waits for them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

#include "nfs/rpc_channel.h"

namespace uwarp::nfs {

/// Starts calls of one channel and waits for any of them. Its destructor waits for all of them, so
/// that the calls can be destroyed then.
class Completions {
 public:
  explicit Completions(RpcChannel& channel) : channel_(channel) {}
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  void start(RpcCall& call);

  /// The next call that is done. Throws Interrupted when a signal came meanwhile.
  RpcCall& wait();

  size_t outstanding() const { return outstanding_.size(); }

 private:
  RpcCall* take_done();

  RpcChannel& channel_;
  std::vector<RpcCall*> outstanding_;
  std::mutex mutex_;
  std::condition_variable arrival_;
  std::deque<RpcCall*> done_;
};

}  // namespace uwarp::nfs
