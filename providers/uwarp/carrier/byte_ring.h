// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One direction of a byte stream through memory that two processes share. The other process may be
// hostile, or be killed at any instruction: each side keeps its own position to itself, checks what
// it reads of the other's against the size of the ring, and touches nothing outside of it. There is
// no lock in shared memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "base/atomics.h"
#include "carrier/ring_record.h"

namespace uwarp {

/// What the two sides show each other. Zero at first.
struct RingControl {
  /// Positions are multiples of the ring's step.
  static constexpr uint64_t kPlaced = 1;
  // By the writer.
  alignas(64) Atomic<uint64_t> head{0};  // generation and position behind what may be read
  Atomic<uint32_t> writer_cpu{0};        // on which it last wrote
  Atomic<uint32_t> withdrawn{0};         // its memory must not be read any more
  Atomic<uint64_t> other_placed{0};      // bytes of the other ring that it has placed ...
  Atomic<uint32_t> wants_placed{0};      // ... and that it wants to be told in the other one
  // By the reader.
  alignas(64) Atomic<uint64_t> tail{0};  // the same behind what has been read
  Atomic<uint32_t> can_pull{0};          // it reads the writer's memory at places that are named
  Atomic<uint64_t> answer{0};            // found in the writer's memory: PeerMemory::Secret
  Atomic<uint64_t> placed{0};            // the position up to which all is done, and kPlaced
  // By both, seldom. The side that sets one looks once more before it sleeps; the side that takes
  // one rings the bell.
  alignas(64) Atomic<uint32_t> reader_sleeps{0};
  Atomic<uint32_t> writer_sleeps{0};
};

class RingWriter {
 public:
  static constexpr uint32_t kFirstPage = 4096;
  /// `size`: a power of two, of the memory at `base`.
  RingWriter(RingControl& control, std::byte* base, uint32_t size)
      : control_(control), base_(base), size_(size) {}

  /// Reads how far the reader has come. False: its position is impossible.
  bool poll() {
    const RingPosition tail = RingPosition::of(control_.tail.load(std::memory_order_acquire));
    // In a generation that it has not seen it has read nothing.
    const uint32_t read = tail.generation == at_.generation ? tail.bytes : 0;
    if (at_.bytes - read > size_ || read - read_ > at_.bytes - read_) return false;
    read_ = read;
    if (read_ == at_.bytes && at_.bytes != 0) begin_again();
    return true;
  }
  /// While the ring's pages but the first one are on their way back to the system. idle().
  void keep_to_first_page(bool on) {
    assert(!on || idle());
    end_ = on ? kFirstPage : size_;
  }
  bool keeps_to_first_page() const { return end_ != size_; }
  uint32_t free_bytes() const { return size_ - (at_.bytes - read_); }
  /// A small write is worth a poll(): the ring could begin again, and is out of the nearest cache
  /// by now. Large ones would take back the lines that the reader's cache has just got.
  bool far() const { return at_.bytes > kNear; }
  static bool is_small(size_t bytes) { return bytes < kNear; }

