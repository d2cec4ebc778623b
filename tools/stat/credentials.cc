// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "credentials.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

namespace stat_view {

bool Credentials::may_have_made(uid_t owner) const {
  return owner == 0 || std::find(users.begin(), users.end(), owner) != users.end();
}

std::optional<Credentials> Credentials::read(const std::string& folder) {
  std::ifstream status(folder + "/status");
  std::string line;
  Credentials found;
  auto& [real, effective, saved, files] = found.users;
  // The kernel escapes line ends in the name of the program.
  while (std::getline(status, line))
    if (std::sscanf(line.c_str(), "Uid: %u %u %u %u", &real, &effective, &saved, &files) == 4)
      return found;
  return std::nullopt;
}

}  // namespace stat_view
