// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "kernel/open_listeners.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "base/fork.h"
#include "base/log.h"
#include "kernel/raw_fds.h"

namespace uwarp {
namespace {

std::atomic<int> own{0};
std::atomic<int> of_parent{0};  // and of those before it
// Added up, because daemons fork twice.
const InForkedChild leave_listeners([] { of_parent.fetch_add(own.exchange(0)); });

void say(int count, const char* who, bool on_stderr) {
  constexpr char kRemedy[] =
      "call rdma_listen() after daemon() or fork(), or keep the program in the foreground";
  char line[300];
  const int length = snprintf(line, sizeof line, "%d rdma_cm listener%s %s; %s", count,
                              count == 1 ? "" : "s", who, kRemedy);
  log_event("%s", line);
  if (!on_stderr || length <= 0) return;
  char said[340];
  const int whole = snprintf(said, sizeof said, "uwarp: %s\n", line);
  raw_write(STDERR_FILENO, said, static_cast<size_t>(whole));
}

}  // namespace

OpenListener::OpenListener() { own.fetch_add(1, std::memory_order_relaxed); }
OpenListener::~OpenListener() { own.fetch_sub(1, std::memory_order_relaxed); }

void say_daemon_loses_listeners() {
  if (const int count = own.load())
    say(count, "will end with this process, not go on in the daemon", true);
}

void say_session_without_listeners() {
  if (const int count = of_parent.load()) say(count, "stayed in the parent of this process", false);
}

void say_channel_without_listeners() {
  if (const int count = of_parent.exchange(0))
    say(count, "stayed in the parent of this process", true);
}

}  // namespace uwarp
