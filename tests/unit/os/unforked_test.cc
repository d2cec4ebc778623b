// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "os/unforked.h"

#include <gtest/gtest.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace uwarp {
namespace {

TEST(Unforked, IsZerosAndMovable) {
  Unforked<int> first;
  ASSERT_NE(first.get(), nullptr);
  EXPECT_EQ(*first.get(), 0);
  *first.get() = 7;
  Unforked<int> second(std::move(first));
  EXPECT_EQ(*second.get(), 7);
}

// As in a signal handler that forks and returns between the look and the call.
TEST(Unforked, ASystemCallOfAChildCannotUseIt) {
  int target = 1;
  int value = 2;
  const iovec local = {&value, sizeof value};
  Unforked<iovec> remote;
  ASSERT_NE(remote.get(), nullptr);
  iovec* const at = remote.get();
  *at = {&target, sizeof target};
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0)
    _exit(process_vm_writev(parent, &local, 1, at, 1, 0) == -1 && errno == EFAULT ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(target, 1);
}

}  // namespace
}  // namespace uwarp
