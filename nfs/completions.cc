// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/completions.h"

#include <chrono>

#include "nfs/interrupt.h"

namespace uwarp::nfs {

Completions::~Completions() {
  for (RpcCall* call : outstanding_) {
    channel_.cancel(*call);
  }
  std::unique_lock lock(mutex_);
  arrival_.wait(lock, [this] { return done_.size() == outstanding_.size(); });
}

void Completions::start(RpcCall& call) {
  call.done = [this](RpcCall& finished) {
    // Notified under the lock: the waiter may destroy this object as soon as it has the lock.
    std::lock_guard lock(mutex_);
    done_.push_back(&finished);
    arrival_.notify_one();
  };
  outstanding_.push_back(&call);
  channel_.start(call);
}

RpcCall* Completions::take_done() {
  if (done_.empty()) {
    return nullptr;
  }
  RpcCall* call = done_.front();
  done_.pop_front();
  std::erase(outstanding_, call);
  return call;
}

RpcCall& Completions::wait() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (RpcCall* call = take_done()) {
      return *call;
    }
    lock.unlock();
    Interrupt::check();
    lock.lock();
    arrival_.wait_for(lock, kSignalDelay, [this] { return !done_.empty(); });
  }
}

}  // namespace uwarp::nfs