  /// A place of up to `wanted` bytes for a record of its own; 0: no room. Filled, it is ended by
  /// put().
  uint32_t space(uint32_t wanted) {
    uint32_t free = free_bytes();
    const uint32_t to_end = size_ - offset();
    if (to_end < kLeast && free > to_end) {
      put(RingRecord::kSkip, to_end - kRingStep, to_end - kRingStep);
      free -= to_end;
    }
    const uint32_t fits = std::min(free, end_ - std::min(end_, offset()));
    return fits <= kRingStep ? 0 : std::min(wanted, fits - kRingStep);
  }
  std::byte* place() { return base_ + offset() + kRingStep; }
  void put(RingRecord::Kind kind, uint32_t bytes) { put(kind, bytes, ring_steps(bytes)); }
  /// The bytes are at `address`, in our memory. False: no room.
  bool put_place(const void* address, uint32_t bytes) {
    if (space(sizeof address) < sizeof address) return false;
    const auto number = reinterpret_cast<uintptr_t>(address);
    std::memcpy(place(), &number, sizeof number);
    put(RingRecord::kPlace, bytes, ring_steps(sizeof number));
    return true;
  }
  /// What was put may be read. True: the reader sleeps, and is to be woken.
  bool publish() {
    control_.head.store(at_.word(), std::memory_order_seq_cst);
    return wakes_reader();
  }
  /// So many bytes of the other ring are placed and completed. True: as for publish(). By the
  /// thread that reads that ring.
  bool show_placed(uint64_t bytes) {
    control_.other_placed.store(bytes, std::memory_order_seq_cst);
    return wakes_reader();
  }
  /// We are about to sleep until there is room. False: the reader has moved on since poll().
  bool begin_sleep() {
    control_.writer_sleeps.store(1, std::memory_order_seq_cst);
    return !moved();
  }
  /// The reader has moved on since poll(). Any thread that knows the ring.
  bool moved() const {
    const RingPosition tail = RingPosition::of(control_.tail.load(std::memory_order_seq_cst));
    return (tail.generation == at_.generation ? tail.bytes : 0) != read_;
  }
  RingPosition at() const { return at_; }
  /// What the reader shows once it is done with all that has been written.
  uint64_t placed_word() const {
    return (at_.bytes == 0 ? ended_ : at_).word() | RingControl::kPlaced;
  }
  bool placed() const { return control_.placed.load(std::memory_order_acquire) == placed_word(); }
  /// Bytes of the stream in the records that the reader has not read to their end. Counted in the
  /// ring, where a hostile reader may have changed them: never an access outside.
  uint64_t unread_bytes() const {
    const RingPosition tail = RingPosition::of(control_.tail.load(std::memory_order_acquire));
    uint32_t at = tail.generation == at_.generation ? tail.bytes : 0;
    uint64_t unread = 0;
    while (at_.bytes - at <= size_ && at_.bytes - at >= kRingStep && at % kRingStep == 0) {
      RingRecord record;
      std::memcpy(&record, base_ + (at & (size_ - 1)), sizeof record);
      if (record.kind != RingRecord::kSkip) unread += record.bytes;
      at += kRingStep + ring_steps(std::min(record.inside(), size_));
    }
    return unread;
  }
  /// All has been read, as of the last poll().
  bool idle() const { return at_.bytes == 0; }
  /// The memory that has been written to since the last call. idle().
  std::span<std::byte> take_used() {
    assert(idle() && extent_ <= size_);
    return {base_, std::exchange(extent_, 0)};
  }
  /// The reader is behind this position, as of the last poll().
  bool has_read(RingPosition position) const {
    return position.generation != at_.generation ||
           static_cast<int32_t>(read_ - position.bytes) >= 0;
  }

 private:
  // Two pages: with less there would be more to look at than to gain.
  static constexpr uint32_t kNear = 8192;
  // What is left of the ring's end is skipped if no useful record fits.
  static constexpr uint32_t kLeast = 256;

  bool wakes_reader() {
    return control_.reader_sleeps.load(std::memory_order_seq_cst) != 0 &&
           control_.reader_sleeps.exchange(0, std::memory_order_acq_rel) != 0;
  }

  uint32_t offset() const { return at_.bytes & (size_ - 1); }
  void begin_again() {
    extent_ = std::max(extent_, std::min(at_.bytes, size_));
    ended_ = at_;
    at_ = {at_.generation + 1, 0};
    read_ = 0;
  }
  void put(RingRecord::Kind kind, uint32_t bytes, uint32_t steps) {
    assert(kRingStep + steps <= size_ - offset());
    const RingRecord record{bytes, kind};
    std::memcpy(base_ + offset(), &record, sizeof record);
    at_.bytes += kRingStep + steps;
  }

  RingControl& control_;
  std::byte* const base_;
  const uint32_t size_;
  uint32_t end_ = size_;  // of what may be written to
  RingPosition at_;
  RingPosition ended_;   // where the generation before ended
  uint32_t read_ = 0;    // by the reader, of our generation
  uint32_t extent_ = 0;  // bytes, of earlier ones
};

/// Read once: the other side may change it at any time.
inline RingRecord record_at(const std::byte* at) {
  static_assert(sizeof(RingRecord) == sizeof(uint64_t));
  return std::bit_cast<RingRecord>(
      __atomic_load_n(reinterpret_cast<const uint64_t*>(at), __ATOMIC_RELAXED));
}

class RingReader {
 public:
  RingReader(RingControl& control, const std::byte* base, uint32_t size)
      : control_(control), base_(base), size_(size) {}

