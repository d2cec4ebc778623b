// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A snapshot as tables for people.
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
  char key;          // that shows it in the live table
  const char* name;  // of the command line
};
inline constexpr ViewName kViews[] = {
    {View::kProcesses, 't', "processes"},  {View::kQueuePairs, 'p', "qps"},
    {View::kCompletionQueues, 'c', "cqs"}, {View::kRegions, 'm', "mrs"},
    {View::kDevices, 'd', "devices"},      {View::kPeers, 'n', "peers"},
};

/// Lines: headings, then the rows, the busiest first where there are rates.
std::vector<std::string> table_of(const Snapshot& snapshot, const RateTable& rates, View view);

/// One line that sums up.
std::string summary_of(const Snapshot& snapshot, const RateTable& rates);

/// A number with a unit of 1024 or 1000 in five characters.
std::string octets_text(double octets);
std::string count_text(double count);

/// Text from outside as it may stand in a line of a terminal.
std::string printable(std::string_view text);

}  // namespace stat_view
