// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/read_load.h"

#include <chrono>

#include "nfs/completions.h"

namespace uwarp::nfs {

LoadFigures run_read_load(NfsClient& client, const OpenFile& file, TransferSlots& slots,
                          double seconds, const std::function<uint64_t()>& next_offset) {
  using Clock = std::chrono::steady_clock;
  Completions completions(client.channel());
  auto start = [&](TransferSlot& slot) {
    client.prepare_read(slot.call, file, next_offset(), slot.buffer->bytes(), slot.buffer.get());
    completions.start(slot.call);
  };
  LoadFigures figures;
  auto begin = Clock::now();
  auto end =
      begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  for (TransferSlot& slot : slots.slots()) {
    start(slot);
  }
  auto last = begin;
  while (completions.outstanding() > 0) {
    TransferSlot& slot = slots.slot_of(completions.wait());
    auto result = client.finish_read(slot.call);
    ++figures.requests;
    figures.bytes += result.count;
    figures.chunked += slot.call.result_received > 0;
    last = Clock::now();
    if (last < end) {
      start(slot);
    }
  }
  figures.seconds = std::chrono::duration<double>(last - begin).count();
  return figures;
}

}  // namespace uwarp::nfs
