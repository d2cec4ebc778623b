// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "user_shares.h"

#include <algorithm>

namespace stat_view {

size_t UserShares::left(uid_t user) const {
  const auto found = taken_.find(user);
  const size_t left = found == taken_.end() ? each_ : each_ - found->second;
  return user == own_ ? left : std::min(left, others_);
}

bool UserShares::take(uid_t user, size_t count) {
  if (left(user) < count) return false;
  taken_[user] += count;
  if (user != own_) others_ -= count;
  return true;
}

}  // namespace stat_view
