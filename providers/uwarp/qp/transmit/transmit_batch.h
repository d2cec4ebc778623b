// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The FPDUs that one send call hands to the kernel: iovecs into an arena (headers, trailers, small
// payloads) and into application memory (large payloads). Frames are built by Transmitter. RFC
// 5044 4.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/ddp/buffer_list.h"
#include "protocol/mpa/fpdu.h"
#include "qp/transmit/batch_buffer.h"
#include "qp/transmit/payload_copies.h"

namespace uwarp {

class TransmitBatch {
 public:
  /// Payloads up to this size are copied beside their header: cheaper than an iovec of their own.
  static constexpr size_t kCopyBytes = 512;
  /// Stop adding when this much is queued: larger calls make nothing faster.
  static constexpr size_t kBytes = 1024 * 1024;

  /// Begins with a stream. Drops what was queued. With CRC on payload is copied too, so that the
  /// CRC stays right if the application changes its buffer meanwhile (requirement 5040-5.5-8).
  void configure(bool crc);

  bool empty() const { return first_ == count_; }
  /// The unsent rest.
  std::span<const iovec> pending() const {
    if (empty()) return {};
    return {room_->iovecs + first_, count_ - first_};
  }
  size_t pending_bytes() const { return bytes_ - sent_; }
  /// Of the whole batch.
  size_t bytes() const { return bytes_; }
  size_t fpdus() const { return fpdu_count_; }
  size_t sent_bytes() const { return sent_; }
  /// Where each FPDU ends; only while something is pending.
  std::span<const uint32_t> fpdu_ends() const { return {room_->fpdu_ends, fpdu_count_}; }

  /// Mostly parts of large messages.
  bool large() const { return bytes_ >= fpdu_count_ * kLargeUlpdu && fpdu_count_ != 0; }

  /// Starts anew in a room of this thread; only when empty(). False: there is no memory for one.
  bool restart();
  /// Gives the room back if nothing is pending.
  void end() {
    if (empty()) room_.reset();
  }
  /// Room for at least one FPDU without payload?
  bool has_room() const { return bytes_ < kBytes && has_place(); }
  /// The same for what is not worth a call of its own.
  bool has_place() const {
    return BatchBuffer::kIovecs - count_ >= 2 && fpdu_count_ < BatchBuffer::kFpdus &&
           room_->arena_bytes - arena_used_ >= kSmallestRoom;
  }

  /// Builds one FPDU: `header_bytes` bytes (DDP header and RDMAP header) are written by the caller
  /// at the returned place; null when the payload does not fit any more. [offset, offset + payload)
  /// of `list` is the payload. Finish with end_fpdu().
  std::byte* begin_fpdu(size_t header_bytes, uint32_t payload);
  /// `own`: payload of any size goes out of memory of the batch. False: the payload's memory is not
  /// there (regions on demand), or the batch is starved(); the FPDU is dropped.
  bool end_fpdu(BufferList* list, uint64_t offset, bool own = false);
  /// There was no memory to restart() with, or for a copy: the batch has no room any more, and what
  /// is next goes into the one after it.
  bool starved() const { return starved_; }

  /// The CRC of the next FPDU will be wrong, if it has one.
  void spoil_next_crc() { crc_error_ = 1; }

  /// `bytes` of pending() have gone; with the last of them end().
  void consume(size_t bytes);
  /// Drops all FPDUs of which nothing has gone yet, and moves what is left of the one that has into
  /// memory of its own: application buffers are not touched from here on. False as for detach().
  [[nodiscard]] bool cut();
  /// Pending bytes lie inside [base, base + length).
  bool refers_to(const std::byte* base, uint64_t length) const;
  /// Moves pending bytes inside [base, base + length) into memory of its own. False: there is not
  /// enough, so what is pending must not go out.
  [[nodiscard]] bool detach(const std::byte* base, uint64_t length);

 private:
  // The CRC covers so much at a time as has just been copied, since it comes from the nearest cache
  // then. Larger payloads begin with a cache line: copy and CRC take up to half as long again
  // where lines are torn.
  static constexpr size_t kCrcBlockBytes = 4096;
  // Largest FPDU without payload: length, untagged header, largest RDMAP header, pad and CRC.
  static constexpr size_t kSmallestRoom = 2 + 18 + 52 + kFpduTrailerMax;

  bool lies_in(const iovec& piece, const std::byte* base, uint64_t length) const;
  void clear();
  void add_iovec(std::byte* at, size_t size);
  bool keep_copy(iovec& piece);
  bool starve();
  bool copied(uint32_t payload) const { return crc_ || payload <= kCopyBytes; }
  size_t ulpdu_bytes() const { return frame_header_ - kFpduLengthSize + frame_payload_; }
  bool add_copied(BufferList* list, uint64_t offset);
  [[gnu::noinline]] bool add_gathered(BufferList& list, uint64_t offset, bool own);

  BatchBuffer::Borrowed room_;  // null unless a batch is being built or sent
  size_t arena_used_ = 0;
  bool crc_ = false;
  uint32_t crc_error_ = 0;  // added to the next CRC
  size_t count_ = 0;        // iovecs in use
  size_t first_ = 0;        // first with unsent bytes
  size_t bytes_ = 0;        // queued in all
  size_t sent_ = 0;         // gone
  size_t fpdu_count_ = 0;
  // FPDU being built.
  std::byte* frame_ = nullptr;
  size_t frame_header_ = 0;
  uint32_t frame_payload_ = 0;
  bool starved_ = false;
  PayloadCopies copies_;
};

}  // namespace uwarp
