// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The bytes of the stream that have come and have not been consumed. In a staging buffer during a
// call; between two calls in a small carry, or where they are more in a buffer that is kept.
#pragma once

#include <cstddef>
#include <cstdint>

#include "qp/receive/staging_buffer.h"

namespace uwarp {

class StagedBytes {
 public:
  /// A call begins, with the buffer of its thread.
  void begin(StagingPointer& staging);
  /// It ends. `staging` is null afterwards if it is kept. `closed`: what is left means nothing.
  void end(StagingPointer& staging, bool closed);
  void reset();
  /// Makes room for an FPDU of any size behind the bytes that are here.
  void make_room();

  const std::byte* data() const { return bytes_ + begin_; }
  size_t size() const { return end_ - begin_; }
  void consume(size_t size) { begin_ += size; }
  std::byte* room() { return bytes_ + end_; }
  size_t room_size() const { return kStagingBytes - end_; }
  void add(size_t size) { end_ += size; }
  /// Takes `size` bytes out that begin `offset` behind data().
  void take_out(size_t offset, size_t size);
  /// Between two calls: something is left.
  bool pending() const { return carry_size_ > 0 || kept_ != nullptr; }

 private:
  // Largest control FPDU, and what a header or a held-back tail may leave behind.
  static constexpr size_t kCarryBytes = 128;

  std::byte* bytes_ = nullptr;
  size_t begin_ = 0;
  size_t end_ = 0;
  StagingPointer kept_;
  uint32_t carry_size_ = 0;
  std::byte carry_[kCarryBytes];
};

}  // namespace uwarp
