// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Random operations on many queue pairs between processes that are killed and stopped at any point,
// checked against the records of soak/link.h. This process, the hub, is one side of all links and
// knows what both sides do. The memory of the other processes is shared with it, so it sees every
// byte. The same seed makes the same choices, as far as timing allows.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "soak/link.h"
#include "soak/side.h"

namespace soak {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// Finds hangs: nothing here takes seconds, except a stopped process or a wait for the processor.
constexpr auto kPatience = 90s;
constexpr uint64_t kRequestsPerTrouble = 32;

struct Options {
  uint64_t seconds = 10;
  uint64_t seed = 1;
  uint32_t links = 100;
  uint32_t peers = 5;
  bool kills = true;
};

Options options;

std::byte* map_memory(int fd, size_t size) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (memory == MAP_FAILED) violation("no memory");
  return static_cast<std::byte*>(memory);
}

// ---- The other processes.

int run_peer(int fd, int memory_fd, uint32_t links, bool sleeps) {
  std::byte* memory = map_memory(memory_fd, Layout::side_bytes(links));
  close(memory_fd);
  const auto send_report = [&](const Report& report) {
    if (send(fd, &report, sizeof report, MSG_NOSIGNAL) < 0) std::_Exit(0);  // the hub has ended
  };
  // A first use makes what the engine keeps for good, so that it is not counted as a leak.
  { Side warm(memory, links, sleeps, send_report); }
  const Possessions before = possessions();
  {
    Side side(memory, links, sleeps, send_report);
    for (int idle = 0;;) {
      Command command;
      const ssize_t got = recv(fd, &command, sizeof command, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return 0;
      if (got > 0 && command.kind == Command::kQuit) break;
      if (got > 0) side.execute(command);
      const bool busy = side.poll() || got > 0;
      idle = busy ? 0 : idle + 1;
      if (idle > (sleeps ? 2 : 50)) side.sleep(fd);
    }
  }
  Report report{};
  report.kind = Report::kGone;
  report.status = shrinks_to(before) ? 0 : 1;
  report.id = possessions().files - before.files;
  report.length = static_cast<uint32_t>(possessions().threads - before.threads);
  send_report(report);
  return 0;
}

class Peer {
 public:
  Peer(uint32_t links, Tally& tally) : links_(links), tally_(tally) {
    memory_fd_ = memfd_create("soak", 0);
    if (memory_fd_ < 0 || ftruncate(memory_fd_, static_cast<off_t>(Layout::side_bytes(links))) != 0)
      violation("no shared memory");
    memory = map_memory(memory_fd_, Layout::side_bytes(links));
    shared.reset(memory);
  }

  void start(bool sleeps) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) violation("no socket");
    fd_ = ends[0];
    const int theirs = fcntl(ends[1], F_DUPFD, 0);
    close(ends[1]);
    std::string text[] = {"soak",
                          "--peer",
                          std::to_string(theirs),
                          std::to_string(memory_fd_),
                          std::to_string(links_),
                          sleeps ? "1" : "0"};
    char* arguments[] = {text[0].data(), text[1].data(), text[2].data(), text[3].data(),
                         text[4].data(), text[5].data(), nullptr};
    if (posix_spawn(&pid_, "/proc/self/exe", nullptr, nullptr, arguments, environ) != 0)
      violation("no process");
    close(theirs);
    outgoing_.clear();
    shared.reset(memory);
    tally_.add("processes");
  }
  bool running() const { return pid_ > 0; }
  pid_t pid() const { return pid_; }

  void send(const Command& command) {
    if (running()) outgoing_.push_back(command);
  }
  void flush() {
    while (running() && !outgoing_.empty()) {
      const ssize_t sent =
          ::send(fd_, &outgoing_.front(), sizeof(Command), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno == EAGAIN) return;
      if (sent < 0) violation("a process ended by itself");
      outgoing_.pop_front();
    }
  }
  bool receive(Report& report) {
    if (!running()) return false;
    const ssize_t got = recv(fd_, &report, sizeof report, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got != sizeof report) violation("a process ended by itself");
    return true;
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    reap();
    tally_.add("kills");
  }
  /// Stops the process until the time is over.
  void stop_for(Clock::duration time) {
    ::kill(pid_, SIGSTOP);
    goes_on_ = Clock::now() + time;
    tally_.add("stops");
  }
  bool stopped() const { return goes_on_ != Clock::time_point{}; }
  void look_at_clock() {
    if (!stopped() || Clock::now() < goes_on_) return;
    go_on();
  }
  void go_on() {
    if (running()) ::kill(pid_, SIGCONT);
    goes_on_ = {};
  }
  void reap() {
    int status = 0;
    waitpid(pid_, &status, 0);
    close(fd_);
    pid_ = 0;
    goes_on_ = {};
  }

  std::byte* memory;
  SharedBuffers shared;

 private:
  const uint32_t links_;
  Tally& tally_;
  int memory_fd_;
  int fd_ = -1;
  pid_t pid_ = 0;
  std::deque<Command> outgoing_;
  Clock::time_point goes_on_{};
};

