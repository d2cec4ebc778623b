// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Tests that change network devices run in their own network namespace: this program starts itself
// again there.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <string>

inline constexpr const char* kInsideNamespace = "UWARP_TEST_INSIDE_NAMESPACE";

inline bool inside_namespace() { return std::getenv(kInsideNamespace) != nullptr; }

/// The exit status, or -1 after a signal.
inline int shell(const std::string& commands) {
  const int status = std::system(commands.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// veth0 with only the address 10.77.0.1/24, and its other end, veth1.
inline constexpr const char* kMakeVeth =
    "ip link add veth0 type veth peer name veth1 && ip link set veth0 addrgenmode none && "
    "ip addr add 10.77.0.1/24 dev veth0 && ip link set veth0 up && ip link set veth1 up";

/// Runs the tests that match `filter` in a namespace with veth0, which is the device under test.
/// Skips if that is not permitted.
inline void run_in_namespace(const std::string& filter) {
  const std::string enter = geteuid() == 0 ? "unshare -n " : "unshare -Urn ";
  if (shell(enter + "ip link add probe type veth peer name other 2>/dev/null") != 0)
    GTEST_SKIP() << "no right to make network namespaces";
  char self[PATH_MAX] = {};
  ASSERT_GT(readlink("/proc/self/exe", self, sizeof self - 1), 0);
  const std::string inside = std::string("ip link set lo up && ") + kMakeVeth +
                             " && exec env UWARP_TEST_DEVICE=uwarp_veth0 " + kInsideNamespace +
                             "=1 '" + self + "' --gtest_filter='" + filter + "' --gtest_brief=1";
  EXPECT_EQ(shell(enter + "sh -c \"" + inside + "\""), 0);
}
