// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The bytes of one direction of a stream that are on a Wire: they come out when the wire says, in
// the order in which they have entered. Time in, bytes out.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "inject/wire.h"

namespace uwarp {

/// One thread at a time. Nothing throws: without memory nothing enters.
class DelayLine {
 public:
  /// Most that it holds, also where the wire has no rate.
  static constexpr size_t kMostBytes = size_t{32} << 20;

  explicit DelayLine(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}

  // ---- In.
  /// How many bytes may enter now. If it is 0, what enters next counts as having waited.
  size_t space(uint64_t now_ns);
  /// When to ask again after space() was 0.
  uint64_t space_ns(uint64_t now_ns) const;
  /// Copies the front of `bytes`, at most `size` of them. Returns how many: 0 without memory.
  size_t enter(std::span<const iovec> bytes, size_t size, uint64_t now_ns);
  /// The same in two steps: where the next bytes are to be written, at most `size` of them (none
  /// without memory); and how many have been.
  std::span<const iovec> place(size_t size);
  void entered(size_t size, uint64_t now_ns);

  // ---- Out.
  /// The front of what has come out, at most `most` bytes, in pieces of at most kBlockBytes. Until
  /// they are taken they stay where they are; the list itself is good until the next call.
  std::span<const iovec> out(uint64_t now_ns, uint64_t most = ~uint64_t{0});
  static constexpr size_t kBlockBytes = 8 << 10;
  /// So many bytes at the front are no longer needed.
  void take(size_t size);
  /// out() and take() into `buffer`; returns how many bytes.
  size_t read(std::span<const iovec> buffer, uint64_t now_ns);
  /// When the first byte comes out; 0: the line is empty.
  uint64_t next_ns() const { return stamped() ? stamps_[next_stamp_].at_ns : 0; }

  bool empty() const { return head_ == tail_; }
  size_t size() const { return static_cast<size_t>(tail_ - head_); }
  /// Positions in the stream: bytes that have entered and that were taken since the beginning.
  uint64_t entered_bytes() const { return tail_; }
  uint64_t taken_bytes() const { return head_; }
  /// All that is in it comes out now.
  void hurry();
  void clear();

 private:
  /// What is before `end`, and behind the stamp before this one, comes out at `at_ns`.
  struct Stamp {
    uint64_t end;
    uint64_t at_ns;
  };
  static constexpr size_t kPieces = 16;
  static constexpr size_t kSpareBlocks = 16;
  using Block = std::array<std::byte, kBlockBytes>;

  bool reserve(size_t size);
  void copy_in(uint64_t position, const std::byte* from, size_t size);
  std::span<const iovec> pieces(uint64_t from, uint64_t to);
  std::byte* at(uint64_t position) {
    const uint64_t offset = position - first_;
    return blocks_[offset / kBlockBytes]->data() + offset % kBlockBytes;
  }
  bool stamped() const { return next_stamp_ != stamps_.size(); }
  uint64_t due_position(uint64_t now_ns, uint64_t most) const;
  void drop_blocks();
  void drop_stamps();

  const std::shared_ptr<Wire> wire_;
  std::deque<std::unique_ptr<Block>> blocks_;  // the first begins at position first_
  std::vector<std::unique_ptr<Block>> spare_;
  uint64_t first_ = 0;
  uint64_t head_ = 0, tail_ = 0;  // positions
  std::vector<Stamp> stamps_;     // from next_stamp_ on; times do not fall
  size_t next_stamp_ = 0;
  bool waited_ = false;
  std::array<iovec, kPieces> pieces_{};
};

}  // namespace uwarp
