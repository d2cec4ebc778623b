// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "os/same_user.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

namespace uwarp {
namespace {

TEST(SameUser, IsTheOneOfTheSameNumber) {
  EXPECT_TRUE(is_own_user(geteuid()));
  EXPECT_FALSE(is_own_user(geteuid() + 1));
}

/// In a child: 0, 1 for what is_own_user() says, or 2 where the system forbids it.
int own_user_as_nobody(bool in_namespace) {
  constexpr uid_t kNobody = 65534;
  const pid_t child = fork();
  if (child == 0) {
    if (in_namespace) {
      if (unshare(CLONE_NEWUSER) != 0) _exit(2);  // without a map each user is shown as 65534
    } else if (setuid(kNobody) != 0) {
      _exit(2);
    }
    if (geteuid() != kNobody) _exit(2);
    _exit(is_own_user(kNobody) ? 1 : 0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(SameUser, ANumberThatStandsForManyUsersIsNone) {
  const int own = own_user_as_nobody(true);
  if (own == 2) GTEST_SKIP() << "no user namespaces here";
  EXPECT_EQ(own, 0);
}

TEST(SameUser, WhereEachUserHasANumberItIsOneUser) {
  const int own = own_user_as_nobody(false);
  if (own == 2) GTEST_SKIP() << "needs root";
  EXPECT_EQ(own, 1);
}

}  // namespace
}  // namespace uwarp
