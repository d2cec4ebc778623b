// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The user ids of a process, as its file "status" in /proc has them. The owner of its folder there
// is not enough: that is root for each process that is not dumpable.
#pragma once

#include <sys/types.h>

#include <array>
#include <optional>
#include <string>

namespace stat_view {

struct Credentials {
  std::array<uid_t, 4> users{};  // real, effective, saved, of files

  uid_t effective() const { return users[1]; }
  /// Whether a file of this owner can have been made by the process. Root's is taken to be: a
  /// process may give up root later.
  bool may_have_made(uid_t owner) const;
  /// Empty when the process is gone. `folder` is /proc/PID.
  static std::optional<Credentials> read(const std::string& folder);
};

}  // namespace stat_view
