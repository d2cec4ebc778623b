// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A file that a process fills by itself (captures, traces), under a name that the user has given
// and that several processes may have been given.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/process_lock.h"
#include "base/rate_limit.h"

namespace uwarp {

// Log lines of one kind that any host can cause, as often as it connects: the first ones are
// written, later ones once per interval and with the number of those that were left out.

/// One for each kind of line: a static variable at the place where it is written. Any thread.
class CollapsedLog {
 public:
  /// A user who looks for the fault of one application finds its few lines whole. A peer that
  /// connects thousands of times a second for a day adds a megabyte.
  static constexpr uint32_t kBurst = 8;
  static constexpr uint64_t kIntervalNs = 10'000'000'000;

  /// As log_event().
  void event(const char* format, ...) __attribute__((format(printf, 2, 3)));

  /// Whether a line is written now: how many were left out before it; nullopt: it is left out.
  std::optional<uint64_t> note(uint64_t now_ns);

 private:
  ProcessLock lock_;
  RateLimit limit_ GUARDED_BY(lock_){kBurst, kIntervalNs};
  uint64_t left_out_ GUARDED_BY(lock_) = 0;
};

class OutputFile {
 public:
  /// %p in `name` becomes the pid. The file is emptied; one that another process is filling is left
  /// to it, and ".PID" is put behind the name. Null and a complaint if it cannot be made.
  static std::unique_ptr<OutputFile> create(const std::string& name, std::string& complaint);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Appends all pieces. False and errno: the file is full, or cannot be written any more, or is
  /// the parent's in a forked child. Not thread-safe; changes `pieces`.
  bool append(std::span<iovec> pieces);
  const std::string& path() const { return path_; }

 private:
  OutputFile(int fd, std::string path);

  const int fd_;
  const long process_;
  const std::string path_;
};

}  // namespace uwarp
