// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Memory that a batch of FPDUs is built in. Belongs to the thread that sends, not to the queue
// pair, so that many queue pairs share what is in the cache already; one keeps it only while its
// socket has not taken the whole batch.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/cache_line.h"
#include "base/limits.h"
#include "protocol/mpa/fpdu.h"

namespace uwarp {

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
    void operator()(BatchBuffer* room) const;
  };
  using Borrowed = std::unique_ptr<BatchBuffer, Return>;
  /// The calling thread's own, or another if that is lent. Null without memory for it.
  static Borrowed borrow(bool crc);

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

}  // namespace uwarp
