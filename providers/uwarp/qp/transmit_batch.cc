// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/transmit_batch.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/bytes.h"
#include "base/crc32c.h"

namespace uwarp {

void TransmitBatch::configure(bool crc) {
  crc_ = crc;
  crc_error_ = 0;
  cramped_ = false;
  first_ = count_ = fpdu_count_ = 0;
  if (!make_room(kFirstRoom)) throw std::bad_alloc();
  restart();
}

// Only while nothing is queued: iovecs point into the arena.
bool TransmitBatch::make_room(const Room& room) {
  const size_t iovec_bytes = room.iovecs * sizeof(iovec);
  const size_t end_bytes = room.fpdus * sizeof(uint32_t);
  auto* fresh = new (std::nothrow) std::byte[iovec_bytes + end_bytes + room.arena_bytes];
  if (fresh == nullptr) return false;
  memory_.reset(fresh);
  iovecs_ = reinterpret_cast<iovec*>(fresh);
  fpdu_ends_ = reinterpret_cast<uint32_t*>(fresh + iovec_bytes);
  arena_ = fresh + iovec_bytes + end_bytes;
  room_ = room;
  return true;
}

void TransmitBatch::restart() {
  // Without memory for it, batches stay small.
  if (std::exchange(cramped_, false)) {
    (void)make_room(full_room());
  } else if (fpdu_count_ > 1 && small_room()) {
    (void)make_room(kRoom);
  }
  arena_used_ = count_ = first_ = bytes_ = sent_ = fpdu_count_ = 0;
  copies_.clear();
}

void TransmitBatch::add_iovec(std::byte* at, size_t size) {
  bytes_ += size;
  if (count_ > first_) {
    iovec& last = iovecs_[count_ - 1];
    if (static_cast<std::byte*>(last.iov_base) + last.iov_len == at) {
      last.iov_len += size;
      return;
    }
  }
  iovecs_[count_++] = {at, size};
}

std::byte* TransmitBatch::begin_fpdu(size_t header_bytes, uint32_t payload) {
  const bool aligned = crc_ && payload > kCrcBlockBytes;
  const size_t needed = kFpduLengthSize + header_bytes + (copied(payload) ? payload : 0) +
                        kFpduTrailerMax + (aligned ? kCacheLineBytes - 1 : 0);
  // A gathered payload takes an iovec per range, and two for what is around it.
  const size_t iovecs = copied(payload) ? 1 : kMaxSge + 2;
  if (room_.arena_bytes - arena_used_ < needed || room_.iovecs - count_ < iovecs) {
    if (arena_used_ != 0) {
      cramped_ = room_.arena_bytes < full_room().arena_bytes;
      return nullptr;
    }
    const Room& enough = needed <= kRoom.arena_bytes ? kRoom : full_room();
    if (needed > enough.arena_bytes || !make_room(enough)) return nullptr;
  }
  frame_ = arena_ + arena_used_;
  if (aligned) frame_ += to_cache_line(frame_ + kFpduLengthSize + header_bytes);
  frame_header_ = kFpduLengthSize + header_bytes;
  frame_payload_ = payload;
  store_be16(frame_, static_cast<uint16_t>(header_bytes + payload));
  return frame_ + kFpduLengthSize;
}

// The payload as it is now, in memory of our own; null if some of it is not there.
std::unique_ptr<std::byte[]> TransmitBatch::copy_payload(BufferList& list, uint64_t offset) const {
  auto copy = std::make_unique_for_overwrite<std::byte[]>(frame_payload_);
  return list.copy_out(offset, copy.get(), frame_payload_) ? std::move(copy) : nullptr;
}

// Large payloads go from where they are, unless that may not be there when the kernel looks.
bool TransmitBatch::add_gathered(BufferList& list, uint64_t offset) {
  std::unique_ptr<std::byte[]> copy;
  if (!list.plain()) [[unlikely]] {
    copy = copy_payload(list, offset);
    if (copy == nullptr) return false;
  }
  add_iovec(frame_, frame_header_);
  if (copy != nullptr) {
    iovecs_[count_++] = {copy.get(), frame_payload_};
    copies_.push_back(std::move(copy));
  } else {
    uint64_t length = frame_payload_;
    count_ += list.describe(offset, length, iovecs_ + count_, room_.iovecs - count_);
  }
  bytes_ += frame_payload_;
  std::byte* at = frame_ + frame_header_;
  const size_t trailer = write_fpdu_trailer(at, ulpdu_bytes(), 0);
  add_iovec(at, trailer);
  arena_used_ = at + trailer - arena_;
  return true;
}

// The CRC of a large payload is taken block by block, of what has just been copied.
bool TransmitBatch::add_copied(BufferList* list, uint64_t offset) {
  uint32_t crc = crc32c_begin();
  const std::byte* covered = frame_;
  std::byte* at = frame_ + frame_header_;
  const auto cover = [&] {
    crc = crc32c_update(crc, covered, at - covered);
    covered = at;
  };
  size_t left = frame_payload_;
  if (left > kCrcBlockBytes) cover();  // so that each block begins with a cache line
  for (; left > kCrcBlockBytes; left -= kCrcBlockBytes) {
    if (!list->copy_out(offset, at, kCrcBlockBytes)) return false;
    at += kCrcBlockBytes;
    offset += kCrcBlockBytes;
    cover();
  }
  if (left > 0 && !list->copy_out(offset, at, left)) return false;
  at += left;
  at += write_fpdu_trailer(at, ulpdu_bytes(), 0) - kFpduCrcSize;
  if (crc_) {
    cover();  // with the pad, zero by now
    store_le32(at, crc32c_end(crc) + std::exchange(crc_error_, 0));
  }
  at += kFpduCrcSize;
  add_iovec(frame_, at - frame_);
  arena_used_ = at - arena_;
  return true;
}

bool TransmitBatch::end_fpdu(BufferList* list, uint64_t offset) {
  const bool added =
      copied(frame_payload_) ? add_copied(list, offset) : add_gathered(*list, offset);
  if (!added) return false;
  fpdu_ends_[fpdu_count_++] = static_cast<uint32_t>(bytes_);
  return true;
}

void TransmitBatch::consume(size_t bytes) {
  sent_ += bytes;
  while (bytes > 0) {
    iovec& piece = iovecs_[first_];
    const size_t here = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + here;
    piece.iov_len -= here;
    bytes -= here;
    if (piece.iov_len == 0) ++first_;
  }
  while (first_ < count_ && iovecs_[first_].iov_len == 0) ++first_;
}

void TransmitBatch::keep_copy(iovec& piece) {
  auto copy = std::make_unique_for_overwrite<std::byte[]>(piece.iov_len);
  std::memcpy(copy.get(), piece.iov_base, piece.iov_len);
  piece.iov_base = copy.get();
  copies_.push_back(std::move(copy));
}

void TransmitBatch::cut() {
  if (empty()) return;
  const uint32_t* ends = fpdu_ends_;
  const uint32_t* end = std::upper_bound(ends, ends + fpdu_count_, sent_);
  const uint32_t begin = end == ends ? 0 : end[-1];
  // Nothing of the next FPDU has gone: it goes with the others.
  const size_t keep = begin == sent_ ? 0 : *end - sent_;
  size_t kept = 0;
  size_t index = first_;
  for (; index < count_ && kept < keep; ++index) {
    iovecs_[index].iov_len = std::min(iovecs_[index].iov_len, keep - kept);
    kept += iovecs_[index].iov_len;
  }
  count_ = index;
  bytes_ = sent_ + keep;
  fpdu_count_ = std::upper_bound(ends, ends + fpdu_count_, sent_) - ends + (keep > 0 ? 1 : 0);
  detach(nullptr, ~uint64_t{0});
}

void TransmitBatch::detach(const std::byte* base, uint64_t length) {
  const auto low = reinterpret_cast<uintptr_t>(base);
  for (size_t i = first_; i < count_; ++i) {
    const auto at = reinterpret_cast<uintptr_t>(iovecs_[i].iov_base);
    const auto arena = reinterpret_cast<uintptr_t>(arena_);
    if (at >= arena && at < arena + room_.arena_bytes) continue;
    const bool hit = at < low ? low - at < iovecs_[i].iov_len : at - low < length;
    if (hit) keep_copy(iovecs_[i]);
  }
}

}  // namespace uwarp
