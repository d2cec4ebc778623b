// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Memory that messages are sent from, or received into.
#pragma once

#include <cstddef>
#include <vector>

namespace uwarp::bench {

/// Buffers of one size that are used in turn. With more of them than a cache holds, each message
/// comes from memory and goes there.
class Buffers {
 public:
  Buffers(size_t size, size_t count) : size_(size), bytes_(size * count, 'x') {}

  size_t size() const { return size_; }
  /// The next buffer, of size() bytes.
  char* next() {
    char* const buffer = bytes_.data() + offset_;
    offset_ += size_;
    if (offset_ == bytes_.size()) offset_ = 0;
    return buffer;
  }

 private:
  const size_t size_;
  size_t offset_ = 0;
  std::vector<char> bytes_;
};

}  // namespace uwarp::bench
