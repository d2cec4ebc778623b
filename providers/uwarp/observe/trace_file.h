// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// UWARP_TRACE: the life of work requests and FPDUs as JSON that ui.perfetto.dev and
// chrome://tracing open. Each thread fills a buffer of its own and writes it out when it is full;
// the rest follows at exit. Viewers forgive the missing end of one that was killed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
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
    Buffer() { steps.reserve(kBufferSteps); }
    SpinLock lock;
    long thread GUARDED_BY(lock) = 0;
    std::vector<Timed> steps GUARDED_BY(lock);
    std::atomic<bool> idle{false};  // its thread has ended
  };
  struct Own;

  explicit TraceFile(std::unique_ptr<OutputFile> file);
  Buffer& own_buffer();
  Buffer& take_buffer();
  void write_out_locked(Buffer& buffer) REQUIRES(buffer.lock);
  void append(std::string text);

  const std::unique_ptr<OutputFile> file_;
  const long process_;
  std::atomic<bool> finished_{false};
  Mutex mutex_;  // after a buffer's lock
  std::vector<std::unique_ptr<Buffer>> buffers_ GUARDED_BY(mutex_);
  uint64_t written_ GUARDED_BY(mutex_) = 0;  // steps
  bool full_ GUARDED_BY(mutex_) = false;
};

}  // namespace uwarp