  /// Something can be read. False also of a ring that is broken().
  bool poll() {
    if (left_ != 0 || at_.bytes != end_) return true;
    const uint64_t head = control_.head.load(std::memory_order_seq_cst);
    if (head == head_) return false;
    const RingPosition to = RingPosition::of(head);
    head_ = head;
    if (to.generation != at_.generation) at_ = {to.generation, 0};
    end_ = to.bytes;
    if (end_ - at_.bytes > size_ || end_ % kRingStep != 0 || broken_) return fail();
    return at_.bytes != end_;
  }
  /// The other side has written something impossible.
  bool broken() const { return broken_; }

  /// Begins the next record, unless one is under way. False: none there, or broken().
  bool begin() {
    while (left_ == 0) {
      if (!poll()) return false;
      if (!take(record_at(base_ + offset()))) return false;
    }
    return true;
  }
  bool is_place() const { return kind_ == RingRecord::kPlace; }
  uint32_t left() const { return left_; }
  /// Of a record of bytes: the next of them, left() in all.
  const std::byte* data() const { return base_ + data_; }
  /// Of the other kind: where they are in the writer's memory.
  uint64_t address() const { return address_; }
  void advance(uint32_t bytes) {
    assert(bytes <= left_);
    left_ -= bytes;
    data_ += bytes;
    address_ += bytes;
    if (left_ == 0) at_.bytes += steps_;
  }
  /// The writer may use the room of what has been read. True: it sleeps, and is to be woken.
  bool release() {
    control_.tail.store(at_.word(), std::memory_order_seq_cst);
    return wakes_writer();
  }
  /// The stream is done with all that has been read. True: the writer is to be woken.
  bool note_placed() {
    placed_ = at_.word() | RingControl::kPlaced;
    control_.placed.store(placed_, std::memory_order_seq_cst);
    return wakes_writer();
  }
  bool unplaced() const { return placed_ != (at_.word() | RingControl::kPlaced); }
  /// We are about to sleep until something comes. False: it has come.
  bool begin_sleep() {
    control_.reader_sleeps.store(1, std::memory_order_seq_cst);
    return !poll() && !broken_;
  }
  /// The writer has placed more of the other ring than at the last take_placed(). After poll() and
  /// begin_sleep(): it shows that before what it writes behind it.
  bool placed_more() const {
    return control_.other_placed.load(std::memory_order_seq_cst) != other_placed_;
  }
  bool take_placed() {
    const uint64_t placed = control_.other_placed.load(std::memory_order_seq_cst);
    return std::exchange(other_placed_, placed) != placed;
  }
  bool withdrawn() const { return control_.withdrawn.load(std::memory_order_acquire) != 0; }

 private:
  bool wakes_writer() {
    return control_.writer_sleeps.load(std::memory_order_seq_cst) != 0 &&
           control_.writer_sleeps.exchange(0, std::memory_order_acq_rel) != 0;
  }
  uint32_t offset() const { return at_.bytes & (size_ - 1); }
  // From now on the ring is empty, even if the writer says otherwise.
  bool fail() {
    broken_ = true;
    end_ = at_.bytes;
    return false;
  }
  // Everything that is wrong with a record breaks the ring. So do two skips in a row, with which a
  // writer could keep us here for as long as it likes.
  bool take(const RingRecord& record) {
    assert(end_ != at_.bytes);
    const uint32_t there = std::min(end_ - at_.bytes, size_ - offset()) - kRingStep;
    const uint32_t inside = record.inside();
    const bool skip = record.kind == RingRecord::kSkip;
    if (inside > there || record.kind > RingRecord::kSkip || (record.bytes == 0 && !skip) ||
        (skip && skipped_)) {
      return fail();
    }
    skipped_ = skip;
    steps_ = kRingStep + ring_steps(inside);
    data_ = offset() + kRingStep;
    kind_ = record.kind;
    if (record.kind == RingRecord::kPlace) std::memcpy(&address_, base_ + data_, sizeof address_);
    if (skip)
      at_.bytes += steps_;
    else
      left_ = record.bytes;
    return true;
  }

  RingControl& control_;
  const std::byte* const base_;
  const uint32_t size_;
  RingPosition at_;    // of the record under way
  uint32_t end_ = 0;   // of what is known to be there
  uint64_t head_ = 0;  // that said so
  uint64_t placed_ = 0;
  uint64_t other_placed_ = 0;
  // The record under way.
  uint32_t left_ = 0;
  uint32_t steps_ = 0;
  uint32_t data_ = 0;
  uint32_t kind_ = RingRecord::kBytes;
  uint64_t address_ = 0;
  bool skipped_ = false;  // the record before
  bool broken_ = false;
};

}  // namespace uwarp
