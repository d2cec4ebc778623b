// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Processes that all send datagrams to each other, while some are killed, stopped and started
// again. Each datagram names its sender, and its bytes follow from its header. None arrives
// changed, twice, or at another queue pair; each send completes once; queue pairs are reset and
// destroyed in between. When the killing is over, every process hears every other one.
#include <infiniband/verbs.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

extern char** environ;

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int kMost = 16;
constexpr uint32_t kQkey = 0x22222222;
constexpr uint32_t kRoute = sizeof(ibv_grh);
constexpr auto kPatience = 90s;
constexpr int kMemoryFd = 9;

/// Memory that all processes share.
struct Table {
  std::atomic<bool> calm;  // no process is killed any more
  std::atomic<bool> stop;
  std::atomic<uint64_t> received, sent;
  ibv_gid gid;
  /// (Life of the process) << 32 | number of its queue pair; 0: none.
  std::atomic<uint64_t> places[kMost];
  // [receiver][sender]: the sender's place in the last datagram
  std::atomic<uint64_t> heard[kMost][kMost];
};

struct Words {
  uint64_t from;  // as in Table::places
  uint32_t who;
  uint32_t target;
  uint64_t sequence;
  uint32_t size;
};

[[noreturn]] void wrong(const char* what) {
  std::fprintf(stderr, "datagram_soak: %s, errno %d\n", what, errno);
  std::abort();
}
void must(bool holds, const char* what) {
  if (!holds) wrong(what);
}

uint8_t pattern(const Words& words, size_t at) {
  return static_cast<uint8_t>(words.from * 3 + words.sequence * 31 + at * 7);
}

class Process {
 public:
  Process(Table& table, int self, int count, uint64_t life)
      : table_(table),
        self_(self),
        count_(count),
        life_(life),
        random_(life * 100 + self),
        memory_(kReceives * kSlot + kSlot) {
    int devices = 0;
    ibv_device** list = ibv_get_device_list(&devices);
    ibv_device* found = nullptr;
    for (int i = 0; i < devices; ++i)
      if (std::strcmp(ibv_get_device_name(list[i]), "uwarp_lo") == 0) found = list[i];
    must(found != nullptr && (context_ = ibv_open_device(found)) != nullptr, "no device");
    ibv_free_device_list(list);
    must((pd_ = ibv_alloc_pd(context_)) != nullptr, "no domain");
    must((cq_ = ibv_create_cq(context_, 4096, nullptr, nullptr, 0)) != nullptr, "no queue");
    must((mr_ = ibv_reg_mr(pd_, memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE)) != nullptr,
         "no region");
    ibv_ah_attr to = {};
    to.is_global = 1;
    to.port_num = 1;
    must(ibv_query_gid(context_, 1, 0, &to.grh.dgid) == 0, "no GID");
    must((ah_ = ibv_create_ah(pd_, &to)) != nullptr, "no address handle");
  }
  void run() {
    begin();
    while (!table_.stop) {
      for (int i = 0; i < 20; ++i) send();
      poll();
      const uint64_t chance = random_() % 20000;
      if (chance == 0 && !table_.calm) renew();
      if (chance % 64 == 0) usleep(static_cast<useconds_t>(random_() % 500));
    }
    end();
    must(ibv_destroy_ah(ah_) == 0 && ibv_destroy_cq(cq_) == 0 && ibv_dereg_mr(mr_) == 0 &&
             ibv_dealloc_pd(pd_) == 0 && ibv_close_device(context_) == 0,
         "something stays");
  }

 private:
  static constexpr size_t kReceives = 256;
  static constexpr size_t kSlot = 4096 + 64;

