// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "ends/crowd.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>

#include "ends/round_trips.h"
#include "ends/sockets.h"

namespace uwarp::bench {
namespace {

constexpr double kSilenceSeconds = 0.05;  // after which nothing is left on its way
constexpr double kWarmUpSeconds = 2;      // at most, until each receiver has been reached
constexpr size_t kSendsPerLook = 256;     // between two looks at the clock

/// Shared by the processes of a crowd. Zeroed memory.
struct Tally {
  std::atomic<bool> stop;
  alignas(64) std::atomic<uint64_t> taken;
};

Tally* make_tally() {
  void* const memory =
      mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) die("mmap");
  return static_cast<Tally*>(memory);
}

/// A process of the crowd. Receives until it is asked to stop and nothing comes any more.
[[noreturn]] void run_child(Receivers& receivers, Tally& tally) {
  Clock::time_point last = Clock::now();
  for (;;) {
    const uint64_t taken = receivers.take();
    if (taken > 0) {
      tally.taken.fetch_add(taken, std::memory_order_relaxed);
      last = Clock::now();
    } else if (tally.stop.load(std::memory_order_relaxed) &&
               seconds_since(last) > kSilenceSeconds) {
      _exit(0);
    }
  }
}

/// Starts a process with so many receivers; their addresses.
std::vector<char> start_child(int count, const MakeReceivers& make, Tally& tally) {
  int ends[2];
  if (pipe(ends) != 0) die("pipe");
  const pid_t child = fork();
  if (child < 0) die("fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    const std::unique_ptr<Receivers> receivers = make(count);
    const std::vector<char> own = receivers->addresses();
    if (write(ends[1], own.data(), own.size()) != static_cast<ssize_t>(own.size())) die("write");
    close(ends[1]);
    run_child(*receivers, tally);
  }
  close(ends[1]);
  std::vector<char> addresses;
  char bytes[4096];
  for (ssize_t got; (got = read(ends[0], bytes, sizeof bytes)) > 0;) {
    addresses.insert(addresses.end(), bytes, bytes + got);
  }
  close(ends[0]);
  if (addresses.empty()) die("no receivers");
  return addresses;
}

/// Until no process of the crowd is left.
void stop(Tally& tally) {
  tally.stop.store(true);
  while (wait(nullptr) > 0) {
  }
}

}  // namespace

void serve_crowd(const Ends& ends, const Crowd& crowd, const MakeReceivers& make) {
  Tally& tally = *make_tally();
  std::vector<char> addresses;
  for (int i = 0; i < crowd.processes; ++i) {
    const int before = crowd.receivers * i / crowd.processes;
    const int behind = crowd.receivers * (i + 1) / crowd.processes;
    const std::vector<char> some = start_child(behind - before, make, tally);
    addresses.insert(addresses.end(), some.begin(), some.end());
  }
  const int control = open_one(ends);
  send_all(control, addresses.data(), addresses.size());
  for (char question; receive_all(control, &question, 1);) {
    if (question == Audience::kEnd) stop(tally);
    const uint64_t taken = tally.taken.load();
    send_all(control, reinterpret_cast<const char*>(&taken), sizeof taken);
  }
  stop(tally);
}

Audience::Audience(const Ends& ends, int receivers, size_t address_bytes)
    : address_bytes_(address_bytes),
      control_(open_one(ends)),
      addresses_(static_cast<size_t>(receivers) * address_bytes) {
  if (!receive_all(control_, addresses_.data(), addresses_.size())) die("no receivers");
}

const char* Audience::address(size_t receiver) const {
  return addresses_.data() + receiver * address_bytes_;
}

uint64_t Audience::ask(Question question) const {
  const char asked = question;
  uint64_t taken = 0;
  send_all(control_, &asked, 1);
  if (!receive_all(control_, reinterpret_cast<char*>(&taken), sizeof taken)) die("no receivers");
  return taken;
}

void address_audience(const Audience& audience, double seconds, size_t bytes,
                      const std::function<void(size_t count)>& send) {
  const auto early = Clock::now();
  send(audience.size());
  while (audience.taken() < audience.size() && seconds_since(early) < kWarmUpSeconds) {
  }
  const uint64_t before = audience.taken();
  const auto start = Clock::now();
  double sent = 0;
  for (; seconds_since(start) < seconds; sent += kSendsPerLook) send(kSendsPerLook);
  const auto during = static_cast<double>(audience.taken() - before);
  const double rate = during / seconds_since(start);
  print_figure("per_second", rate);
  print_figure("mb_per_second", rate * static_cast<double>(bytes) / 1e6);
  const uint64_t all = audience.taken_at_last() - before;
  print_figure("lost", 1 - static_cast<double>(all) / sent);
}

}  // namespace uwarp::bench
