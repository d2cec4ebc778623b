// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Makes tables of a snapshot.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rates.h"
#include "snapshot.h"

namespace stat_view {

enum class View { kProcesses, kQueuePairs, kCompletionQueues, kRegions, kDevices, kPeers };

struct ViewName {
  View view;
  char key;           // that shows it in the live table
  const char* name;   // on the command line
  const char* title;  // on the screen
};
inline constexpr ViewName kViews[] = {
    {View::kProcesses, 't', "processes", "processes"},
    {View::kQueuePairs, 'p', "qps", "queue pairs"},
    {View::kCompletionQueues, 'c', "cqs", "completions"},
    {View::kRegions, 'm', "mrs", "memory"},
    {View::kDevices, 'd', "devices", "devices"},
    {View::kPeers, 'n', "peers", "peers"},
};

/// A line of headings, then the rows, the busiest first.
std::vector<std::string> table_of(const Snapshot& snapshot, const RateTable& rates, View view);

/// One line with the totals of all processes.
std::string summary_of(const Snapshot& snapshot, const RateTable& rates);

/// A number in at most five characters: 764M. The unit counts in steps of 1024 (bytes) or 1000.
std::string bytes_text(double bytes);
std::string count_text(double count);

/// Text of a process, with everything but printable ASCII replaced by "?".
std::string printable(std::string_view text);

}  // namespace stat_view
