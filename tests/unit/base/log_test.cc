// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The event log. It is opened once per process, so each case runs in its own child process.
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace uwarp {
namespace {

using ::testing::MatchesRegex;

struct TemporaryFile {
  TemporaryFile() { close(mkstemp(path)); }
  ~TemporaryFile() { unlink(path); }
  std::string text() const {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  char path[32] = "/tmp/uwarp_log_test_XXXXXX";
};

// Runs `body` in a child whose log is opened as `setting`; true if the body returned true.
bool in_fresh_process(const std::string& setting, const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    log_detail::state = log_detail::State::kUnknown;
    log_detail::open_log_as(setting);
    _exit(body() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Log, WritesOneLinePerEventAndKeepsErrno) {
  TemporaryFile file;
  EXPECT_TRUE(in_fresh_process(file.path, [] {
    errno = EXDEV;
    log_event("first %d", 1);
    log_event("second\nline");
    return log_enabled() && errno == EXDEV;
  }));
  EXPECT_THAT(file.text(), MatchesRegex("uwarp\\[[0-9]+\\] [0-9]+\\.[0-9]{6}: first 1\n"
                                        "uwarp\\[[0-9]+\\] [0-9]+\\.[0-9]{6}: second line\n"));
}

TEST(Log, CutsLongLines) {
  TemporaryFile file;
  EXPECT_TRUE(in_fresh_process(file.path, [] {
    log_event("%s", std::string(5000, 'x').c_str());
    return true;
  }));
  const std::string text = file.text();
  EXPECT_EQ(text.size(), 1000u);
  EXPECT_EQ(text.back(), '\n');
}

// A daemon closes all descriptors, and its next file gets the number of the log: nothing is written
// to that file.
TEST(Log, SurvivesCloseOfAllDescriptors) {
  TemporaryFile file;
  TemporaryFile other;
  EXPECT_TRUE(in_fresh_process(file.path, [&] {
    log_event("before");
    for (int fd = 3; fd < 1000; ++fd) close(fd);
    for (int i = 0; i < 20; ++i) (void)open(other.path, O_RDWR);
    log_event("after");
    return true;
  }));
  EXPECT_NE(file.text().find("before\n"), std::string::npos);
  EXPECT_NE(file.text().find("after\n"), std::string::npos);
  EXPECT_EQ(other.text(), "");
}

TEST(Log, OffWritesNothing) {
  EXPECT_TRUE(in_fresh_process("", [] {
    log_event("nobody sees this");
    return !log_enabled();
  }));
}

// The complaint goes to standard error, which the child redirects to a file.
TEST(Log, UnusablePathIsOffWithOneComplaint) {
  TemporaryFile complaint;
  EXPECT_TRUE(in_fresh_process("", [&] {
    dup2(open(complaint.path, O_WRONLY), 2);
    log_detail::state = log_detail::State::kUnknown;
    log_detail::open_log_as("/nonexistent/folder/log");
    log_event("nobody sees this");
    log_event("nor this");
    return !log_enabled();
  }));
  EXPECT_THAT(complaint.text(), MatchesRegex("uwarp: UWARP_LOG=[^\n]+\n"));
}

// Other users may write to the folder. A link or FIFO of theirs with the log's name is refused, and
// the FIFO does not make the process wait.
TEST(Log, LinksAndPipesUnderItsNameAreRefused) {
  TemporaryFile victim;
  char folder[] = "/tmp/uwarp_log_test_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string link = std::string(folder) + "/link";
  const std::string pipe = std::string(folder) + "/pipe";
  ASSERT_EQ(symlink(victim.path, link.c_str()), 0);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0666), 0);
  // With a reader, open() alone would succeed.
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  const auto refused = [](const std::string& name, const std::string& why) {
    TemporaryFile complaint;
    EXPECT_TRUE(in_fresh_process("", [&] {
      alarm(60);
      dup2(open(complaint.path, O_WRONLY), 2);
      log_detail::state = log_detail::State::kUnknown;
      log_detail::open_log_as(name);
      log_event("nobody sees this");
      return !log_enabled();
    })) << name;
    EXPECT_NE(complaint.text().find(why), std::string::npos) << complaint.text();
  };
  refused(link, "a symbolic link");
  refused(pipe, "no regular file");
  close(reader);
  refused(pipe, "no regular file");
  EXPECT_EQ(victim.text(), "");
  unlink(link.c_str());
  unlink(pipe.c_str());
  rmdir(folder);
}

TEST(Log, StandardError) {
  for (const char* name : {"1", "stderr"}) {
    TemporaryFile out;
    EXPECT_TRUE(in_fresh_process(name, [&] {
      dup2(open(out.path, O_WRONLY), 2);
      log_event("seen");
      return true;
    }));
    EXPECT_NE(out.text().find(": seen\n"), std::string::npos) << name;
  }
}

// Another thread may be writing at the moment of the fork.
TEST(Log, AForkedChildCanWrite) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "no new threads in a child of a process with several";
#endif
  TemporaryFile file;
  EXPECT_TRUE(in_fresh_process(file.path, [] {
    std::atomic<bool> done{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        while (!done) log_event("parent");
      });
    }
    bool all_wrote = true;
    for (int i = 0; i < 40 && all_wrote; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        alarm(5);
        log_event("child");
        _exit(0);
      }
      int status = -1;
      waitpid(child, &status, 0);
      all_wrote = status == 0;
    }
    done = true;
    for (std::thread& thread : threads) thread.join();
    return all_wrote;
  }));
}

}  // namespace
}  // namespace uwarp
