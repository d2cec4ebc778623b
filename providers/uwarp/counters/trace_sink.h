// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Steps in the life of work requests and FPDUs. A TraceSink writes them down with their times.
#pragma once

#include <cstdint>

namespace uwarp {

struct TraceStep {
  enum class Kind : uint8_t {
    // Requests of a send queue, by their position in it.
    kSendPosted,      // opcode: WcOpcode of its completion; bytes: of its message; wr_id
    kSendBegun,       // its first FPDU is built
    kSendWithKernel,  // ... and all of them are with the kernel
    kSendAnswered,    // a Read or atomic has its answer, also one that only acknowledges
    kSendCompleted,   // opcode; status; phase; reported: a completion was pushed
    // Receives of a queue pair's own queue by position; of a shared one they begin when taken.
    kReceivePosted,     // bytes; wr_id
    kReceiveTaken,      // by the message that has come; reported: of a shared queue
    kReceiveCompleted,  // status; phase: kWaiting if it never was taken
    // Completions.
    kPolled,  // opcode: WcOpcode; wr_id; position as above
    // FPDUs.
    kFpduSent,  // opcode: RdmapOpcode; bytes: of its ULPDU
    kFpduReceived,
    // Streams.
    kCarried,  // what comes does so by TCP; reported: by shared memory, from here on
  } kind = Kind::kSendPosted;
  /// How far a request had come that has completed.
  enum class Phase : uint8_t { kWaiting, kBegun, kWithKernel } phase = Phase::kWaiting;
  uint8_t opcode = 0;
  bool reported = false;
  uint32_t queue_pair = 0;
  uint32_t position = 0;  // the last 32 bits
  uint32_t status = 0;    // WcStatus
  uint64_t bytes = 0;
  uint64_t wr_id = 0;
};

/// Called with locks of the queue pair held and work half done, by any thread: must not call back,
/// nor throw. A step for which there is no memory is missing.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  virtual void note(const TraceStep& step) noexcept = 0;
};

}  // namespace uwarp
