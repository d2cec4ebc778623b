// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "base/random.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <set>

namespace uwarp {
namespace {

/// How many of a thousand words are different.
size_t different_words() {
  std::set<uint64_t> words;
  for (int i = 0; i < 1000; ++i) words.insert(random_word());
  return words.size();
}

/// From now on getrandom() is EPERM in this process.
bool refuse_getrandom() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getrandom, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {sizeof code / sizeof code[0], code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(Random, NoWordComesTwice) { EXPECT_EQ(different_words(), 1000u); }

TEST(Random, NorWhereASandboxRefusesTheKernelsBits) {
  const pid_t child = fork();
  if (child == 0) {
    if (!refuse_getrandom()) _exit(2);
    _exit(different_words() == 1000 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace uwarp