  void begin() {
    ibv_qp_init_attr init = {};
    init.send_cq = init.recv_cq = cq_;
    init.cap = {256, kReceives, 1, 1, 0};
    init.qp_type = IBV_QPT_UD;
    init.sq_sig_all = 1;
    must((qp_ = ibv_create_qp(pd_, &init)) != nullptr, "no queue pair");
    open_ = 0;
    ready();
  }
  void ready() {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qkey = kQkey;
    must(ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) ==
             0,
         "INIT");
    for (size_t i = 0; i < kReceives; ++i) receive(i);
    attr.qp_state = IBV_QPS_RTR;
    must(ibv_modify_qp(qp_, &attr, IBV_QP_STATE) == 0, "RTR");
    attr.qp_state = IBV_QPS_RTS;
    must(ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0, "RTS");
    table_.places[self_] = place_ = life_ << 32 | qp_->qp_num;
  }
  void to(ibv_qp_state state) {
    ibv_qp_attr attr = {};
    attr.qp_state = state;
    must(ibv_modify_qp(qp_, &attr, IBV_QP_STATE) == 0, "modify");
  }
  void end() {
    table_.places[self_] = 0;
    must(ibv_destroy_qp(qp_) == 0, "destroy");
    ibv_wc wc;
    must(ibv_poll_cq(cq_, 1, &wc) == 0, "a completion of what is gone");
  }
  void renew() {
    switch (random_() % 3) {
      case 0:
        end();
        return begin();
      case 1:
        to(IBV_QPS_RESET);
        open_ = 0;
        return ready();
      default: {
        to(IBV_QPS_ERR);
        const auto limit = Clock::now() + kPatience;
        while (open_ != 0) {
          must(Clock::now() < limit, "not all is flushed");
          poll();
        }
        to(IBV_QPS_RESET);
        return ready();
      }
    }
  }
  void receive(uint64_t slot) {
    ibv_sge sge = {reinterpret_cast<uint64_t>(memory_.data()) + slot * kSlot, 4136, mr_->lkey};
    ibv_recv_wr wr = {slot, nullptr, &sge, 1}, *bad = nullptr;
    must(ibv_post_recv(qp_, &wr, &bad) == 0, "post_recv");
  }
  void send() {
    if (open_ >= 200) return;
    const auto to = static_cast<uint32_t>(random_() % static_cast<uint64_t>(count_));
    const uint64_t place = table_.places[to];
    if (place == 0) return;
    Words words = {place_, static_cast<uint32_t>(self_), static_cast<uint32_t>(place), ++sequence_,
                   0};
    words.size = static_cast<uint32_t>(
        sizeof words + random_() % (random_() % 8 == 0 ? 4097 - sizeof words : 200));
    uint8_t* const at = memory_.data() + kReceives * kSlot;
    std::memcpy(at, &words, sizeof words);
    for (size_t i = sizeof words; i < words.size; ++i) at[i] = pattern(words, i);
    ibv_sge sge = {reinterpret_cast<uint64_t>(at), words.size, mr_->lkey};
    ibv_send_wr wr = {}, *bad = nullptr;
    wr.wr_id = kReceives;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.wr.ud = {ah_, static_cast<uint32_t>(place), kQkey};
    must(ibv_post_send(qp_, &wr, &bad) == 0, "post_send");
    // The datagram may wait and is not copied yet, but the next one uses the same memory.
    ++open_;
    while (open_ != 0) {
      poll();
      if (Clock::now() > last_ + kPatience) wrong("a send does not complete");
    }
    ++table_.sent;
  }
  void poll() {
    while (take_completion()) {
    }
  }
  // False if there is none.
  bool take_completion() {
    ibv_wc wc;
    const int got = ibv_poll_cq(cq_, 1, &wc);
    must(got >= 0, "poll_cq");
    if (got == 0) return false;
    last_ = Clock::now();
    if (wc.wr_id == kReceives) {
      must(open_-- > 0, "a send completes twice");
    } else if (wc.status == IBV_WC_SUCCESS) {
      check(wc);
      receive(wc.wr_id);
    }
    return true;
  }
  void check(const ibv_wc& wc) {
    const uint8_t* const at = memory_.data() + wc.wr_id * kSlot + kRoute;
    Words words;
    std::memcpy(&words, at, sizeof words);
    must(wc.byte_len == kRoute + words.size, "length");
    must(words.who < kMost && words.target == wc.qp_num, "of another queue pair");
    must(static_cast<uint32_t>(words.from) == wc.src_qp, "source");
    for (size_t i = sizeof words; i < words.size; ++i)
      must(at[i] == pattern(words, i), "bytes are changed");
    Seen& seen = seen_[words.who];
    if (seen.life != words.from >> 32) seen = {words.from >> 32, {}};
    must(seen.sequences.insert(words.sequence).second, "came twice");
    if (seen.sequences.size() > 200000) seen.sequences.clear();
    table_.heard[self_][words.who] = words.from;
    ++table_.received;
  }

  struct Seen {
    uint64_t life = 0;
    std::unordered_set<uint64_t> sequences;
  };
  Table& table_;
  const int self_, count_;
  const uint64_t life_;
  uint64_t place_ = 0;
  std::mt19937_64 random_;
  std::vector<uint8_t> memory_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_ah* ah_ = nullptr;
  ibv_qp* qp_ = nullptr;
  uint64_t sequence_ = 0;
  size_t open_ = 0;
  Clock::time_point last_ = Clock::now();
  Seen seen_[kMost];
};

