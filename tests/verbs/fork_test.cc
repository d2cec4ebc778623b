// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Children of a process whose connections are at work: the child has RDMA of its own at once, and
// the parent's connections go on whole. Judged by rounds of work and their bytes, never by time.
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "verbs/ping_pong.h"

extern char** environ;

namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadsInChild = false;  // ThreadSanitizer does not support threads after fork
#else
constexpr bool kThreadsInChild = true;
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kForkInHandler = false;  // their fork() takes locks of their own
#else
constexpr bool kForkInHandler = true;
#endif

constexpr int kChildren = 5;
constexpr int kRoundsOfChild = 20;
constexpr int kRoundsBetween = 20;
constexpr unsigned kChildSeconds = 60;

/// A child's life: RDMA of its own, many rounds. Says on stderr what went wrong.
[[noreturn]] void work_and_exit(Waiting waiting, int generations = 1) {
  alarm(kChildSeconds);
  {
    const Context context = open_device();
    if (context == nullptr) _exit(2);
    PingPong own(context.get(), waiting);
    if (!own.rounds(kRoundsOfChild)) {
      std::fprintf(stderr, "child %d: %s\n", getpid(), own.fault());
      _exit(3);
    }
    if (generations > 1) {
      const pid_t next = fork();
      if (next == 0) work_and_exit(waiting, generations - 1);
      int status = -1;
      if (!own.rounds(kRoundsOfChild)) _exit(4);
      if (waitpid(next, &status, 0) != next || status != 0) _exit(5);
      if (!own.rounds(kRoundsOfChild)) _exit(6);
    }
  }
  _exit(::testing::Test::HasFailure() ? 7 : 0);
}

