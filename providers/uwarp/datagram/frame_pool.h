// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Memory in which datagrams are collected on their way to a peer: one frame is one message of a
// trunk. Shared by all trunks of the process, so that idle ones have none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/spinlock.h"
#include "memory/region_table.h"
#include "protocol/ddp/buffer_list.h"
#include "protocol/wire/datagram_header.h"

namespace uwarp {

/// Room for two of the largest datagrams, or for some hundred small ones.
inline constexpr size_t kFrameBytes = 2 * (DatagramHeader::kWireSize + kMaxDatagramBytes);

struct Frame {
  bool has_room(const DatagramHeader& header) const {
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

/// Any thread; its lock is a leaf. Keeps its memory for as long as it lives.
class FramePool {
 public:
  explicit FramePool(RegionTable& regions) : regions_(regions) {}
  ~FramePool();
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  /// Where the frames are registered.
  ProtectionDomain& domain() { return domain_; }
  /// An empty frame; null without memory for one, or when kMostChunks are in use.
  Frame* take();
  void give_back(Frame& frame);
  void give_back(FrameQueue frames);

 private:
  static constexpr size_t kFramesPerChunk = 64;
  /// 34 MB: what a thousand peers may have on their way at a time.
  static constexpr size_t kMostChunks = 64;
  struct Chunk {
    std::unique_ptr<std::byte[]> memory;
    std::unique_ptr<Frame[]> frames;
    MemoryRegion* region = nullptr;
  };
  bool grow();

  RegionTable& regions_;
  ProtectionDomain domain_;
  SpinLock lock_;
  Frame* free_ = nullptr;
  std::vector<Chunk> chunks_;
};

}  // namespace uwarp
