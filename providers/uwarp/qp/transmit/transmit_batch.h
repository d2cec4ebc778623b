// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The FPDUs that one send call hands to the kernel: iovecs into an arena (headers, trailers, small
// payloads) and into application memory (large payloads). Frames are built by Transmitter.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "base/cache_line.h"
#include "base/limits.h"
#include "protocol/ddp/segment.h"
#include "protocol/mpa/fpdu.h"

namespace uwarp {

// Memory that a batch of FPDUs is built in. Belongs to the thread that sends, not to the queue
// pair, so that many queue pairs share what is in the cache already; one keeps it only while its
// socket has not taken the whole batch.

/// Some 256 messages of 8 bytes, or sixteen FPDUs of the largest size, of which each takes two
/// iovecs; the last one needs room for as many pieces as a payload may have.
class BatchBuffer {
 public:
  static constexpr size_t kIovecs = 2 * 16 + kMaxSge + 8;
  static constexpr size_t kFpdus = 256;
  /// For headers and small payloads ...
  static constexpr size_t kArenaBytes = 8192;
  /// ... and with CRC on for all of them: eight FPDUs of the largest size.
  static constexpr size_t kCrcArenaBytes = 8 * (kFpduSizeMax + kCacheLineBytes);

  /// Gives back what was borrowed to the thread that does so.
  struct Return {
    void operator()(BatchBuffer* buffer) const;
  };
  using Borrowed = std::unique_ptr<BatchBuffer, Return>;
  /// Null without memory for it.
  [[gnu::noinline, gnu::cold]] static BatchBuffer* make(bool crc);

  BatchBuffer(const BatchBuffer&) = delete;
  BatchBuffer& operator=(const BatchBuffer&) = delete;

  bool has_arena(const std::byte* at) const { return at >= arena() && at < arena() + arena_bytes; }
  std::byte* arena() const { return arena_.get(); }

  const size_t arena_bytes;
  iovec iovecs[kIovecs];
  uint32_t fpdu_ends[kFpdus];

 private:
  explicit BatchBuffer(size_t bytes)
      : arena_bytes(bytes), arena_(std::make_unique_for_overwrite<std::byte[]>(bytes)) {}

  const std::unique_ptr<std::byte[]> arena_;
};

// Copies of payload that live as long as the batch whose bytes they are. Each is one allocation,
// and none throws: a thread that needs a copy holds locks and has work half done.
class PayloadCopies {
 public:
  PayloadCopies() = default;
  ~PayloadCopies() { clear(); }
  PayloadCopies(const PayloadCopies&) = delete;
  PayloadCopies& operator=(const PayloadCopies&) = delete;

  /// Room for `size` bytes; null without memory for it.
  std::byte* add(size_t size) {
    void* const memory = ::operator new(sizeof(Head) + size, std::nothrow);
    if (memory == nullptr) return nullptr;
    first_ = new (memory) Head{first_};
    return reinterpret_cast<std::byte*>(first_ + 1);
  }
  void clear() {
    while (first_ != nullptr) ::operator delete(std::exchange(first_, first_->next));
  }

 private:
  struct alignas(std::max_align_t) Head {
    Head* next;
  };
  Head* first_ = nullptr;
};

class TransmitBatch {
 public:
  /// Payloads up to this size are copied beside their header: cheaper than an iovec of their own.
  static constexpr size_t kCopyBytes = 512;
  /// Stop adding when this much is queued: larger calls make nothing faster.
  static constexpr size_t kBytes = 1024 * 1024;

  /// Begins a stream. With CRC on payload is copied too, so that the CRC stays right if the
  /// application changes its buffer meanwhile. RFC 5040-5.5-8.
  void begin_stream(bool crc);
  /// What is built and has not gone never will.
  void drop();

  bool empty() const { return built_.first == built_.count; }
  /// The unsent rest.
  std::span<const iovec> pending() const {
    return {empty() ? nullptr : buffer_->iovecs + built_.first, built_.count - built_.first};
  }
  size_t pending_bytes() const { return built_.bytes - built_.sent; }
  /// Of the whole batch.
  size_t bytes() const { return built_.bytes; }
  size_t fpdus() const { return built_.fpdu_count; }
  size_t sent_bytes() const { return built_.sent; }
  /// Bytes of the stream that have gone, and those that are built.
  uint64_t sent_position() const { return sent_position_; }
  uint64_t built_position() const { return sent_position_ + pending_bytes(); }
  /// Where each FPDU ends; only while something is pending.
  std::span<const uint32_t> fpdu_ends() const { return {buffer_->fpdu_ends, built_.fpdu_count}; }

