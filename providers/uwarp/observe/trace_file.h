// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// UWARP_TRACE: the life of work requests and FPDUs as JSON that ui.perfetto.dev and
// chrome://tracing open. Each thread fills a buffer of its own and writes it out when it is full;
// the rest follows at exit. Viewers forgive the missing end of one that was killed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/spinlock.h"
#include "counters/trace_sink.h"
#include "os/output_file.h"

namespace uwarp {

class TraceFile final : public TraceSink {
 public:
  /// Null if `name` is empty, or the file cannot be made (which is said on stderr).
  static std::unique_ptr<TraceFile> create(const std::string& name);
  ~TraceFile() override;

  void note(const TraceStep& step) noexcept override;
  /// Writes out what is in the buffers and ends the file. Steps after this are forgotten, and so
  /// are those for which there is no memory.
  void finish() noexcept;

 private:
  /// 320 KiB per thread that does anything.
  static constexpr size_t kBufferSteps = 4096;
  /// Viewers take no more; some 300 bytes each.
  static constexpr uint64_t kMostSteps = 4'000'000;

  struct Timed {
    uint64_t at_ns;
    TraceStep step;
  };
  struct Buffer {
    SpinLock lock;
    long thread = 0;
    std::vector<Timed> steps;
    std::atomic<bool> idle{false};  // its thread has ended
  };
  struct Own;

  explicit TraceFile(std::unique_ptr<OutputFile> file);
  Buffer& own_buffer();
  Buffer& take_buffer();
  void write_out_locked(Buffer& buffer);
  void append(std::string text);

  const std::unique_ptr<OutputFile> file_;
  const long process_;
  std::atomic<bool> finished_{false};
  std::mutex mutex_;  // after a buffer's lock; guards the rest
  std::vector<std::unique_ptr<Buffer>> buffers_;
  uint64_t written_ = 0;  // steps
  bool full_ = false;
};

}  // namespace uwarp
