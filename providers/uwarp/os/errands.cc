// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "os/errands.h"

#include <pthread.h>

#include <cassert>
#include <utility>

#include "base/mutex.h"
#include "os/engine_thread.h"
#include "os/output_file.h"

namespace uwarp {

Errands::~Errands() {
  const Lock guard(mutex_);
  while (threads_ != 0) mutex_.wait(thread_ended_);
}

// Null: nothing is left to do, and the thread is not counted any more.
std::shared_ptr<Errand> Errands::pop() {
  const Lock guard(mutex_);
  std::shared_ptr<Errand> next = std::move(first_);
  if (next == nullptr) {
    --threads_;
    thread_ended_.notify_all();
    return nullptr;
  }
  first_ = std::move(next->next_);
  if (first_ == nullptr) last_ = nullptr;
  assert(waiting_ != 0);
  --waiting_;
  return next;
}

bool Errands::has_space() const {
  const Lock guard(mutex_);
  return threads_ < kMostThreads;
}

size_t Errands::waiting() const {
  const Lock guard(mutex_);
  return waiting_;
}

void* Errands::thread_main(void* self) {
  auto* const errands = static_cast<Errands*>(self);
  while (const std::shared_ptr<Errand> errand = errands->pop()) errand->run();
  return nullptr;
}

void Errands::add(std::shared_ptr<Errand> errand) {
  {
    const Lock guard(mutex_);
    Errand* const added = errand.get();
    (last_ != nullptr ? last_->next_ : first_) = std::move(errand);
    last_ = added;
    ++waiting_;
  }
  start_thread();
}

bool Errands::crowded() {
  if (waiting() < kCrowd) return false;
  start_thread();  // there was perhaps none
  static CollapsedLog log;
  log.event("other processes hold up what they hand over: more connections stay on TCP");
  return true;
}

void Errands::start_thread() {
  constexpr size_t kStackBytes = 256 << 10;
  {
    const Lock guard(mutex_);
    if (waiting_ == 0 || threads_ == kMostThreads) return;
    ++threads_;
  }
  const auto thread = start_engine_thread("uwarp-errand", thread_main, this, kStackBytes);
  if (thread) {
    pthread_detach(*thread);
    return;
  }
  const Lock guard(mutex_);
  --threads_;
}

}  // namespace uwarp
