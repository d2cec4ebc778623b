// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Linked into test programs: when timeout(1) ends one that hangs, it says in which test and where
// each of its threads stands. Frames are given as FILE(+OFFSET), for addr2line; a thread that takes
// no signals shows its system call alone.
#include <dirent.h>
#include <execinfo.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {

constexpr int kMaxFrames = 40;
const int kShowStack = SIGRTMAX - 1;

std::atomic<const ::testing::TestInfo*> running{nullptr};
pid_t program = 0;

// stdio may be what hangs.
void print(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

/// A short file of the kernel's about one thread.
void show_file(const char* thread, const char* name) {
  char path[80], text[256];
  snprintf(path, sizeof path, "/proc/self/task/%s/%s", thread, name);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return;
  text[length] = '\0';
  print(text);
}

void show_stack(int) {
  void* frames[kMaxFrames];
  const int count = backtrace(frames, kMaxFrames);
  backtrace_symbols_fd(frames, count, STDERR_FILENO);
}

void show_all_stacks() {
  DIR* const threads = opendir("/proc/self/task");
  if (threads == nullptr) return;
  while (const dirent* const each = readdir(threads)) {
    const pid_t thread = std::atoi(each->d_name);
    if (thread == 0) continue;
    print("-- ");
    show_file(each->d_name, "comm");
    show_file(each->d_name, "syscall");
    syscall(SYS_tgkill, program, thread, kShowStack);
    const timespec until_it_has_printed = {0, 50'000'000};
    nanosleep(&until_it_has_printed, nullptr);
  }
  closedir(threads);
}

void name_the_test(int) {
  const ::testing::TestInfo* const test = running;
  // A child of a test has its parent's handler, and may be ended by it on purpose.
  if (test != nullptr && getpid() == program) {
    alarm(10);  // seconds, in case that naming it hangs too
    print("hung in ");
    print(test->test_suite_name());
    print(".");
    print(test->name());
    print("\n");
    show_all_stacks();
  }
  signal(SIGTERM, SIG_DFL);
  kill(getpid(), SIGTERM);
}

class RunningTest : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& test) override { running = &test; }
  void OnTestEnd(const ::testing::TestInfo&) override { running = nullptr; }
};

[[maybe_unused]] const bool kInstalled = [] {
  program = getpid();
  void* first[1];
  backtrace(first, 1);  // loads its library now, not in a signal handler
  signal(kShowStack, show_stack);
  signal(SIGTERM, name_the_test);
  ::testing::UnitTest::GetInstance()->listeners().Append(new RunningTest);
  return true;
}();

}  // namespace
