// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A stream over a wire that UWARP_FAULT orders: what is sent is kept until the wire has carried it,
// and only then handed to the socket or ring; what comes from there is kept likewise before the
// queue pair sees it. A stream has one only where a rule is for its peer. Time in.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "inject/delay_line.h"
#include "inject/wires.h"

namespace uwarp {

/// Belongs to one connection.
class StreamWire {
 public:
  /// `delays_input` is false where this end sends what it receives, so that nothing is delayed
  /// twice.
  StreamWire(const WireLink& link, bool delays_input);

  // ---- Transmit side.
  /// The wire takes the front of `bytes`; returns how many of them. -EAGAIN: its queue is full.
  /// -ENOMEM, and what fail() was given.
  ssize_t enter(std::span<const iovec> bytes, uint64_t now_ns);
  /// What has been carried and is to be handed over now.
  std::span<const iovec> carried(uint64_t now_ns) {
    carrier_full_ = queue_full_ = false;
    return out_.out(now_ns, switch_at_ - out_.taken_bytes());
  }
  void handed_over(size_t bytes) { out_.take(bytes); }
  /// The socket or ring has no room.
  void note_full() { carrier_full_ = true; }
  /// Nothing more is handed over: a negative errno says why.
  void fail(ssize_t error);
  /// Behind what has been sent by now the carrier changes.
  void switch_here() { switch_at_ = out_.entered_bytes(); }
  /// ... and all that comes before has been handed over.
  bool switch_due() const { return out_.taken_bytes() >= switch_at_; }
  /// The same; true once.
  bool take_switch();
  /// All that is on the wire has been carried.
  void hurry() { out_.hurry(); }
  /// A turn is over. True: it is to be looked at again at out_wake_ns(), or when there is room.
  bool end_turn(uint64_t now_ns);
  /// ... and nothing more may enter meanwhile.
  bool queue_full() const { return queue_full_; }

  // ---- Receive side.
  /// The peer has a wire of its own and delays what it sends: what comes is not delayed any more.
  void pass_input() { passes_ = true; }
  /// As Stream::read(). `read_carrier()` reads what has come, `clock()` is the time: a thread may
  /// lose its core between two looks at it.
  template <class Clock, class ReadCarrier>
  ssize_t receive(std::span<const iovec> buffer, const Clock& clock,
                  const ReadCarrier& read_carrier) {
    if (passes_ && in_.empty() && !ended_) {
      in_wake_ns_.store(0, std::memory_order_release);
      return read_carrier(buffer);
    }
    fill(clock, read_carrier);
    const uint64_t now_ns = clock();
    const size_t count = in_.read(buffer, now_ns);
    if (count != 0 && input_full_) fill(clock, read_carrier);
    note_input_wake(now_ns);
    if (count != 0) return static_cast<ssize_t>(count);
    return ended_ && in_.empty() && end_ns_ <= now_ns ? end_ : -EAGAIN;
  }
  /// What has come is not wanted any more.
  void drop_input();
  /// So many bytes have been placed and completed, which the peer is to learn as late as it would
  /// over the wire. True: it is news.
  bool note_placed(uint64_t bytes, uint64_t now_ns);
  /// What it may learn now; 0: nothing new.
  uint64_t take_placed(uint64_t now_ns);
  /// input_wake_ns() is another one than at the last call, and is not 0.
  bool input_wake_changed();

  // ---- Any thread.
  /// When there is something to do; 0: nothing that a time brings.
  uint64_t deadline_ns() const;
  /// deadline_ns() has passed: both directions are looked at again behind this.
  void begin_deadline();
  /// There is something to hand over, or it is worth trying.
  bool output_due(uint64_t now_ns) const {
    const uint64_t at_ns = out_wake_ns_.load(std::memory_order_relaxed);
    return at_ns == 0 || at_ns <= now_ns;
  }
  /// Something that has been sent has not been handed over.
  bool carries() const { return carries_.load(std::memory_order_acquire); }
  /// Something has come, or the end has, that is still to be seen at a time.
  bool awaits_input() const { return in_wake_ns_.load(std::memory_order_acquire) != 0; }
  /// The queue in front of the wire has room.
  bool has_space(uint64_t now_ns) const { return out_wire_->space(now_ns) != 0; }

 private:
  static constexpr size_t kReadAtOnce = 64 << 10;
  static constexpr uint64_t kMemoryPauseNs = 1'000'000;

  // To the end, so that the next edge is told.
  template <class Clock, class ReadCarrier>
  void fill(const Clock& clock, const ReadCarrier& read_carrier) {
    input_full_ = lacks_memory_ = false;
    while (!ended_ && !passes_) {
      const size_t space = in_.space(clock());
      if (space == 0) {
        input_full_ = true;
        return;
      }
      const std::span<const iovec> place = in_.place(std::min(space, kReadAtOnce));
      if (place.empty()) {
        lacks_memory_ = true;
        return;
      }
      const ssize_t count = read_carrier(place);
      if (count == -EAGAIN) return;
      if (count > 0) {
        in_.entered(static_cast<size_t>(count), clock());
      } else {
        ended_ = true;
        end_ = count;
        end_ns_ = clock() + latency_ns_;
      }
    }
  }
  void note_input_wake(uint64_t now_ns);

  const std::shared_ptr<Wire> out_wire_;
  const uint64_t latency_ns_;

  // Transmit side.
  DelayLine out_;
  uint64_t switch_at_ = ~uint64_t{0};
  bool carrier_full_ = false;
  bool queue_full_ = false;
  ssize_t error_ = 0;

  // Receive side.
  DelayLine in_;
  bool passes_;
  bool input_full_ = false;  // there may be more to read
  bool lacks_memory_ = false;
  bool ended_ = false;  // the carrier has told its end: `end_`, which is seen at `end_ns_`
  ssize_t end_ = 0;
  uint64_t end_ns_ = 0;
  struct Placed {
    uint64_t bytes = 0;
    uint64_t at_ns = 0;
  };
  std::array<Placed, 16> placed_{};
  size_t first_placed_ = 0, placed_count_ = 0;
  uint64_t noted_placed_ = 0;
  uint64_t told_wake_ns_ = 0;

  std::atomic<bool> retell_wake_{false};  // a deadline has passed: what was told holds no more
  std::atomic<uint64_t> out_wake_ns_{0};
  std::atomic<uint64_t> in_wake_ns_{0};
  std::atomic<bool> carries_{false};
};

}  // namespace uwarp
