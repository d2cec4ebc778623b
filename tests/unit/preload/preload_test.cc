// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Programs under libuwarp-preload.so: this test binary itself (inside.cc), shells and compilers.
#include <gtest/gtest.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace {

namespace fs = std::filesystem;

std::string own_path() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : std::string();
}

std::string preload_path() {
  return fs::path(own_path()).parent_path() / "../lib/libuwarp-preload.so";
}

struct Outcome {
  int status;
  std::string output;
};

/// Runs a shell command after `environment` ("A=1 B=2").
Outcome run(const std::string& environment, const std::string& command) {
  FILE* pipe = popen(("env " + environment + " " + command + " 2>&1").c_str(), "r");
  Outcome outcome{-1, ""};
  char buffer[4096];
  size_t got;
  while ((got = fread(buffer, 1, sizeof buffer, pipe)) > 0) outcome.output.append(buffer, got);
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
  return outcome;
}

/// True if programs that this one starts are for another machine, so that they cannot preload our
/// library.
bool emulated() {
  utsname own{};
  return uname(&own) == 0 && run("", "uname -m").output != std::string(own.machine) + "\n";
}

class PreloadTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a program under TSan cannot take an instrumented preload";
#endif
    if (getenv("UWARP_TEST_INSIDE") != nullptr) GTEST_SKIP() << "this is the inner run";
    if (emulated()) GTEST_SKIP() << "an emulated program cannot execute another one";
    if (!fs::exists(preload_path())) GTEST_SKIP() << preload_path() << " is not built";
  }
  static Outcome under_preload(const std::string& command, const std::string& more = "") {
    return run("LD_PRELOAD=" + preload_path() +
                   // With the preload, the sanitizer's library is no longer the first one.
                   " ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0 " + more,
               command);
  }
};

TEST_F(PreloadTest, ProgramsSeeTheNodesAndTheTree) {
  const Outcome outcome = under_preload(own_path() + " --gtest_filter='Inside.*' --gtest_brief=1",
                                        "UWARP_TEST_INSIDE=1");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("PASSED"), std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("SKIPPED"), std::string::npos) << outcome.output;
}

TEST_F(PreloadTest, TreesAreGoneAfterwards) {
  const Outcome outcome = under_preload(
      "sh -c 'ls /sys/class/infiniband >/dev/null; echo $SYSFS_PATH; ls -d \"$SYSFS_PATH\"; true'");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  const std::string root = outcome.output.substr(0, outcome.output.find('\n'));
  EXPECT_FALSE(fs::exists(root)) << root;
}

TEST_F(PreloadTest, ShellsAndPipesWork) {
  const Outcome outcome = under_preload(
      "sh -c 'for i in 1 2 3; do echo $i | cat; done | tr 123 abc | paste -sd,; exec 5>/dev/null; "
      "echo x >&5; exec 5>&-'");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.output, "a,b,c\n");
}

TEST_F(PreloadTest, ForeignSysfsPathNamesTheHost) {
  const Outcome outcome = under_preload(
      "sh -c 'echo $UWARP_HOST_SYSFS; sh -c \"echo \\$UWARP_HOST_SYSFS\"'", "SYSFS_PATH=/made/up");
  EXPECT_EQ(outcome.output, "/made/up\n/made/up\n");
}

TEST_F(PreloadTest, KernelCmIsLeftAloneOnRequest) {
  // With UWARP_CM=kernel the program sees the kernel's file, if there is one.
  const std::string command = "sh -c 'test -e /dev/infiniband/rdma_cm'";
  EXPECT_EQ(under_preload(command).status, 0);
  EXPECT_EQ(under_preload(command, "UWARP_CM=kernel").status, run("", command).status);
}

TEST_F(PreloadTest, WithoutADeviceThereIsNoNode) {
  const std::string command = "sh -c 'test -e /dev/infiniband/rdma_cm'";
  EXPECT_EQ(under_preload(command, "UWARP_NETDEVS=none").status, run("", command).status);
}

}  // namespace