  /// Mostly parts of large messages.
  bool large() const {
    return built_.bytes >= built_.fpdu_count * kLargeUlpdu && built_.fpdu_count != 0;
  }

  /// Starts anew in a room of this thread; only when empty(). False: there is no memory for one.
  bool restart();
  /// Gives the room back if nothing is pending.
  void end() {
    if (empty()) buffer_.reset();
  }
  /// Room for at least one FPDU without payload? `left`: bytes of the message under way, of which
  /// the last few are worth a place in a batch that is full otherwise: a message of 64 KiB has a
  /// second segment of some twenty bytes.
  bool has_space(uint64_t left = ~uint64_t{0}) const {
    return (built_.bytes < kBytes || left <= kCopyBytes) &&
           BatchBuffer::kIovecs - built_.count >= 2 && built_.fpdu_count < BatchBuffer::kFpdus &&
           buffer_->arena_bytes - built_.arena_used >= kSmallestSpace;
  }

  /// What became of an FPDU: kFault when its payload is not there (regions on demand).
  enum class Built : uint8_t { kNoSpace, kDone, kFault };
  /// Adds an FPDU: `encode(at)` writes `header_bytes` bytes (DDP header and RDMAP header) at `at`.
  /// Behind them go the `size` bytes at `offset` of `payload`; `own`: out of memory of the batch.
  template <typename Encode>
  Built append(size_t header_bytes, const Encode& encode, BufferList* payload = nullptr,
               uint64_t offset = 0, uint32_t size = 0, bool own = false) {
    const bool copied = crc_ || size <= kCopyBytes;
    const bool aligned = crc_ && size > kCrcBlockBytes;
    const size_t head = kFpduLengthSize + header_bytes;
    const size_t needed =
        head + (copied ? size : 0) + kFpduTrailerMax + (aligned ? kCacheLineBytes - 1 : 0);
    // A gathered payload takes an iovec per range, and two for what is around it.
    const size_t iovecs = copied ? 1 : kMaxSge + 2;
    if (buffer_->arena_bytes - built_.arena_used < needed ||
        BatchBuffer::kIovecs - built_.count < iovecs)
      return Built::kNoSpace;
    Frame frame{buffer_->arena() + built_.arena_used, head, size};
    if (aligned) frame.at += to_cache_line(frame.at + head);
    store_be16(frame.at, static_cast<uint16_t>(header_bytes + size));  // ULPDU: RFC 5044-4.1-a
    encode(frame.at + kFpduLengthSize);
    if (!(copied ? add_copied(frame, payload, offset) : add_gathered(frame, *payload, offset, own)))
        [[unlikely]]
      return starved_ ? Built::kNoSpace : Built::kFault;
    assert(built_.arena_used <= buffer_->arena_bytes && built_.fpdu_count < BatchBuffer::kFpdus);
    buffer_->fpdu_ends[built_.fpdu_count++] = static_cast<uint32_t>(built_.bytes);
    return Built::kDone;
  }
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
  static constexpr size_t kSmallestSpace = 2 + 18 + 52 + kFpduTrailerMax;

  /// An FPDU that is being built, in the arena.
  struct Frame {
    std::byte* at;
    size_t head_bytes;  // length field and headers
    uint32_t payload_bytes;

    size_t ulpdu_bytes() const { return head_bytes - kFpduLengthSize + payload_bytes; }
  };

  bool lies_in(const iovec& piece, const std::byte* base, uint64_t length) const;
  void add_iovec(std::byte* at, size_t size);
  bool starve();
  bool add_copied(const Frame& frame, BufferList* payload, uint64_t offset);
  [[gnu::noinline]] bool add_gathered(const Frame& frame, BufferList& payload, uint64_t offset,
                                      bool own);

  BatchBuffer::Borrowed buffer_;  // null unless a batch is being built or sent
  bool crc_ = false;
  uint32_t crc_error_ = 0;  // added to the next CRC
  struct {
    size_t arena_used = 0;
    size_t count = 0;  // iovecs in use
    size_t first = 0;  // ... the first of them with unsent bytes
    size_t bytes = 0;
    size_t sent = 0;
    size_t fpdu_count = 0;
  } built_;
  bool starved_ = false;
  uint64_t sent_position_ = 0;
  PayloadCopies copies_;
};

}  // namespace uwarp
