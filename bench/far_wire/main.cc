// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// far_wire: joins two network namespaces as if they were far apart. It makes a device in each, and
// carries frames between them with the delay, the rate and the losses asked for, until its standard
// input ends. For machines whose kernel has no netem.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

#include "ends/command_line.h"
#include "far_wire/line.h"

namespace uwarp::bench {
namespace {

constexpr size_t kMostFrameBytes = 64 << 10;
constexpr int kFramesPerTurn = 32;  // before the other direction has its turn

struct FarOptions {
  std::string device;
  std::string other_namespace;
  uint32_t round_trip_us = 20'000;
  double mbit = 1000;
  double queue_ms = 20;
  double loss_percent = 0;
  unsigned seed = 1;
};

FarOptions parse(int argc, char** argv) {
  FarOptions options;
  CLI::App app("Two network namespaces, far apart.", "far_wire");
  app.add_option("device", options.device, "its name, in both")->required();
  app.add_option("namespace", options.other_namespace, "the other one: /proc/PID/ns/net")
      ->required();
  add_positive(app, "--round-trip-us", options.round_trip_us);
  add_positive(app, "--mbit", options.mbit, "per second, in each direction");
  add_positive(app, "--queue-ms", options.queue_ms, "what may wait for the rate");
  app.add_option("--loss-percent", options.loss_percent, "of the frames, in each direction")
      ->check(CLI::Range(0.0, 100.0));
  app.add_option("--seed", options.seed);
  parse_or_exit(app, argc, argv);
  return options;
}

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

/// A network device of this namespace whose frames are read and written here.
int open_tap(const std::string& name) {
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) fail("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  if (ioctl(fd, TUNSETIFF, &request) != 0) fail(name);
  return fd;
}

void enter_namespace(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) fail(path);
  close(fd);
}

/// One end reads, the other one writes.
struct Direction {
  int from;
  int to;
  Line line;

  /// What the reading device has, at most so many frames.
  void read_frames() {
    static std::byte bytes[kMostFrameBytes];
    for (int i = 0; i < kFramesPerTurn; ++i) {
      const ssize_t size = read(from, bytes, sizeof bytes);
      if (size <= 0) return;
      line.enter(bytes, static_cast<size_t>(size), Clock::now());
    }
  }

  /// A device that takes no frame now has lost it, as any receiver without room.
  void write_frames() {
    while (line.has_due(Clock::now())) {
      const auto frame = line.take();
      if (write(to, frame.data(), frame.size()) < 0) continue;
    }
  }
};

/// Until standard input ends.
void carry(Direction& there, Direction& back) {
  const auto never = Clock::time_point::max();
  for (;;) {
    there.write_frames();
    back.write_frames();
    const auto next = std::min(there.line.next(never), back.line.next(never));
    timespec wait{};
    if (next != never) {
      const auto left = std::max<int64_t>(
          0, std::chrono::duration_cast<std::chrono::nanoseconds>(next - Clock::now()).count());
      wait = {left / 1'000'000'000, left % 1'000'000'000};
    }
    pollfd fds[] = {{there.from, POLLIN, 0}, {back.from, POLLIN, 0}, {STDIN_FILENO, 0, 0}};
    if (ppoll(fds, 3, next == never ? nullptr : &wait, nullptr) < 0 && errno != EINTR)
      fail("ppoll");
    if (fds[2].revents != 0) return;
    if (fds[0].revents != 0) there.read_frames();
    if (fds[1].revents != 0) back.read_frames();
  }
}

void run(const FarOptions& options) {
  const int near = open_tap(options.device);
  enter_namespace(options.other_namespace);
  const int far = open_tap(options.device);
  const double rate = options.mbit * 1e6 / 8;
  const LineShape shape{std::chrono::microseconds(options.round_trip_us / 2), rate,
                        rate * options.queue_ms / 1e3, options.loss_percent / 100};
  Direction there{near, far, Line(shape, options.seed)};
  Direction back{far, near, Line(shape, options.seed + 1)};
  prctl(PR_SET_TIMERSLACK, 1);
  std::puts("ready");
  std::fflush(stdout);
  carry(there, back);
  std::printf("lost %zu and %zu frames\n", there.line.lost(), back.line.lost());
}

}  // namespace
}  // namespace uwarp::bench

int main(int argc, char** argv) {
  const auto options = uwarp::bench::parse(argc, argv);
  try {
    uwarp::bench::run(options);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "far_wire: %s\n", failure.what());
    return 1;
  }
  return 0;
}
