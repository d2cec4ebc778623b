// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "stream/stream_wire.h"

#include <algorithm>

namespace uwarp {
namespace {

/// The first of two times of which 0 is none.
uint64_t earlier(uint64_t a, uint64_t b) { return std::min(a - 1, b - 1) + 1; }

}  // namespace

StreamWire::StreamWire(const WireLink& link, bool delays_input)
    : out_wire_(link.out),
      latency_ns_(link.in->terms().latency_ns),
      out_(link.out),
      in_(link.in),
      passes_(!delays_input) {}

// --- Transmit side

ssize_t StreamWire::enter(std::span<const iovec> bytes, uint64_t now_ns) {
  if (error_ != 0) return error_;
  const size_t space = out_.space(now_ns);
  queue_full_ = space == 0;
  if (queue_full_) return -EAGAIN;
  const size_t count = out_.enter(bytes, space, now_ns);
  return count != 0 ? static_cast<ssize_t>(count) : -ENOMEM;
}

void StreamWire::fail(ssize_t error) {
  error_ = error;
  out_.clear();
}

bool StreamWire::take_switch() {
  if (!switch_due()) return false;
  switch_at_ = ~uint64_t{0};
  return true;
}

bool StreamWire::end_turn(uint64_t now_ns) {
  carries_.store(!out_.empty(), std::memory_order_release);
  uint64_t wake_ns = carrier_full_ ? 0 : out_.next_ns();
  if (queue_full_) wake_ns = earlier(wake_ns, out_.space_ns(now_ns));
  out_wake_ns_.store(wake_ns, std::memory_order_release);
  return queue_full_ || !out_.empty();
}

// --- Receive side

void StreamWire::drop_input() {
  in_.clear();
  ended_ = false;
  passes_ = true;
  placed_count_ = 0;
  in_wake_ns_.store(0, std::memory_order_release);
}

// The latest stands for those that have no place.
bool StreamWire::note_placed(uint64_t bytes, uint64_t now_ns) {
  if (bytes == noted_placed_) return false;
  noted_placed_ = bytes;
  if (placed_count_ != placed_.size()) ++placed_count_;
  placed_[(first_placed_ + placed_count_ - 1) % placed_.size()] = {bytes, now_ns + latency_ns_};
  return true;
}

uint64_t StreamWire::take_placed(uint64_t now_ns) {
  uint64_t bytes = 0;
  for (; placed_count_ != 0 && placed_[first_placed_].at_ns <= now_ns; --placed_count_) {
    bytes = placed_[first_placed_].bytes;
    first_placed_ = (first_placed_ + 1) % placed_.size();
  }
  return bytes;
}

// What has come out already is read at once by the thread that has the side, or waits for a
// receive: no time brings it. From where nothing is delayed any more is read at once, too.
void StreamWire::note_input_wake(uint64_t now_ns) {
  uint64_t wake_ns = in_.next_ns() > now_ns ? in_.next_ns() : 0;
  if (input_full_) wake_ns = earlier(wake_ns, in_.space_ns(now_ns));
  if (lacks_memory_) wake_ns = earlier(wake_ns, now_ns + kMemoryPauseNs);
  if (placed_count_ != 0) wake_ns = earlier(wake_ns, placed_[first_placed_].at_ns);
  if (in_.empty() && ended_ && end_ns_ > now_ns) wake_ns = earlier(wake_ns, end_ns_);
  if (in_.empty() && passes_ && !ended_) wake_ns = now_ns;
  in_wake_ns_.store(wake_ns, std::memory_order_release);
}

bool StreamWire::input_wake_changed() {
  if (retell_wake_.exchange(false)) told_wake_ns_ = 0;
  const uint64_t wake_ns = in_wake_ns_.load(std::memory_order_relaxed);
  return std::exchange(told_wake_ns_, wake_ns) != wake_ns && wake_ns != 0;
}

// --- Any thread

uint64_t StreamWire::deadline_ns() const {
  return earlier(out_wake_ns_.load(std::memory_order_acquire),
                 in_wake_ns_.load(std::memory_order_acquire));
}

// A time that has passed must not be told again, where nothing is read for want of a receive.
void StreamWire::begin_deadline() {
  in_wake_ns_.store(0, std::memory_order_release);
  out_wake_ns_.store(0, std::memory_order_release);
  retell_wake_.store(true);
}

}  // namespace uwarp
