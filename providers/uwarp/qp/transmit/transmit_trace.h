// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a traced send queue has reported, and the FPDUs that are on their way to the kernel. There
// is one only if UWARP_TRACE asks for it. Belongs to the transmit side.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "counters/trace_sink.h"
#include "qp/send_queue.h"

namespace uwarp {

class TransmitTrace {
 public:
  TransmitTrace(TraceSink& sink, uint32_t queue_pair) : sink_(sink), queue_pair_(queue_pair) {}

  /// A batch was built, of which nothing has gone: its bytes, and where its FPDUs end in them.
  [[gnu::noinline, gnu::cold]] void built(const SendQueue& queue, std::span<const iovec> bytes,
                                          std::span<const uint32_t> ends);
  /// How much of the batch has been sent, and of the stream.
  [[gnu::noinline, gnu::cold]] void sent(SendQueue& queue, size_t batch_bytes,
                                         uint64_t stream_position);
  [[gnu::noinline, gnu::cold]] void completed(uint64_t position, const WorkCompletion& completion,
                                              bool reported);

 private:
  struct Fpdu {
    uint32_t end;
    uint8_t opcode;
    uint16_t bytes;
  };
  void tell(TraceStep::Kind kind, uint64_t position);

  TraceSink& sink_;
  const uint32_t queue_pair_;
  uint64_t begun_ = 0;        // requests before this position were reported as begun ...
  uint64_t with_kernel_ = 0;  // ... and as with the kernel
  std::vector<Fpdu> fpdus_;   // of the batch
  size_t gone_ = 0;           // of these
};

}  // namespace uwarp
