// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/transmit/transmit_batch.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/thread_own.h"

namespace uwarp {

namespace {

/// The buffers of a thread that no queue pair has borrowed.
struct Spare {
  std::unique_ptr<BatchBuffer> plain;
  std::unique_ptr<BatchBuffer> with_crc;

  std::unique_ptr<BatchBuffer>& of(bool crc) { return crc ? with_crc : plain; }
};

}  // namespace

BatchBuffer::Borrowed BatchBuffer::borrow(bool crc) {
  auto& spare = thread_own<Spare>().of(crc);
  if (spare != nullptr) [[likely]]
    return Borrowed(spare.release());
  try {
    return Borrowed(new BatchBuffer(crc ? kCrcArenaBytes : kArenaBytes));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void BatchBuffer::Return::operator()(BatchBuffer* room) const {
  thread_own<Spare>().of(room->arena_bytes == kCrcArenaBytes).reset(room);
}

void TransmitBatch::configure(bool crc) {
  crc_ = crc;
  crc_error_ = 0;
  clear();
  room_.reset();
}

void TransmitBatch::clear() {
  arena_used_ = count_ = first_ = bytes_ = sent_ = fpdu_count_ = 0;
  copies_.clear();
}

bool TransmitBatch::restart() {
  clear();
  if (room_ == nullptr) room_ = BatchBuffer::borrow(crc_);
  starved_ = room_ == nullptr;
  return !starved_;
}

void TransmitBatch::add_iovec(std::byte* at, size_t size) {
  bytes_ += size;
  if (count_ > first_) {
    iovec& last = room_->iovecs[count_ - 1];
    if (static_cast<std::byte*>(last.iov_base) + last.iov_len == at) {
      last.iov_len += size;
      return;
    }
  }
  room_->iovecs[count_++] = {at, size};
}

std::byte* TransmitBatch::begin_fpdu(size_t header_bytes, uint32_t payload) {
  const bool aligned = crc_ && payload > kCrcBlockBytes;
  const size_t needed = kFpduLengthSize + header_bytes + (copied(payload) ? payload : 0) +
                        kFpduTrailerMax + (aligned ? kCacheLineBytes - 1 : 0);
  // A gathered payload takes an iovec per range, and two for what is around it.
  const size_t iovecs = copied(payload) ? 1 : kMaxSge + 2;
  if (room_->arena_bytes - arena_used_ < needed || BatchBuffer::kIovecs - count_ < iovecs)
    return nullptr;
  frame_ = room_->arena() + arena_used_;
  if (aligned) frame_ += to_cache_line(frame_ + kFpduLengthSize + header_bytes);
  frame_header_ = kFpduLengthSize + header_bytes;
  frame_payload_ = payload;
  store_be16(frame_, static_cast<uint16_t>(header_bytes + payload));
  return frame_ + kFpduLengthSize;
}

// Large payloads go from where they are, unless that may not be there when the kernel looks.
bool TransmitBatch::add_gathered(BufferList& list, uint64_t offset, bool own) {
  std::byte* copy = nullptr;
  if (own || !list.plain()) [[unlikely]] {
    copy = copies_.add(frame_payload_);
    if (copy == nullptr) return starve();
    if (!list.copy_out(offset, copy, frame_payload_)) return false;
  }
  add_iovec(frame_, frame_header_);
  if (copy != nullptr) {
    room_->iovecs[count_++] = {copy, frame_payload_};
  } else {
    uint64_t length = frame_payload_;
    count_ += list.describe(offset, length, room_->iovecs + count_, BatchBuffer::kIovecs - count_);
  }
  bytes_ += frame_payload_;
  std::byte* at = frame_ + frame_header_;
  const size_t trailer = write_fpdu_trailer(at, ulpdu_bytes(), 0);
  add_iovec(at, trailer);
  arena_used_ = at + trailer - room_->arena();
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
  arena_used_ = at - room_->arena();
  return true;
}

bool TransmitBatch::end_fpdu(BufferList* list, uint64_t offset, bool own) {
  const bool added =
      copied(frame_payload_) ? add_copied(list, offset) : add_gathered(*list, offset, own);
  if (!added) return false;
  room_->fpdu_ends[fpdu_count_++] = static_cast<uint32_t>(bytes_);
  return true;
}

void TransmitBatch::consume(size_t bytes) {
  sent_ += bytes;
  while (bytes > 0) {
    iovec& piece = room_->iovecs[first_];
    const size_t here = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + here;
    piece.iov_len -= here;
    bytes -= here;
    if (piece.iov_len == 0) ++first_;
  }
  while (first_ < count_ && room_->iovecs[first_].iov_len == 0) ++first_;
  end();
}

bool TransmitBatch::keep_copy(iovec& piece) {
  std::byte* const copy = copies_.add(piece.iov_len);
  if (copy == nullptr) return starve();
  std::memcpy(copy, piece.iov_base, piece.iov_len);
  piece.iov_base = copy;
  return true;
}

// A full arena ends the batch; looking at a flag would cost each message an instruction.
bool TransmitBatch::starve() {
  starved_ = true;
  arena_used_ = room_->arena_bytes;
  return false;
}

bool TransmitBatch::cut() {
  if (empty()) return true;
  const uint32_t* ends = room_->fpdu_ends;
  const uint32_t* next = std::upper_bound(ends, ends + fpdu_count_, sent_);
  const uint32_t begin = next == ends ? 0 : next[-1];
  // Nothing of the next FPDU has gone: it goes with the others.
  const size_t keep = begin == sent_ ? 0 : *next - sent_;
  size_t kept = 0;
  size_t index = first_;
  for (; index < count_ && kept < keep; ++index) {
    size_t& here = room_->iovecs[index].iov_len;
    here = std::min(here, keep - kept);
    kept += here;
  }
  count_ = index;
  bytes_ = sent_ + keep;
  fpdu_count_ = std::upper_bound(ends, ends + fpdu_count_, sent_) - ends + (keep > 0 ? 1 : 0);
  if (!detach(nullptr, ~uint64_t{0})) return false;
  end();
  return true;
}

bool TransmitBatch::lies_in(const iovec& piece, const std::byte* base, uint64_t length) const {
  if (room_->has_arena(static_cast<std::byte*>(piece.iov_base))) return false;
  const auto low = reinterpret_cast<uintptr_t>(base);
  const auto at = reinterpret_cast<uintptr_t>(piece.iov_base);
  return at < low ? low - at < piece.iov_len : at - low < length;
}

bool TransmitBatch::refers_to(const std::byte* base, uint64_t length) const {
  return std::ranges::any_of(pending(),
                             [&](const iovec& piece) { return lies_in(piece, base, length); });
}

bool TransmitBatch::detach(const std::byte* base, uint64_t length) {
  for (size_t i = first_; i < count_; ++i) {
    iovec& piece = room_->iovecs[i];
    if (lies_in(piece, base, length) && !keep_copy(piece)) return false;
  }
  return true;
}

}  // namespace uwarp
