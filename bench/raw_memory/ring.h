// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// A byte ring in memory that two processes share: one writes, the other one reads, both spin.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace uwarp::bench {

/// Lies in zeroed shared memory. Positions count bytes since the start.
struct Ring {
  static constexpr size_t kBytes = 1 << 20;

  alignas(64) std::atomic<uint64_t> written;
  std::atomic<bool> ended;  // nothing comes behind what is written
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) std::atomic<uint64_t> pulled;  // messages that the reader has copied for itself
  alignas(64) char bytes[kBytes];
};

class RingWriter {
 public:
  /// The reader is shown at most `piece` bytes at once.
  RingWriter(Ring& ring, size_t piece) : ring_(ring), piece_(piece) {}

  void write(const char* bytes, size_t size) {
    while (size > 0) {
      const size_t offset = written_ % Ring::kBytes;
      const size_t part =
          std::min({size, piece_, room(std::min(size, piece_)), Ring::kBytes - offset});
      std::memcpy(ring_.bytes + offset, bytes, part);
      ring_.written.store(written_ += part, std::memory_order_release);
      bytes += part;
      size -= part;
    }
  }
  void end() { ring_.ended.store(true, std::memory_order_release); }
  bool all_read() const { return ring_.read.load(std::memory_order_acquire) == written_; }

 private:
  /// Waits for room if there is none. The reader's position, which is in its cache, is looked at
  /// only if there was less than `wanted`.
  size_t room(size_t wanted) {
    size_t room = Ring::kBytes - static_cast<size_t>(written_ - read_);
    while (room < wanted) {
      read_ = ring_.read.load(std::memory_order_acquire);
      room = Ring::kBytes - static_cast<size_t>(written_ - read_);
      if (room > 0) break;
    }
    return room;
  }

  Ring& ring_;
  const size_t piece_;
  uint64_t written_ = 0;
  uint64_t read_ = 0;  // as last seen
};

class RingReader {
 public:
  explicit RingReader(Ring& ring) : ring_(ring) {}

  /// Waits for bytes and copies up to `size` of them. 0 at the end.
  size_t read_some(char* bytes, size_t size) {
    while (written_ == read_) {
      const bool ended = ring_.ended.load(std::memory_order_acquire);
      written_ = ring_.written.load(std::memory_order_acquire);
      if (ended && written_ == read_) return 0;
    }
    const size_t offset = read_ % Ring::kBytes;
    const size_t part = std::min(
        {size, static_cast<size_t>(written_ - read_), static_cast<size_t>(Ring::kBytes - offset)});
    std::memcpy(bytes, ring_.bytes + offset, part);
    ring_.read.store(read_ += part, std::memory_order_release);
    return part;
  }
  /// False at the end.
  bool read(char* bytes, size_t size) {
    for (size_t done = 0; done < size;) {
      const size_t part = read_some(bytes + done, size - done);
      if (part == 0) return false;
      done += part;
    }
    return true;
  }

 private:
  Ring& ring_;
  uint64_t written_ = 0;  // as last seen
  uint64_t read_ = 0;
};

}  // namespace uwarp::bench
