// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/transmit/batch_buffer.h"

#include <new>
#include <utility>

#include "base/thread_own.h"

namespace uwarp {
namespace {

/// The buffers of a thread that no queue pair has borrowed.
struct Spare {
  std::unique_ptr<BatchBuffer> plain;
  std::unique_ptr<BatchBuffer> with_crc;

  std::unique_ptr<BatchBuffer>& of(bool crc) { return crc ? with_crc : plain; }
};

}  // namespace

BatchBuffer::Borrowed BatchBuffer::borrow(bool crc) {
  auto& spare = thread_own<Spare>().of(crc);
  if (spare != nullptr) [[likely]]
    return Borrowed(spare.release());
  try {
    return Borrowed(new BatchBuffer(crc ? kCrcArenaBytes : kArenaBytes));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void BatchBuffer::Return::operator()(BatchBuffer* room) const {
  thread_own<Spare>().of(room->arena_bytes == kCrcArenaBytes).reset(room);
}

}  // namespace uwarp
