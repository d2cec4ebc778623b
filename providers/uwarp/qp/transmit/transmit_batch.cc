// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/transmit/transmit_batch.h"

#include <algorithm>
#include <cassert>
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

BatchBuffer* BatchBuffer::make(bool crc) {
  try {
    return new BatchBuffer(crc ? kCrcArenaBytes : kArenaBytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void BatchBuffer::Return::operator()(BatchBuffer* buffer) const {
  thread_own<Spare>().of(buffer->arena_bytes == kCrcArenaBytes).reset(buffer);
}

void TransmitBatch::begin_stream(bool crc) {
  crc_ = crc;
  sent_position_ = 0;
  drop();
}

void TransmitBatch::drop() {
  crc_error_ = 0;
  built_ = {};
  copies_.clear();
  buffer_.reset();
}

bool TransmitBatch::restart() {
  assert(empty());
  built_ = {};
  copies_.clear();
  starved_ = false;
  if (buffer_ != nullptr) return true;
  buffer_.reset(thread_own<Spare>().of(crc_).release());
  if (buffer_ == nullptr) [[unlikely]]
    buffer_.reset(BatchBuffer::make(crc_));
  starved_ = buffer_ == nullptr;
  return !starved_;
}

void TransmitBatch::add_iovec(std::byte* at, size_t size) {
  assert(built_.count < BatchBuffer::kIovecs && size != 0);
  built_.bytes += size;
  if (built_.count > built_.first) {
    iovec& last = buffer_->iovecs[built_.count - 1];
    if (static_cast<std::byte*>(last.iov_base) + last.iov_len == at) {
      last.iov_len += size;
      return;
    }
  }
  buffer_->iovecs[built_.count++] = {at, size};
}

// Large payloads go from where they are, unless that may not be there when the kernel looks.
bool TransmitBatch::add_gathered(const Frame& frame, BufferList& payload, uint64_t offset,
                                 bool own) {
  std::byte* copy = nullptr;
  if (own || !payload.plain()) [[unlikely]] {
    copy = copies_.add(frame.payload_bytes);
    if (copy == nullptr) return starve();
    if (!payload.copy_out(offset, copy, frame.payload_bytes)) return false;
  }
  add_iovec(frame.at, frame.head_bytes);
  if (copy != nullptr) {
    buffer_->iovecs[built_.count++] = {copy, frame.payload_bytes};
  } else {
    uint64_t length = frame.payload_bytes;
    built_.count += payload.describe(offset, length, buffer_->iovecs + built_.count,
                                     BatchBuffer::kIovecs - built_.count);
  }
  assert(built_.count < BatchBuffer::kIovecs);  // there is a place for the trailer
  built_.bytes += frame.payload_bytes;
  std::byte* at = frame.at + frame.head_bytes;
  const size_t trailer = write_fpdu_trailer(at, frame.ulpdu_bytes(), 0);
  add_iovec(at, trailer);
  built_.arena_used = at + trailer - buffer_->arena();
  return true;
}

// The CRC of a large payload is taken block by block, of what has just been copied.
bool TransmitBatch::add_copied(const Frame& frame, BufferList* payload, uint64_t offset) {
  uint32_t crc = crc32c_begin();
  const std::byte* covered = frame.at;
  std::byte* at = frame.at + frame.head_bytes;
  const auto cover = [&] {
    crc = crc32c_update(crc, covered, at - covered);
    covered = at;
  };
  size_t left = frame.payload_bytes;
  if (left > kCrcBlockBytes) cover();  // so that each block begins with a cache line
  for (; left > kCrcBlockBytes; left -= kCrcBlockBytes) {
    if (!payload->copy_out(offset, at, kCrcBlockBytes)) return false;
    at += kCrcBlockBytes;
    offset += kCrcBlockBytes;
    cover();
  }
  if (left > 0 && !payload->copy_out(offset, at, left)) return false;
  at += left;
  at += write_fpdu_trailer(at, frame.ulpdu_bytes(), 0) - kFpduCrcSize;
  if (crc_) {
    cover();  // with the pad, zero by now
    store_le32(at, crc32c_end(crc) + std::exchange(crc_error_, 0));
  }
  at += kFpduCrcSize;
  add_iovec(frame.at, at - frame.at);
  built_.arena_used = at - buffer_->arena();
  return true;
}

void TransmitBatch::consume(size_t bytes) {
  assert(bytes <= pending_bytes());
  built_.sent += bytes;
  sent_position_ += bytes;
  while (bytes > 0) {
    iovec& piece = buffer_->iovecs[built_.first];
    const size_t here = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + here;
    piece.iov_len -= here;
    bytes -= here;
    if (piece.iov_len == 0) ++built_.first;
  }
  end();
}

// A full arena ends the batch; looking at a flag would cost each message an instruction.
bool TransmitBatch::starve() {
  starved_ = true;
  built_.arena_used = buffer_->arena_bytes;
  return false;
}

bool TransmitBatch::cut() {
  if (empty()) return true;
  const uint32_t* ends = buffer_->fpdu_ends;
  const uint32_t* next = std::upper_bound(ends, ends + built_.fpdu_count, built_.sent);
  assert(next != ends + built_.fpdu_count);  // what is pending ends behind what was sent
  const uint32_t begin = next == ends ? 0 : next[-1];
  // Nothing of the next FPDU has gone: it goes with the others.
  const size_t keep = begin == built_.sent ? 0 : *next - built_.sent;
  size_t kept = 0;
  size_t index = built_.first;
  for (; index < built_.count && kept < keep; ++index) {
    size_t& here = buffer_->iovecs[index].iov_len;
    here = std::min(here, keep - kept);
    kept += here;
  }
  built_.count = index;
  built_.bytes = built_.sent + keep;
  built_.fpdu_count =
      std::upper_bound(ends, ends + built_.fpdu_count, built_.sent) - ends + (keep > 0 ? 1 : 0);
  if (!detach(nullptr, ~uint64_t{0})) return false;
  end();
  return true;
}

bool TransmitBatch::lies_in(const iovec& piece, const std::byte* base, uint64_t length) const {
  if (buffer_->has_arena(static_cast<std::byte*>(piece.iov_base))) return false;
  const auto low = reinterpret_cast<uintptr_t>(base);
  const auto at = reinterpret_cast<uintptr_t>(piece.iov_base);
  return at < low ? low - at < piece.iov_len : at - low < length;
}

bool TransmitBatch::refers_to(const std::byte* base, uint64_t length) const {
  return std::ranges::any_of(pending(),
                             [&](const iovec& piece) { return lies_in(piece, base, length); });
}

bool TransmitBatch::detach(const std::byte* base, uint64_t length) {
  for (size_t i = built_.first; i < built_.count; ++i) {
    iovec& piece = buffer_->iovecs[i];
    if (!lies_in(piece, base, length)) continue;
    std::byte* const copy = copies_.add(piece.iov_len);
    if (copy == nullptr) return starve();
    std::memcpy(copy, piece.iov_base, piece.iov_len);
    piece.iov_base = copy;
  }
  return true;
}

}  // namespace uwarp
