// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Memory for frames, each of which is one message of a trunk: datagrams on their way to a peer are
// collected in them, and what comes from one is read into them. Shared by all trunks of the
// process, so that idle ones have none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/limits.h"
#include "base/spinlock.h"
#include "memory/region_table.h"
#include "protocol/ddp/segment.h"
#include "protocol/wire/datagram_header.h"

namespace uwarp {

/// Room for two of the largest datagrams, or for some hundred small ones.
inline constexpr size_t kFrameBytes = 2 * (DatagramHeader::kWireSize + kMaxDatagramBytes);

struct Frame {
  bool has_space(const DatagramHeader& header) const {
    return size + DatagramHeader::kWireSize + header.payload_bytes <= kFrameBytes;
  }
  /// Copies a datagram for which there is room behind the others. False: some memory of the payload
  /// is not there.
  bool append(const DatagramHeader& header, BufferList& payload) {
    std::byte* const to = bytes + size;
    if (!payload.copy_out(0, to + DatagramHeader::kWireSize, header.payload_bytes)) return false;
    header.encode(to);
    size += static_cast<uint32_t>(DatagramHeader::kWireSize + header.payload_bytes);
    ++datagrams;
    return true;
  }

  std::byte* bytes = nullptr;  // kFrameBytes of them
  uint32_t lkey = 0;
  uint32_t size = 0;       // of what is in use
  uint32_t datagrams = 0;  // ... and how many they are
  uint32_t chunk = 0;      // of the pool
  Frame* next = nullptr;
};

/// Frames in the order in which they are to go, or have gone.
class FrameQueue {
 public:
  bool empty() const { return first_ == nullptr; }
  size_t size() const { return size_; }
  Frame& front() { return *first_; }
  Frame& back() { return *last_; }
  void push(Frame& frame) {
    frame.next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = &frame;
    last_ = &frame;
    ++size_;
  }
  Frame& pop() {
    Frame& frame = *first_;
    first_ = frame.next;
    --size_;
    return frame;
  }

 private:
  Frame* first_ = nullptr;
  Frame* last_ = nullptr;
  size_t size_ = 0;
};

/// Any thread; its lock is a leaf. Memory comes and goes in chunks of half a megabyte: a chunk
/// whose frames have all been given back goes back to the system, but for one.
class FramePool {
 public:
  static constexpr size_t kFramesPerChunk = 64;
  /// 34 MB: what a thousand peers may have on their way at a time.
  static constexpr size_t kMostChunks = 64;
  static constexpr size_t kMostFrames = kMostChunks * kFramesPerChunk;
  /// The last quarter is for trunks that hold fewer than this: those whose peers take nothing do
  /// not keep all frames from others.
  static constexpr size_t kFewFrames = 4;

  explicit FramePool(RegionTable& regions) : regions_(regions) {}

  /// Where the frames are registered.
  ProtectionDomain& domain() { return domain_; }
  /// An empty frame for a trunk that holds `held` already; null without memory for one, or when
  /// there are none for it.
  Frame* take(size_t held = 0);
  void give_back(Frame& frame);
  void give_back(FrameQueue frames);
  /// Chunks that there are.
  size_t chunks();

 private:
  struct Chunk {
    Chunk(FramePool& pool, uint32_t place);
    ~Chunk();
    Chunk(const Chunk&) = delete;
    Chunk& operator=(const Chunk&) = delete;

    RegionTable& regions;
    std::byte* memory;  // mapped, so that it goes back to the system and not to malloc()
    MemoryRegion* region = nullptr;
    std::array<Frame, kFramesPerChunk> frames;
    Frame* free = nullptr;
    size_t taken = 0;
  };
  bool grow_locked() REQUIRES(lock_);

  RegionTable& regions_;
  ProtectionDomain domain_{.own = true};
  SpinLock lock_;
  std::array<std::unique_ptr<Chunk>, kMostChunks> chunks_ GUARDED_BY(lock_);
  uint64_t with_free_ GUARDED_BY(lock_) = 0;  // a bit for each chunk with free frames
  uint64_t unused_ GUARDED_BY(lock_) = 0;     // ... all of whose frames are free: one at most
  size_t taken_ GUARDED_BY(lock_) = 0;        // frames
};
static_assert(FramePool::kMostChunks == 64 && FramePool::kMostChunks == kMaxOwnMr);

}  // namespace uwarp
