// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Where bytes of the stream land that have no place of their own yet: headers, small messages,
// whole FPDUs when the CRC is on. Belongs to the thread that progresses, not to the queue pair; a
// queue pair keeps one only while it holds more unconsumed bytes than fit its carry.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>

#include "base/limits.h"
#include "protocol/wire/ddp_headers.h"

namespace uwarp {

/// Two FPDUs of the largest size (2 + 65535 + 3 + 4 bytes) and some headers.
inline constexpr size_t kStagingBytes = 2 * 65544 + 4096;

struct StagingBuffer {
  alignas(64) std::byte bytes[kStagingBytes];
  /// The window of the call at hand: the segment under way and its end; for each of a run its
  /// staged bytes and its place.
  static constexpr size_t kIovecs = kMaxSge + 2 + 2 * DdpControl::kMostFollowing;
  iovec iovecs[kIovecs];
};
using StagingPointer = std::unique_ptr<StagingBuffer>;

}  // namespace uwarp
