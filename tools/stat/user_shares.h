// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How much of something is looked at for each user, so that the processes of one user neither take
// all the time and memory of uwarp-stat nor hide those of others.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>

namespace stat_view {

class UserShares {
 public:
  /// `each`: for each user. `others`: for all users together but `own`, as a user may have a range
  /// of user ids (subuid(5)).
  UserShares(size_t each, size_t others, uid_t own) : each_(each), others_(others), own_(own) {}

  /// False, and nothing is taken, where less than `count` is left.
  bool take(uid_t user, size_t count);
  size_t left(uid_t user) const;

 private:
  size_t each_;
  size_t others_;
  uid_t own_;
  std::map<uid_t, size_t> taken_;
};

}  // namespace stat_view
