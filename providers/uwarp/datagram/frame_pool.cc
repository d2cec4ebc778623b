// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "datagram/frame_pool.h"

#include <sys/mman.h>

#include <bit>
#include <cassert>
#include <new>
#include <utility>

#include "base/mutex.h"

namespace uwarp {
namespace {

constexpr size_t kChunkBytes = FramePool::kFramesPerChunk * kFrameBytes;

}  // namespace

FramePool::Chunk::Chunk(FramePool& pool, uint32_t place) : regions(pool.regions_) {
  void* const mapped =
      mmap(nullptr, kChunkBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  memory = static_cast<std::byte*>(mapped);
  const auto made = regions.add(pool.domain_, mapped, kChunkBytes,
                                reinterpret_cast<uintptr_t>(mapped), kAccessLocalWrite);
  if (!made) {
    (void)munmap(mapped, kChunkBytes);
    throw std::bad_alloc();
  }
  region = *made;
  for (size_t i = frames.size(); i-- > 0;) {
    Frame& frame = frames[i];
    frame.bytes = memory + i * kFrameBytes;
    frame.lkey = region->key;
    frame.chunk = place;
    frame.next = std::exchange(free, &frame);
  }
}

// None of its frames is sent from or read into any more.
FramePool::Chunk::~Chunk() {
  (void)regions.invalidate(*region);
  regions.release(*region);
  (void)munmap(memory, kChunkBytes);
}

// The chunk with the lowest place, so that others become empty.
Frame* FramePool::take(size_t held) {
  const Lock guard(lock_);
  if (taken_ >= kMostFrames / 4 * 3 && held >= kFewFrames) [[unlikely]]
    return nullptr;
  if (with_free_ == 0 && !grow_locked()) [[unlikely]]
    return nullptr;
  const auto place = static_cast<unsigned>(std::countr_zero(with_free_));
  Chunk& chunk = *chunks_[place];
  Frame* const frame = std::exchange(chunk.free, chunk.free->next);
  if (chunk.free == nullptr) with_free_ &= ~(uint64_t{1} << place);
  if (chunk.taken++ == 0) unused_ &= ~(uint64_t{1} << place);
  ++taken_;
  frame->size = frame->datagrams = 0;
  return frame;
}

void FramePool::give_back(Frame& frame) {
  std::unique_ptr<Chunk> left;  // unmapped after the lock
  const Lock guard(lock_);
  const uint64_t bit = uint64_t{1} << frame.chunk;
  std::unique_ptr<Chunk>& chunk = chunks_[frame.chunk];
  assert(taken_ != 0 && chunk->taken != 0);
  frame.next = std::exchange(chunk->free, &frame);
  with_free_ |= bit;
  --taken_;
  if (--chunk->taken != 0) return;
  if (unused_ == 0) {
    unused_ = bit;
  } else {
    with_free_ &= ~bit;
    left = std::move(chunk);
  }
}

void FramePool::give_back(FrameQueue frames) {
  while (!frames.empty()) give_back(frames.pop());
}

size_t FramePool::chunks() {
  const Lock guard(lock_);
  size_t count = 0;
  for (const auto& chunk : chunks_) count += chunk != nullptr;
  return count;
}

bool FramePool::grow_locked() {
  for (uint32_t place = 0; place < chunks_.size(); ++place) {
    if (chunks_[place] != nullptr) continue;
    try {
      chunks_[place] = std::make_unique<Chunk>(*this, place);
    } catch (const std::bad_alloc&) {
      return false;
    }
    with_free_ |= uint64_t{1} << place;
    unused_ |= uint64_t{1} << place;
    return true;
  }
  return false;
}

}  // namespace uwarp
