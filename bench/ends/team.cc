// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The processes of a team share a page, in which they meet.
#include "ends/team.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "ends/process.h"

namespace uwarp::bench {
namespace {

constexpr useconds_t kLookUs = 50;

void* shared_page() {
  void* page = mmap(nullptr, sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) die("mmap");
  return page;
}

}  // namespace

Team::Team(uint32_t processes, uint32_t threads)
    : processes_(processes), threads_(threads), shared_(new (shared_page()) Shared) {}

void Team::run(const std::function<void(uint32_t, uint32_t)>& work) {
  std::vector<pid_t> others;
  for (uint32_t process = 1; process < processes_; ++process) {
    const pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      run_threads(work, process);
      std::_Exit(0);
    }
    others.push_back(child);
  }
  run_threads(work, 0);
  for (const pid_t child : others) {
    int status = 0;
    if (waitpid(child, &status, 0) != child) die("waitpid");
    if (status != 0) std::exit(1);
  }
}

void Team::run_threads(const std::function<void(uint32_t, uint32_t)>& work,
                       uint32_t process) const {
  std::vector<std::thread> others;
  for (uint32_t thread = 1; thread < threads_; ++thread)
    others.emplace_back([&work, process, thread] { work(process, thread); });
  work(process, 0);
  for (std::thread& each : others) each.join();
}

void Team::meet() {
  const uint32_t members = processes_ * threads_;
  const uint32_t all = (shared_->met.fetch_add(1) / members + 1) * members;
  while (shared_->met.load() < all) usleep(kLookUs);
}

}  // namespace uwarp::bench
