// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The event log: off unless UWARP_LOG asks for it, one line per event, one write per line.
// Never throws, keeps errno, and uses raw system calls so that interposed ones are not entered.
#pragma once

#include <atomic>
#include <string>

namespace uwarp {

namespace log_detail {
enum class State : int { kUnknown, kOff, kOn };
extern std::atomic<State> state;
bool open_log();
/// Opens the log as if UWARP_LOG were `name`; once per process. Returns log_enabled(). For tests.
bool open_log_as(const std::string& name);
}  // namespace log_detail

/// True if events are written. One relaxed load once the first call has read UWARP_LOG.
inline bool log_enabled() {
  const auto state = log_detail::state.load(std::memory_order_relaxed);
  if (state == log_detail::State::kOff) [[likely]]
    return false;
  return state == log_detail::State::kOn || log_detail::open_log();
}

/// Writes one event as one line, with process id and time before it and a newline behind it.
/// Longer lines than 1,000 bytes are cut. Any thread.
void log_event(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// Logs an event after which the program probably gives up, and names the setting that would help.
/// Also without a log the first one of a process is printed on standard error, unless UWARP_LOG=0
/// says that no log is wanted. Any thread.
void advise(const std::string& line);

/// Ends the lines about what only that persona has.
inline constexpr const char* kAskForRoce =
    "uwarp-run --roce (UWARP_PERSONA=roce) has it; set it on both sides";

}  // namespace uwarp