/// Waits for a child, which must exit with 0.
::testing::AssertionResult ends_well(pid_t child) {
  int status = -1;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return ::testing::AssertionFailure() << "waitpid: " << strerror(errno);
  if (status == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "child ends with " << (WIFSIGNALED(status) ? "signal " : "status ")
         << (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

/// Rounds in a thread of their own until this ends, which expects that none has failed.
class Traffic {
 public:
  Traffic(ibv_context* context, Waiting waiting)
      : work_(context, waiting), thread_([this] {
          while (!stop_.load() && work_.round()) rounds_.fetch_add(1);
        }) {
    EXPECT_TRUE(goes_on());
  }
  ~Traffic() {
    stop_.store(true);
    thread_.join();
    EXPECT_STREQ(work_.fault(), nullptr);
  }
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

  uint64_t rounds() const { return rounds_.load(); }
  /// Waits for so many more rounds.
  bool goes_on(uint64_t more = kRoundsBetween) {
    const uint64_t wanted = rounds() + more;
    return wait_until([&] { return rounds() >= wanted || work_.fault() != nullptr; }) &&
           rounds() >= wanted;
  }
  pthread_t thread() { return thread_.native_handle(); }

 private:
  PingPong work_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> rounds_{0};
  std::thread thread_;
};

class Fork : public VerbsTest {};

/// Beside traffic that waits in each way.
class ForkBeside : public VerbsTest, public ::testing::WithParamInterface<Waiting> {};
INSTANTIATE_TEST_SUITE_P(Threads, ForkBeside,
                         ::testing::Values(Waiting::kPolling, Waiting::kInRead, Waiting::kInEpoll,
                                           Waiting::kByHelper),
                         [](const auto& info) { return name_of(info.param); });

// What the thread that forks has served last is a connection of the parent.
TEST_P(ForkBeside, ByTheThreadThatHasServed) {
  if (!kThreadsInChild) GTEST_SKIP() << "threads after fork";
  PingPong work(context(), GetParam());
  ASSERT_TRUE(work.rounds(kRoundsBetween)) << work.fault();
  for (int i = 0; i < kChildren; ++i) {
    const pid_t child = fork();
    if (child == 0) work_and_exit(GetParam());
    EXPECT_TRUE(work.rounds(kRoundsBetween)) << work.fault();
    EXPECT_TRUE(ends_well(child));
    ASSERT_TRUE(work.rounds(kRoundsBetween)) << work.fault();
  }
}

/// The sockets that are open here.
std::vector<int> open_sockets() {
  std::vector<int> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  while (const dirent* entry = folder == nullptr ? nullptr : readdir(folder.get())) {
    const int fd = atoi(entry->d_name);
    struct stat status = {};
    if (entry->d_name[0] != '.' && fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode))
      found.push_back(fd);
  }
  return found;
}

/// Sockets of the child in the places of the parent's, each with a byte to read.
class Decoys {
 public:
  explicit Decoys(const std::vector<int>& places) {
    for (const int place : places) {
      int ends[2] = {-1, -1};
      if (fcntl(place, F_GETFD) >= 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) continue;
      if (ends[1] != place) {
        (void)dup2(ends[1], place);
        close(ends[1]);
      }
      if (write(ends[0], "x", 1) == 1) places_.push_back(place);
    }
  }
  size_t count() const { return places_.size(); }
  bool whole() const {
    return std::all_of(places_.begin(), places_.end(), [](int place) {
      char byte = 0;
      return recv(place, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
    });
  }

 private:
  std::vector<int> places_;
};

// A thread that waits looks first at what it has served last: in the child that is nothing.
TEST_P(ForkBeside, AndWaitingInTheChild) {
  if (!kThreadsInChild) GTEST_SKIP() << "threads after fork";
  PingPong work(context(), GetParam());
  ASSERT_TRUE(work.rounds(20 * kRoundsBetween)) << work.fault();
  const std::vector<int> parents = open_sockets();
  const pid_t child = fork();
  if (child == 0) {
    alarm(kChildSeconds);
    const Context own = open_device();
    const Channel channel(ibv_create_comp_channel(own.get()));
    const Cq cq(ibv_create_cq(own.get(), 8, nullptr, channel.get(), 0));
    const Decoys decoys(parents);
    if (ibv_req_notify_cq(cq.get(), 0) != 0 || decoys.count() == 0) _exit(2);
    if (readable(channel->fd, std::chrono::milliseconds(50))) _exit(3);
    _exit(decoys.whole() ? 0 : 4);
  }
  EXPECT_TRUE(ends_well(child));
  EXPECT_TRUE(work.rounds(kRoundsBetween)) << work.fault();
}

TEST_P(ForkBeside, ByAnotherThreadAtAnyMoment) {
  if (!kThreadsInChild) GTEST_SKIP() << "threads after fork";
  Traffic traffic(context(), GetParam());
  for (int i = 0; i < kChildren; ++i) {
    ASSERT_TRUE(traffic.goes_on(static_cast<uint64_t>(i % 3)));
    usleep(static_cast<useconds_t>(i * 37 % 101));  // somewhere inside a round
    const pid_t child = fork();
    if (child == 0) work_and_exit(GetParam());
    EXPECT_TRUE(traffic.goes_on());
    EXPECT_TRUE(ends_well(child));
    EXPECT_TRUE(traffic.goes_on());
  }
}

// Children of children, as of a daemon that forks twice and then forks servers.
TEST_F(Fork, ChildrenOfChildren) {
  if (!kThreadsInChild) GTEST_SKIP() << "threads after fork";
  Traffic traffic(context(), Waiting::kInRead);
  const pid_t child = fork();
  if (child == 0) work_and_exit(Waiting::kInRead, 3);
  EXPECT_TRUE(ends_well(child));
  EXPECT_TRUE(traffic.goes_on());
}

// A child that uses no RDMA, and ends in an orderly way: exit handlers of the library run there.
TEST_F(Fork, AChildThatOnlyExits) {
  Traffic traffic(context(), Waiting::kPolling);
  for (int i = 0; i < kChildren; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(kChildSeconds);
      if (!kForkInHandler) _exit(0);  // a sanitizer looks for leaks in exit()
      std::exit(0);
    }
    EXPECT_TRUE(ends_well(child));
    EXPECT_TRUE(traffic.goes_on());
  }
}

TEST_F(Fork, ByAllOtherCallsBesideTraffic) {
  Traffic traffic(context(), Waiting::kInRead);
  char program[] = "/bin/true";
  char* const arguments[] = {program, nullptr};
  for (int i = 0; i < kChildren; ++i) {
    pid_t child = -1;
    ASSERT_EQ(posix_spawn(&child, program, nullptr, nullptr, arguments, environ), 0);
    EXPECT_TRUE(traffic.goes_on());
    EXPECT_TRUE(ends_well(child));
    child = vfork();
    if (child == 0) {
      execv(program, arguments);
      _exit(9);
    }
    ASSERT_GT(child, 0);
    EXPECT_TRUE(traffic.goes_on());
    EXPECT_TRUE(ends_well(child));
    child = vfork();
    if (child == 0) _exit(0);
    EXPECT_TRUE(ends_well(child));
    EXPECT_EQ(std::system("true"), 0);
    FILE* const pipe = popen("echo out", "r");
    ASSERT_NE(pipe, nullptr);
    char out[8] = {};
    EXPECT_NE(std::fgets(out, sizeof out, pipe), nullptr);
    EXPECT_STREQ(out, "out\n");
    EXPECT_EQ(pclose(pipe), 0);
    EXPECT_TRUE(traffic.goes_on());
  }
}

std::atomic<int> handled{0};
std::atomic<pid_t> handlers_child{0};

/// What a handler's child does. The third returns into the call on the parent's connection that the
/// handler has interrupted, which it may not, and must do no harm there. It is not tried in a
/// thread that waits for events: the channel's descriptor is the application's own, and the child
/// would read the parent's events from it.
enum HandlersChild { kExits, kExecutes, kReturns, kHandlersChildren };
std::atomic<bool> may_return{false};
constexpr useconds_t kLateUs = 2000;

void fork_in_handler(int) {
  const int saved = errno;
  const int turn = handled.fetch_add(1);
  const int kind = turn % (may_return.load() ? kHandlersChildren : kReturns);
  const pid_t child = fork();
  if (child == 0 && kind == kExits) _exit(0);
  if (child == 0 && kind == kExecutes) {
    char program[] = "/bin/true";
    char* const arguments[] = {program, nullptr};
    execv(program, arguments);
    _exit(9);
  }
  // In the midst of a call, once the parent is well past it.
  if (child == 0) usleep(kLateUs);
  handlers_child.store(child);
  errno = saved;
}

TEST_P(ForkBeside, InASignalHandlerOfTheServingThread) {
  if (!kForkInHandler) GTEST_SKIP() << "fork() of a sanitizer";
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = fork_in_handler;
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  {
    Traffic traffic(context(), GetParam());
    handled.store(0);
    may_return.store(GetParam() == Waiting::kPolling || GetParam() == Waiting::kByHelper);
    for (int i = 0; i < 10 * kHandlersChildren; ++i) {
      handlers_child.store(0);
      usleep(static_cast<useconds_t>(i * 37 % 101));
      ASSERT_EQ(pthread_kill(traffic.thread(), SIGUSR1), 0);
      ASSERT_TRUE(wait_until([] { return handlers_child.load() != 0; }));
      const pid_t child = handlers_child.load();
      ASSERT_GT(child, 0);
      EXPECT_TRUE(traffic.goes_on(3));
      if (may_return.load() && i % kHandlersChildren == kReturns) {
        usleep(5 * kLateUs);
        kill(child, SIGKILL);
        int status = 0;
        EXPECT_EQ(waitpid(child, &status, 0), child);
      } else {
        EXPECT_TRUE(ends_well(child));
      }
      EXPECT_TRUE(traffic.goes_on(3));
    }
  }
  sigaction(SIGUSR1, &before, nullptr);
}

/// Another process that sends back what comes, until this one ends the connection.
class Echo {
 public:
  static constexpr uint32_t kBytes = 64;
  static constexpr size_t kSlots = 8;

  /// Makes the process, which opens the device itself.
  Echo() {
    EXPECT_EQ(pipe(to_), 0);
    EXPECT_EQ(pipe(from_), 0);
    process_ = fork();
    if (process_ == 0) run();
    EXPECT_EQ(read(from_[0], &peer_, sizeof peer_), static_cast<ssize_t>(sizeof peer_));
  }
  ~Echo() {
    kill(process_, SIGKILL);
    int status = 0;
    waitpid(process_, &status, 0);
    for (const int fd : {to_[0], to_[1], from_[0], from_[1]}) close(fd);
  }
  Echo(const Echo&) = delete;
  Echo& operator=(const Echo&) = delete;

  void connect(End& own) {
    const Address address = own.address();
    ASSERT_EQ(write(to_[1], &address, sizeof address), static_cast<ssize_t>(sizeof address));
    own.connect(peer_);
  }

 private:
  [[noreturn]] void run() {
    alarm(3 * kChildSeconds);
    const Context context = open_device();
    End end(context.get(), 4096);
    for (size_t i = 0; i < kSlots; ++i) (void)end.post_receive(i, i * kBytes, kBytes);
    const Address own = end.address();
    Address peer = {};
    if (write(from_[1], &own, sizeof own) != sizeof own ||
        read(to_[0], &peer, sizeof peer) != sizeof peer)
      _exit(1);
    end.connect(peer);
    for (;;) {
      const auto wc = next_completion(end.cq.get());
      if (!wc || wc->status != IBV_WC_SUCCESS) _exit(0);
      if (wc->opcode == IBV_WC_SEND) {
        if (end.post_receive(wc->wr_id, wc->wr_id * kBytes, kBytes) != 0) _exit(0);
      } else if (end.post_send(wc->wr_id, wc->wr_id * kBytes, kBytes) != 0) {
        _exit(0);
      }
    }
  }

  int to_[2] = {-1, -1}, from_[2] = {-1, -1};
  pid_t process_ = -1;
  Address peer_ = {};
};

/// There and back by another process, waiting for events.
::testing::AssertionResult asks(End& end, ibv_comp_channel* channel, int times) {
  static uint8_t value = 0;
  for (int i = 0; i < times; ++i) {
    std::memset(end.memory.data(), ++value, Echo::kBytes);
    if (end.post_receive(1, 1024, Echo::kBytes) != 0 || end.post_send(2, 0, Echo::kBytes) != 0)
      return ::testing::AssertionFailure() << "posting";
    for (int left = 2; left > 0;) {
      ibv_wc wc{};
      if (ibv_req_notify_cq(end.cq.get(), 0) != 0) return ::testing::AssertionFailure() << "arming";
      const int found = ibv_poll_cq(end.cq.get(), 1, &wc);
      if (found == 1) {
        --left;
        if (wc.status != IBV_WC_SUCCESS)
          return ::testing::AssertionFailure() << ibv_wc_status_str(wc.status);
        continue;
      }
      if (!readable(channel->fd)) return ::testing::AssertionFailure() << "nothing comes";
      ibv_cq* cq = nullptr;
      void* context = nullptr;
      if (ibv_get_cq_event(channel, &cq, &context) != 0)
        return ::testing::AssertionFailure() << "no event";
      ibv_ack_cq_events(cq, 1);
    }
    for (uint32_t k = 0; k < Echo::kBytes; ++k)
      if (end.memory[1024 + k] != value) return ::testing::AssertionFailure() << "wrong bytes";
  }
  return ::testing::AssertionSuccess();
}

// The parent's connection leads to another process, which must get every byte of it, and no other.
TEST_F(Fork, ConnectedWithAnotherProcess) {
  if (!kThreadsInChild) GTEST_SKIP() << "threads after fork";
  Echo echo;
  const Channel channel(ibv_create_comp_channel(context()));
  End end(context(), 4096, channel.get());
  echo.connect(end);
  ASSERT_TRUE(asks(end, channel.get(), 5 * kRoundsBetween));
  for (int i = 0; i < 2 * kChildren; ++i) {
    const pid_t child = fork();
    if (child == 0) work_and_exit(i % 2 == 0 ? Waiting::kInRead : Waiting::kPolling);
    EXPECT_TRUE(asks(end, channel.get(), kRoundsBetween));
    EXPECT_TRUE(ends_well(child));
    ASSERT_TRUE(asks(end, channel.get(), kRoundsBetween));
  }
}

/// Connections of one process by the thousand: both ends of each are here.
class ManyConnections {
 public:
  ManyConnections(ibv_context* context, size_t count)
      : context_(context),
        pd_(ibv_alloc_pd(context)),
        cq_(ibv_create_cq(context, static_cast<int>(4 * count), nullptr, nullptr, 0)),
        memory_(2 * count),
        mr_(ibv_reg_mr(pd_.get(), memory_.data(), memory_.size() * sizeof memory_[0], kAllAccess)) {
    EXPECT_EQ(ibv_query_gid(context, 1, 0, &gid_), 0);
    for (size_t i = 0; i < count; ++i) {
      pairs_.push_back({make_qp(), make_qp()});
      connect(pairs_.back().first.get(), pairs_.back().second.get());
    }
    for (size_t i = 0; i < count; ++i) connect(pairs_[i].second.get(), pairs_[i].first.get());
  }

  /// Each connection writes a new value; all must complete and arrive.
  ::testing::AssertionResult write_all() {
    ++value_;
    const size_t count = pairs_.size();
    for (size_t i = 0; i < count; ++i) {
      memory_[i] = value_ << 32 | i;
      ibv_sge list = {reinterpret_cast<uint64_t>(&memory_[i]), 8, mr_->lkey};
      ibv_send_wr wr = {};
      wr.wr_id = i;
      wr.sg_list = &list;
      wr.num_sge = 1;
      wr.opcode = IBV_WR_RDMA_WRITE;
      wr.send_flags = IBV_SEND_SIGNALED;
      wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(&memory_[count + i]);
      wr.wr.rdma.rkey = mr_->rkey;
      ibv_send_wr* bad = nullptr;
      if (ibv_post_send(pairs_[i].first.get(), &wr, &bad) != 0)
        return ::testing::AssertionFailure() << "posting";
    }
    for (const auto& [id, status] : next_completions(cq_.get(), static_cast<int>(count)))
      if (status != IBV_WC_SUCCESS)
        return ::testing::AssertionFailure()
               << "connection " << id << ": " << ibv_wc_status_str(status);
    const bool arrived = wait_until([&] {
      for (size_t i = 0; i < count; ++i)
        if (__atomic_load_n(&memory_[count + i], __ATOMIC_ACQUIRE) != (value_ << 32 | i))
          return false;
      return true;
    });
    if (!arrived) return ::testing::AssertionFailure() << "a Write that does not arrive";
    return ::testing::AssertionSuccess();
  }

 private:
  Qp make_qp() {
    ibv_qp_init_attr init = init_attributes(cq_.get(), 2);
    Qp qp(ibv_create_qp(pd_.get(), &init));
    EXPECT_NE(qp, nullptr);
    EXPECT_EQ(to_init(qp.get()), 0);
    return qp;
  }
  void connect(ibv_qp* own, ibv_qp* peer) {
    Address address = {};
    address.gid = gid_;
    address.qpn = peer->qp_num;
    EXPECT_EQ(to_rtr(own, address), 0);
    EXPECT_EQ(to_rts(own, 0), 0);
  }

  ibv_context* const context_;
  const Pd pd_;
  const Cq cq_;
  std::vector<uint64_t> memory_;
  const Mr mr_;
  ibv_gid gid_ = {};
  uint64_t value_ = 0;
  std::vector<std::pair<Qp, Qp>> pairs_;
};

// libibverbs would mark pages of each region, which splits mappings, of which a process has 65530
// (vm.max_map_count).
TEST_F(Fork, RegionsNeedNoMarks) {
  if (syscall(SYS_faccessat, AT_FDCWD, "/sys/class/infiniband", F_OK) == 0)
    GTEST_SKIP() << "there may be real adapters, for which libibverbs answers";
  const Context context = open_device();
  const Pd pd(ibv_alloc_pd(context.get()));
  EXPECT_EQ(ibv_fork_init(), 0);
  EXPECT_EQ(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  };
  std::vector<char> memory(256 * 8192);
  std::vector<Mr> regions;
  const auto before = mappings();
  for (size_t i = 0; i != 256; ++i)
    regions.emplace_back(ibv_reg_mr(pd.get(), memory.data() + 8192 * i, 4096, 0));
  EXPECT_NE(regions.back(), nullptr);
  EXPECT_LT(mappings() - before, 64) << "two for each region, if they were marked";
}

TEST_F(Fork, FromAThousandConnections) {
  if (!kThreadsInChild) GTEST_SKIP() << "threads after fork";
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  if (files.rlim_cur < 12000) GTEST_SKIP() << "a limit of " << files.rlim_cur << " files";
  ManyConnections many(context(), 1000);
  ASSERT_TRUE(many.write_all());
  for (int i = 0; i < 3; ++i) {
    const pid_t child = fork();
    if (child == 0) work_and_exit(Waiting::kInRead);
    EXPECT_TRUE(many.write_all());
    EXPECT_TRUE(ends_well(child));
    ASSERT_TRUE(many.write_all());
  }
}

}  // namespace
