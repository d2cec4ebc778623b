// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "inject/delay_line.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace uwarp {

// --- In

size_t DelayLine::space(uint64_t now_ns) {
  const size_t space = std::min(wire_->space(now_ns), kMostBytes - std::min(kMostBytes, size()));
  waited_ |= space == 0;
  return space;
}

// A line that is full by itself has room when its first bytes are taken.
uint64_t DelayLine::space_ns(uint64_t now_ns) const {
  const uint64_t at_ns = wire_->space(now_ns) != 0 ? now_ns : wire_->space_ns(now_ns);
  return size() < kMostBytes ? at_ns : std::max(at_ns, stamps_[next_stamp_].at_ns);
}

size_t DelayLine::enter(std::span<const iovec> bytes, size_t size, uint64_t now_ns) {
  size_t total = 0;
  for (const iovec& piece : bytes) total += piece.iov_len;
  size = std::min(size, total);
  if (!reserve(size)) return 0;
  size_t copied = 0;
  for (const iovec& piece : bytes) {
    const size_t part = std::min(piece.iov_len, size - copied);
    copy_in(tail_ + copied, static_cast<const std::byte*>(piece.iov_base), part);
    copied += part;
  }
  entered(size, now_ns);
  return size;
}

void DelayLine::copy_in(uint64_t position, const std::byte* from, size_t size) {
  while (size != 0) {
    const size_t part = std::min<size_t>(size, kBlockBytes - (position - first_) % kBlockBytes);
    std::memcpy(at(position), from, part);
    position += part;
    from += part;
    size -= part;
  }
}

std::span<const iovec> DelayLine::place(size_t size) {
  size = std::min(size, (kPieces - 1) * kBlockBytes);
  return reserve(size) ? pieces(tail_, tail_ + size) : std::span<const iovec>();
}

void DelayLine::entered(size_t size, uint64_t now_ns) {
  const bool whole = wire_->terms().bits_per_second == 0;
  while (size != 0) {
    const size_t piece = whole ? size : std::min(size, Wire::kPieceBytes);
    const uint64_t before_ns = stamped() ? stamps_.back().at_ns : 0;
    tail_ += piece;
    size -= piece;
    stamps_.push_back({tail_, std::max(before_ns, wire_->carry(piece, now_ns, waited_))});
  }
  waited_ = false;
}

// Memory for so many bytes more and their stamps: then entered() needs none.
bool DelayLine::reserve(size_t size) {
  const size_t stamps = stamps_.size() + size / Wire::kPieceBytes + 1;
  try {
    if (stamps > stamps_.capacity()) stamps_.reserve(2 * stamps);
    while (first_ + blocks_.size() * kBlockBytes < tail_ + size) {
      blocks_.emplace_back();
      if (spare_.empty()) {
        blocks_.back() = std::make_unique<Block>();
      } else {
        blocks_.back() = std::move(spare_.back());
        spare_.pop_back();
      }
    }
    spare_.reserve(kSpareBlocks);
  } catch (const std::bad_alloc&) {
    if (!blocks_.empty() && blocks_.back() == nullptr) blocks_.pop_back();
    return false;
  }
  return true;
}

// --- Out

std::span<const iovec> DelayLine::pieces(uint64_t from, uint64_t to) {
  size_t count = 0;
  while (from != to && count != kPieces) {
    const size_t part = std::min<uint64_t>(to - from, kBlockBytes - (from - first_) % kBlockBytes);
    pieces_[count++] = {at(from), part};
    from += part;
  }
  return {pieces_.data(), count};
}

// Of what has come out, at most `most` bytes.
uint64_t DelayLine::due_position(uint64_t now_ns, uint64_t most) const {
  uint64_t due = head_;
  for (size_t i = next_stamp_; i != stamps_.size() && stamps_[i].at_ns <= now_ns; ++i) {
    due = stamps_[i].end;
    if (due - head_ >= most) return head_ + most;
  }
  return due;
}

std::span<const iovec> DelayLine::out(uint64_t now_ns, uint64_t most) {
  return pieces(head_, due_position(now_ns, most));
}

void DelayLine::take(size_t size) {
  head_ += size;
  drop_stamps();
  drop_blocks();
}

void DelayLine::drop_stamps() {
  while (stamped() && stamps_[next_stamp_].end <= head_) ++next_stamp_;
  // A few are moved for many that go.
  if (next_stamp_ < stamps_.size() - next_stamp_) return;
  stamps_.erase(stamps_.begin(), stamps_.begin() + static_cast<ptrdiff_t>(next_stamp_));
  next_stamp_ = 0;
}

void DelayLine::drop_blocks() {
  while (!blocks_.empty() && head_ - first_ >= kBlockBytes) {
    if (spare_.size() < std::min(kSpareBlocks, spare_.capacity()))
      spare_.push_back(std::move(blocks_.front()));
    blocks_.pop_front();
    first_ += kBlockBytes;
  }
}

size_t DelayLine::read(std::span<const iovec> buffer, uint64_t now_ns) {
  size_t copied = 0;
  for (const iovec& piece : buffer) {
    for (size_t filled = 0; filled != piece.iov_len;) {
      const std::span<const iovec> next = out(now_ns, piece.iov_len - filled);
      if (next.empty()) return copied;
      std::memcpy(static_cast<std::byte*>(piece.iov_base) + filled, next[0].iov_base,
                  next[0].iov_len);
      filled += next[0].iov_len;
      copied += next[0].iov_len;
      take(next[0].iov_len);
    }
  }
  return copied;
}

void DelayLine::hurry() {
  for (size_t i = next_stamp_; i != stamps_.size(); ++i) stamps_[i].at_ns = 1;
}

void DelayLine::clear() { take(size()); }

}  // namespace uwarp
