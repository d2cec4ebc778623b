// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "datagram/frame_pool.h"

#include <mutex>
#include <new>

namespace uwarp {

FramePool::~FramePool() {
  for (Chunk& chunk : chunks_) {
    (void)regions_.invalidate(*chunk.region);
    regions_.release(*chunk.region);
  }
}

Frame* FramePool::take() {
  const std::lock_guard guard(lock_);
  if (free_ == nullptr && !grow()) [[unlikely]]
    return nullptr;
  Frame* const frame = free_;
  free_ = frame->next;
  frame->size = frame->datagrams = 0;
  return frame;
}

void FramePool::give_back(Frame& frame) {
  const std::lock_guard guard(lock_);
  frame.next = free_;
  free_ = &frame;
}

void FramePool::give_back(FrameQueue frames) {
  while (!frames.empty()) give_back(frames.pop());
}

bool FramePool::grow() {
  if (chunks_.size() == kMostChunks) return false;
  try {
    chunks_.reserve(kMostChunks);
    Chunk chunk;
    chunk.memory = std::make_unique_for_overwrite<std::byte[]>(kFramesPerChunk * kFrameBytes);
    chunk.frames = std::make_unique<Frame[]>(kFramesPerChunk);
    const auto region =
        regions_.add(domain_, chunk.memory.get(), kFramesPerChunk * kFrameBytes,
                     reinterpret_cast<uintptr_t>(chunk.memory.get()), kAccessLocalWrite);
    if (!region) return false;
    chunk.region = *region;
    for (size_t i = 0; i < kFramesPerChunk; ++i) {
      Frame& frame = chunk.frames[i];
      frame.bytes = chunk.memory.get() + i * kFrameBytes;
      frame.lkey = chunk.region->key;
      frame.next = free_;
      free_ = &frame;
    }
    chunks_.push_back(std::move(chunk));
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace uwarp
