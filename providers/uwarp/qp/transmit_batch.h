// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The FPDUs that one send call hands to the kernel: iovecs into an arena (headers, trailers, small
// payloads) and into application memory (large payloads). Frames are built by Transmitter. RFC
// 5044 4.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/cache_line.h"
#include "ddp/buffer_list.h"
#include "mpa/fpdu.h"

namespace uwarp {

class TransmitBatch {
 public:
  /// What a batch may hold. The arena is for headers and small payloads.
  struct Room {
    size_t arena_bytes;
    size_t iovecs;
    size_t fpdus;
  };
  /// Some 256 messages of 8 octets, or kBytes in FPDUs of the largest size, of which each takes two
  /// iovecs; the last one needs room for as many pieces as a payload may have.
  static constexpr Room kRoom{8192, 2 * 16 + kMaxSge + 8, 256};
  /// With CRC on the payload is copied too, so that the CRC holds whatever the application does to
  /// its buffer meanwhile (requirement 5040-5.5-8): eight FPDUs of the largest size. Of a stream
  /// whose messages need it.
  static constexpr Room kCrcRoom{8 * (kFpduSizeMax + kCacheLineBytes), 64, 256};
  /// Of a stream that has never had more than a message at a time to send: a small one and a
  /// gathered one fit.
  static constexpr Room kFirstRoom{512, kMaxSge + 8, 16};
  /// Payloads up to this size are copied beside their header: cheaper than an iovec of their own.
  static constexpr size_t kCopyBytes = 512;
  /// Stop adding when this much is queued: larger calls make nothing faster.
  static constexpr size_t kBytes = 1024 * 1024;

  /// Sets up the arena for a stream. Drops whatever was queued.
  void configure(bool crc);

  bool empty() const { return first_ == count_; }
  /// The unsent rest.
  std::span<const iovec> pending() const { return {iovecs_ + first_, count_ - first_}; }
  size_t pending_bytes() const { return bytes_ - sent_; }
  /// Of the whole batch.
  size_t bytes() const { return bytes_; }
  size_t fpdus() const { return fpdu_count_; }
  size_t sent_bytes() const { return sent_; }
  /// Where each FPDU ends.
  std::span<const uint32_t> fpdu_ends() const { return {fpdu_ends_, fpdu_count_}; }

  /// Mostly parts of large messages.
  bool large() const { return bytes_ >= fpdu_count_ * kLargeUlpdu && fpdu_count_ != 0; }

  /// Starts anew; only when empty().
  void restart();
  /// Room for at least one FPDU without payload?
  bool has_room() const { return bytes_ < kBytes && has_place(); }
  /// The same for what is not worth a call of its own.
  bool has_place() const {
    return room_.iovecs - count_ >= 2 && fpdu_count_ < room_.fpdus &&
           room_.arena_bytes - arena_used_ >= kSmallestRoom;
  }

  /// Builds one FPDU: `header_bytes` octets (DDP header and RDMAP header) are written by the caller
  /// at the returned place; null when the payload does not fit any more. [offset, offset + payload)
  /// of `list` is the payload. Finish with end_fpdu().
  std::byte* begin_fpdu(size_t header_bytes, uint32_t payload);
  /// False: the payload's memory is not there (regions on demand); the FPDU is dropped.
  bool end_fpdu(BufferList* list, uint64_t offset);

  /// The CRC of the next FPDU will be wrong, if it has one.
  void spoil_next_crc() { crc_error_ = 1; }

  /// `bytes` of pending() have gone.
  void consume(size_t bytes);
  /// Drops all FPDUs of which nothing has gone yet, and moves what is left of the one that has into
  /// memory of its own: application buffers are not touched from here on.
  void cut();
  /// Moves pending octets inside [base, base + length) into memory of its own.
  void detach(const std::byte* base, uint64_t length);

 private:
  // The CRC covers so much at a time as has just been copied, since it comes from the nearest cache
  // then. Larger payloads begin with a cache line: copy and CRC take up to half as long again
  // where lines are torn.
  static constexpr size_t kCrcBlockBytes = 4096;
  // Largest FPDU without payload: length, untagged header, largest RDMAP header, pad and CRC.
  static constexpr size_t kSmallestRoom = 2 + 18 + 52 + kFpduTrailerMax;

  const Room& full_room() const { return crc_ ? kCrcRoom : kRoom; }
  bool small_room() const { return room_.fpdus == kFirstRoom.fpdus; }
  [[gnu::noinline]] bool make_room(const Room& room);
  void add_iovec(std::byte* at, size_t size);
  void keep_copy(iovec& piece);
  [[gnu::noinline]] std::unique_ptr<std::byte[]> copy_payload(BufferList& list,
                                                              uint64_t offset) const;
  bool copied(uint32_t payload) const { return crc_ || payload <= kCopyBytes; }
  size_t ulpdu_bytes() const { return frame_header_ - kFpduLengthSize + frame_payload_; }
  bool add_copied(BufferList* list, uint64_t offset);
  [[gnu::noinline]] bool add_gathered(BufferList& list, uint64_t offset);

  std::unique_ptr<std::byte[]> memory_;  // iovecs, ends of FPDUs, arena
  Room room_{};
  iovec* iovecs_ = nullptr;
  uint32_t* fpdu_ends_ = nullptr;
  std::byte* arena_ = nullptr;
  size_t arena_used_ = 0;
  bool crc_ = false;
  bool cramped_ = false;    // the arena was full before there was nothing more to send
  uint32_t crc_error_ = 0;  // added to the next CRC
  size_t count_ = 0;        // iovecs in use
  size_t first_ = 0;        // first with unsent octets
  size_t bytes_ = 0;        // queued in all
  size_t sent_ = 0;         // gone
  size_t fpdu_count_ = 0;
  // FPDU being built.
  std::byte* frame_ = nullptr;
  size_t frame_header_ = 0;
  uint32_t frame_payload_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> copies_;
};

}  // namespace uwarp
