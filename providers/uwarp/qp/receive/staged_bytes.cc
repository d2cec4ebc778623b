// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/receive/staged_bytes.h"

#include <cstring>
#include <utility>

#include "protocol/mpa/fpdu.h"

namespace uwarp {

void StagedBytes::begin(StagingPointer& staging) {
  if (kept_) {
    bytes_ = kept_->bytes;
    return;
  }
  bytes_ = staging->bytes;
  std::memcpy(bytes_, carry_, carry_size_);
  begin_ = 0;
  end_ = carry_size_;
}

// Only to read: a held stream is resumed again and again, each time for a few messages of many.
void StagedBytes::make_room() {
  if (begin_ == 0 || room_size() >= kFpduSizeMax) return;
  std::memmove(bytes_, data(), size());
  end_ -= begin_;
  begin_ = 0;
}

void StagedBytes::end(StagingPointer& staging, bool closed) {
  const size_t left = closed ? 0 : size();
  if (left > kCarryBytes) {
    if (!kept_) kept_ = std::move(staging);
    return;
  }
  std::memcpy(carry_, data(), left);
  carry_size_ = static_cast<uint32_t>(left);
  begin_ = end_ = 0;
  if (kept_ && !staging) staging = std::move(kept_);
  kept_.reset();
}

void StagedBytes::reset() {
  kept_.reset();
  begin_ = end_ = 0;
  carry_size_ = 0;
}

void StagedBytes::take_out(size_t offset, size_t size) {
  end_ -= size;
  std::byte* const at = bytes_ + begin_ + offset;
  std::memmove(at, at + size, this->size() - offset);
}

}  // namespace uwarp