// ---- The process that kills.

pid_t start(const char* self, int index, int count, uint64_t life) {
  std::string who = std::to_string(index), all = std::to_string(count),
              number = std::to_string(life);
  char* arguments[] = {const_cast<char*>(self),
                       const_cast<char*>("--process"),
                       who.data(),
                       all.data(),
                       number.data(),
                       nullptr};
  pid_t pid = 0;
  must(posix_spawn(&pid, self, nullptr, nullptr, arguments, environ) == 0, "spawn");
  return pid;
}

bool all_heard(Table& table, int count) {
  for (int by = 0; by < count; ++by)
    for (int of = 0; of < count; ++of)
      if (table.places[of] == 0 || table.heard[by][of] != table.places[of]) return false;
  return true;
}

int run(const char* self, int count, uint64_t seconds, uint64_t seed) {
  const int fd = memfd_create("soak", 0);
  must(fd >= 0 && ftruncate(fd, sizeof(Table)) == 0 && dup2(fd, kMemoryFd) == kMemoryFd, "memory");
  auto& table = *static_cast<Table*>(
      mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, kMemoryFd, 0));
  std::mt19937_64 random(seed);
  std::vector<pid_t> pids;
  uint64_t life = 0, kills = 0;
  for (int i = 0; i < count; ++i) pids.push_back(start(self, i, count, ++life));
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  while (Clock::now() < end) {
    usleep(static_cast<useconds_t>(random() % 300000));
    const size_t which = random() % pids.size();
    if (random() % 4 == 0) {
      kill(pids[which], SIGSTOP);
      usleep(static_cast<useconds_t>(random() % 400000));
      kill(pids[which], SIGCONT);
      continue;
    }
    kill(pids[which], SIGKILL);
    int status = 0;
    waitpid(pids[which], &status, 0);
    must(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "it had ended by itself");
    table.places[which] = 0;
    pids[which] = start(self, static_cast<int>(which), count, ++life);
    ++kills;
  }
  table.calm = true;
  const auto limit = Clock::now() + kPatience;
  while (!all_heard(table, count)) {
    must(Clock::now() < limit, "some process does not hear all others");
    usleep(1000);
  }
  table.stop = true;
  bool fine = true;
  for (const pid_t pid : pids) {
    int status = 0;
    waitpid(pid, &status, 0);
    fine &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  std::printf("%llu datagrams sent, %llu received, %llu kills: %s\n",
              static_cast<unsigned long long>(table.sent.load()),
              static_cast<unsigned long long>(table.received.load()),
              static_cast<unsigned long long>(kills), fine ? "fine" : "a process has failed");
  return fine ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5 && std::strcmp(argv[1], "--process") == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto& table = *static_cast<Table*>(
        mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, kMemoryFd, 0));
    Process(table, std::atoi(argv[2]), std::atoi(argv[3]), std::strtoull(argv[4], nullptr, 10))
        .run();
    return 0;
  }
  uint64_t seconds = 10, seed = 1, count = 6;
  for (int i = 1; i + 1 < argc; i += 2) {
    const uint64_t value = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--seconds") == 0) seconds = value;
    if (std::strcmp(argv[i], "--seed") == 0) seed = value;
    if (std::strcmp(argv[i], "--processes") == 0) count = std::min<uint64_t>(value, kMost);
  }
  return run("/proc/self/exe", static_cast<int>(count), seconds, seed);
}