// ---- The hub.

class Hub {
 public:
  Hub();
  void run();
  void print(const char* when) const;

 private:
  uint32_t links_per_peer() const { return options.links / options.peers; }
  Link& link(uint32_t peer, uint32_t index) { return *links_[peer * links_per_peer() + index]; }
  Peer& peer_of(size_t number) { return *peers_[number / links_per_peer()]; }

  void work();
  void cause_trouble();
  void kill_one();
  void start_what_is_down();
  void move_reports();
  void look_for_hangs();
  void finish();
  void settle(const char* what, const std::function<bool()>& done);

  Random random_{options.seed};
  Tally tally_;
  uint64_t ids_ = 0;
  uint64_t trouble_at_ = kRequestsPerTrouble;
  uint64_t turns_ = 0;
  std::byte* memory_;
  SharedBuffers shared_;
  std::deque<Report> own_reports_;
  std::unique_ptr<Side> side_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<Clock::time_point> heard_;
  Possessions before_{};
  bool finishing_ = false;
};

Hub::Hub() : memory_(map_memory(-1, Layout::side_bytes(options.links))) {
  for (uint32_t i = 0; i < options.peers; ++i) {
    peers_.push_back(std::make_unique<Peer>(links_per_peer(), tally_));
  }
  const auto keep = [this](const Report& report) { own_reports_.push_back(report); };
  { Side warm(memory_, options.links, false, keep); }
  before_ = possessions();
  side_ = std::make_unique<Side>(memory_, options.links, false, keep);
  shared_.reset(memory_);
  for (uint32_t i = 0; i < options.links; ++i) {
    Peer& peer = *peers_[i / links_per_peer()];
    links_.push_back(std::make_unique<Link>(
        i,
        Link::EndSetup{i, memory_, &shared_,
                       [this](const Command& command) { side_->execute(command); }},
        Link::EndSetup{i % links_per_peer(), peer.memory, &peer.shared,
                       [&peer](const Command& command) { peer.send(command); }},
        tally_, ids_));
  }
  heard_.assign(options.links, Clock::now());
}

void Hub::run() {
  const auto end = Clock::now() + std::chrono::seconds(options.seconds);
  auto say = Clock::now() + 60s;
  while (Clock::now() < end) {
    start_what_is_down();
    work();
    move_reports();
    // Counted in requests and not in time, which also passes while links are down.
    for (; options.kills && ids_ >= trouble_at_; trouble_at_ += kRequestsPerTrouble)
      cause_trouble();
    for (auto& peer : peers_) peer->look_at_clock();
    look_for_hangs();
    if (Clock::now() < say) continue;
    print("so far");
    say += 60s;
  }
  finish();
}

void Hub::start_what_is_down() {
  if (finishing_) return;
  for (uint32_t p = 0; p < options.peers; ++p) {
    Peer& peer = *peers_[p];
    if (!peer.running()) {
      bool all_down = true;
      for (uint32_t i = 0; i < links_per_peer(); ++i)
        all_down &= link(p, i).state() == Link::State::kDown;
      if (!all_down) continue;
      peer.start(chance(random_, 2));
    }
    for (uint32_t i = 0; i < links_per_peer(); ++i) {
      if (link(p, i).state() != Link::State::kDown || peer.stopped()) continue;
      heard_[p * links_per_peer() + i] = Clock::now();
      link(p, i).start(random_);
    }
  }
}

void Hub::work() {
  for (int i = 0; i < 32; ++i, ++turns_) {
    Link& chosen = *links_[pick(random_, links_.size())];
    if (chosen.state() == Link::State::kUp) chosen.act(random_);
    if (turns_ % 5000 == 0) links_[pick(random_, links_.size())]->verify();
  }
}

void Hub::cause_trouble() {
  if (chance(random_, 3000)) kill_one();
  if (chance(random_, 2000)) {
    Peer& peer = *peers_[pick(random_, peers_.size())];
    if (peer.running() && !peer.stopped())
      peer.stop_for(std::chrono::milliseconds(20 + pick(random_, 1500)));
  }
  if (chance(random_, 150)) {
    links_[pick(random_, links_.size())]->stop();
    tally_.add("resets");
  }
  Command command{};
  command.link = static_cast<uint32_t>(pick(random_, links_per_peer()));
  if (chance(random_, 100)) {
    command.kind = Command::kResize;
    // Never less than what all links together may have open.
    command.length = 4096 + static_cast<uint32_t>(pick(random_, 8192));
    tally_.add("queues resized");
  } else if (chance(random_, 20)) {
    command.kind = Command::kRegister;
    command.length = static_cast<uint32_t>(pick(random_, 1 << 20));
    tally_.add("regions registered and freed");
  } else {
    return;
  }
  if (chance(random_, 2)) return side_->execute(command);
  peers_[pick(random_, peers_.size())]->send(command);
}

void Hub::kill_one() {
  const auto victim = static_cast<uint32_t>(pick(random_, options.peers));
  Peer& peer = *peers_[victim];
  if (!peer.running()) return;
  for (uint32_t i = 0; i < links_per_peer(); ++i) link(victim, i).lose();
  peer.kill();
  for (uint32_t i = 0; i < links_per_peer(); ++i) link(victim, i).peer_gone();
}

void Hub::move_reports() {
  side_->poll();
  while (!own_reports_.empty()) {
    const Report report = own_reports_.front();
    own_reports_.pop_front();
    heard_[report.link] = Clock::now();
    links_[report.link]->handle(0, report);
  }
  for (uint32_t p = 0; p < options.peers; ++p) {
    peers_[p]->flush();
    Report report;
    for (int i = 0; i < 256 && peers_[p]->receive(report); ++i) {
      if (report.kind == Report::kGone) {
        if (report.status != 0)
          violation("a process keeps " + std::to_string(report.id) + " files and " +
                    std::to_string(report.length) + " threads more than before");
        peers_[p]->reap();
        break;
      }
      heard_[p * links_per_peer() + report.link] = Clock::now();
      link(p, report.link).handle(1, report);
    }
  }
}

void Hub::look_for_hangs() {
  if (turns_ % 1024 != 0 && !finishing_) return;
  const auto now = Clock::now();
  for (size_t i = 0; i < links_.size(); ++i) {
    if (!links_[i]->waits() || peer_of(i).stopped()) heard_[i] = now;
    if (now - heard_[i] > kPatience)
      violation("link " + std::to_string(i) + " hangs: " + links_[i]->describe());
  }
}

void Hub::settle(const char* what, const std::function<bool()>& done) {
  const auto limit = Clock::now() + kPatience;
  while (!done()) {
    move_reports();
    if (Clock::now() > limit) {
      for (const auto& each : links_) {
        if (each->waits()) std::fprintf(stderr, "%s\n", each->describe().c_str());
      }
      violation(std::string("it does not come to an end: ") + what);
    }
  }
}

void Hub::finish() {
  finishing_ = true;
  for (auto& peer : peers_) peer->go_on();
  // Open requests complete first, then all links are stopped.
  settle("what is outstanding", [this] {
    return std::none_of(links_.begin(), links_.end(),
                        [](const auto& each) { return each->waits(); });
  });
  for (const auto& each : links_) each->verify();
  for (const auto& each : links_) each->stop();
  settle("stopping", [this] {
    return std::all_of(links_.begin(), links_.end(),
                       [](const auto& each) { return each->state() == Link::State::kDown; });
  });
  Command quit{};
  quit.kind = Command::kQuit;
  for (auto& peer : peers_) peer->send(quit);
  settle("processes", [this] {
    return std::none_of(peers_.begin(), peers_.end(),
                        [](const auto& peer) { return peer->running(); });
  });
  side_.reset();
  if (!shrinks_to(before_)) {
    const Possessions now = possessions();
    violation(std::to_string(now.files - before_.files) + " files and " +
              std::to_string(now.threads - before_.threads) + " threads more than before");
  }
}

void Hub::print(const char* when) const {
  std::printf("%s, seed %llu:", when, static_cast<unsigned long long>(options.seed));
  for (const auto& [what, count] : tally_.counts)
    std::printf(" %llu %s,", static_cast<unsigned long long>(count), what.c_str());
  std::printf(" %llu MB\n", static_cast<unsigned long long>(tally_.bytes >> 20));
  std::fflush(stdout);
}

[[noreturn]] void usage() {
  std::fprintf(stderr,
               "usage: uwarp-run soak [--seconds N] [--seed N] [--links N] [--peers N]"
               " [--no-kills]\n");
  std::exit(2);
}

void parse(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--no-kills") {
      options.kills = false;
      continue;
    }
    if (i + 1 == argc) usage();
    const uint64_t value = std::strtoull(argv[++i], nullptr, 0);
    if (name == "--seconds") {
      options.seconds = value;
    } else if (name == "--seed") {
      options.seed = value;
    } else if (name == "--links") {
      options.links = static_cast<uint32_t>(value);
    } else if (name == "--peers") {
      options.peers = static_cast<uint32_t>(value);
    } else {
      usage();
    }
  }
  if (options.peers == 0 || options.links < options.peers) usage();
  options.links -= options.links % options.peers;
}

}  // namespace

void violation(const std::string& what) {
  std::fprintf(stderr, "soak: seed %llu: %s\n", static_cast<unsigned long long>(options.seed),
               what.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace soak

int main(int argc, char** argv) {
  if (argc == 6 && std::string_view(argv[1]) == "--peer") {
    return soak::run_peer(std::atoi(argv[2]), std::atoi(argv[3]),
                          static_cast<uint32_t>(std::atoi(argv[4])), argv[5][0] == '1');
  }
  soak::parse(argc, argv);
  // A stopped process posts its receives late; that must not end a connection.
  setenv("UWARP_RNR_TIMEOUT_MS", "100000", 0);
  soak::Hub hub;
  hub.run();
  hub.print("in all");
  return 0;
}
