// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Whole lives of two connected ends, from the first object to the last. One allocation of each life
// fails, in any thread. The application must learn what has failed, all that it has posted must
// complete once, nothing may hang, and nothing may be left.
//
// By default a test tries some of the allocations, beginning with a random one.
// UWARP_TEST_ALLOCATION is the number of one, or "all".
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include "faults/connection_ends.h"
#include "faults/failing_allocations.h"
#include "faults/work_scenario.h"
#include "verbs/verbs_fixture.h"

namespace {

/// Allocations that each test, and the test of processes, tries by default.
constexpr int64_t kTries = 60;
constexpr int64_t kProcesses = 24;

/// Which allocations of a life fail.
struct Choice {
  int64_t first = 1;
  int64_t step = 1;
  bool one = false;
};

Choice choose(int64_t allocations, int64_t tries = kTries) {
  const char* wanted = std::getenv("UWARP_TEST_ALLOCATION");
  if (wanted != nullptr && std::strcmp(wanted, "all") == 0) return {};
  if (wanted != nullptr) return {std::atoll(wanted), 1, true};
  const int64_t step = std::max<int64_t>(allocations / tries, 1);
  return {1 + static_cast<int64_t>(std::random_device{}() % static_cast<uint64_t>(step)), step};
}

/// Result of a life that ran to its end: whether all of it succeeded, and whether the application
/// was told of a failure.
struct Life {
  bool whole;
  bool told;
};
class Lives : public VerbsTest {
 protected:
  /// Waits until objects that end in the background after the previous life, above all its trunk,
  /// have ended.
  static void wait_for_others() {
    constexpr auto kLongerThanAnyEnd = std::chrono::milliseconds(500);
    size_t before;
    do {
      before = open_files();
      std::this_thread::sleep_for(kLongerThanAnyEnd);
    } while (open_files() != before);
  }
  /// The engine keeps a port for the next queue pair if no peer has called it. It makes none while
  /// an older one is in use.
  void make_spare_port() {
    const Pd pd(ibv_alloc_pd(context()));
    const Cq cq(ibv_create_cq(context(), 16, nullptr, nullptr, 0));
    ibv_qp_init_attr shape = init_attributes(cq.get());
    const Qp qp(ibv_create_qp(pd.get(), &shape));
    ASSERT_NE(qp, nullptr);
  }
  void try_lives(const std::function<Life()>& live);
};

void Lives::try_lives(const std::function<Life()>& live) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(live().whole);
  const int64_t before = allocations_made();
  ASSERT_TRUE(live().whole);
  const int64_t allocations = allocations_made() - before;
  const int64_t left = live_allocations();
  wait_for_others();
  make_spare_port();
  const size_t files = open_files();
  const Choice choice = choose(allocations);
  // The number of allocations varies with the order in which threads run.
  for (int64_t n = choice.first; n <= allocations + allocations / 8; n += choice.step) {
    SCOPED_TRACE("UWARP_TEST_ALLOCATION=" + std::to_string(n));
    fail_allocation(n, Whose::kAnyThread);
    const Life life = live();
    const bool failed = stop_failing_allocations();
    EXPECT_TRUE(life.whole || (failed && life.told)) << "failed without a word";
    EXPECT_TRUE(wait_until([&] { return open_files() <= files; })) << open_file_names();
    if (::testing::Test::HasFailure() || choice.one) break;
  }
  std::printf("%lld allocations, every %lldth from %lld\n", static_cast<long long>(allocations),
              static_cast<long long>(choice.step), static_cast<long long>(choice.first));
  ASSERT_TRUE(live().whole);
  // Some allocations are kept for later use; how many depends on threads.
  EXPECT_TRUE(wait_until([&] { return live_allocations() <= left + 32; }))
      << live_allocations() - left << " allocations are left";
}

/// Replaces the scenario before. It is not on the heap, where its own allocation could be the one
/// that fails.
WorkScenario* next_scenario() {
  alignas(WorkScenario) static std::byte memory[sizeof(WorkScenario)];
  return new (memory) WorkScenario;
}

Life live_alone(ibv_device* device) {
  WorkScenario* const scenario = next_scenario();
  ibv_context* const context = ibv_open_device(device);
  bool whole = context != nullptr || scenario->ok(errno);
  if (context != nullptr) {
    whole = scenario->create(context) && scenario->create_queue_pair(true, nullptr) &&
            scenario->create_queue_pair(false, nullptr) && scenario->connect() &&
            scenario->exchange() && scenario->provoke_remote_error();
    scenario->flush();
    scenario->destroy();
    EXPECT_EQ(ibv_close_device(context), 0);
  } else {
    whole = false;
  }
  return {whole, scenario->told_of_failure()};
}

TEST_F(Lives, OfQueuePairsThatConnectThemselves) {
  try_lives([&] { return live_alone(context()->device); });
}

/// Two datagram queue pairs that send until each has heard the other. They repeat lost datagrams,
/// as applications do: uwarp does not report a loss. The class itself allocates nothing.
class DatagramLife {
 public:
  explicit DatagramLife(ibv_device* device) : device_(device) {}
  Life live() {
    const bool whole = made(context_ = ibv_open_device(device_)) && create() && heard(a_, b_) &&
                       heard(b_, a_) && heard(a_, a_);
    destroy();
    return {whole, told_};
  }

 private:
  static constexpr uint32_t kQkey = 0x11111111;
  static constexpr size_t kBytes = 16384;
  struct Side {
    ibv_qp* qp = nullptr;
    int receives = 0, received = 0, sends = 0, sent = 0;
  };

  template <typename T>
  bool made(T* object) {
    return object != nullptr || ok(errno);
  }
  bool ok(int error) {
    if (error == 0) return true;
    EXPECT_EQ(error, ENOMEM);
    told_ = true;
    return false;
  }
  bool create() {
    ibv_ah_attr to{};
    to.is_global = 1;
    to.port_num = 1;
    if (!ok(ibv_query_gid(context_, 1, 0, &to.grh.dgid) == 0 ? 0 : errno)) return false;
    return made(pd_ = ibv_alloc_pd(context_)) &&
           made(mr_ = ibv_reg_mr(pd_, memory(), kBytes, IBV_ACCESS_LOCAL_WRITE)) &&
           made(channel_ = ibv_create_comp_channel(context_)) &&
           made(cq_ = ibv_create_cq(context_, 512, nullptr, channel_, 0)) &&
           made(ah_ = ibv_create_ah(pd_, &to)) && create(a_) && create(b_);
  }
  bool create(Side& side) {
    ibv_qp_init_attr shape = init_attributes(cq_);
    shape.qp_type = IBV_QPT_UD;
    if (!made(side.qp = ibv_create_qp(pd_, &shape))) return false;
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qkey = kQkey;
    if (!ok(ibv_modify_qp(side.qp, &attr,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)) ||
        !ok(to_state(side.qp, IBV_QPS_RTR)))
      return false;
    attr.qp_state = IBV_QPS_RTS;
    return ok(ibv_modify_qp(side.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
  }
  bool heard(Side& from, Side& to) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    const int before = to.received;
    for (int round = 0; to.received == before; ++round) {
      EXPECT_LT(std::chrono::steady_clock::now(), end) << "no datagram arrives";
      if (std::chrono::steady_clock::now() > end) return false;
      if (to.receives == to.received && !receive(to)) return false;
      if (from.sends == from.sent && round % 64 == 0 && !send(from, to)) return false;
      poll();
      if (round % 64 == 63) usleep(1000);
    }
    return true;
  }
  bool receive(Side& side) {
    ibv_sge sge{reinterpret_cast<uint64_t>(memory()) + kBytes / 2, kBytes / 2, mr_->lkey};
    ibv_recv_wr wr{2, nullptr, &sge, 1};
    ibv_recv_wr* bad = nullptr;
    if (!ok(ibv_post_recv(side.qp, &wr, &bad))) return false;
    ++side.receives;
    return true;
  }
  bool send(Side& from, Side& to) {
    ibv_sge sge{reinterpret_cast<uint64_t>(memory()), 4000, mr_->lkey};
    ibv_send_wr wr{};
    wr.wr_id = 1;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.ud = {ah_, to.qp->qp_num, kQkey};
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(from.qp, &wr, &bad);
    EXPECT_TRUE(error == 0 || bad == &wr);
    if (!ok(error)) return false;
    ++from.sends;
    return true;
  }
  void poll() {
    ibv_wc wc;
    while (ibv_poll_cq(cq_, 1, &wc) == 1) {
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      Side& side = wc.qp_num == a_.qp->qp_num ? a_ : b_;
      ++(wc.wr_id == 1 ? side.sent : side.received);
    }
  }
  void destroy() {
    for (const Side* side : {&a_, &b_}) destroy_one(ibv_destroy_qp, side->qp);
    destroy_one(ibv_destroy_ah, ah_);
    destroy_one(ibv_destroy_cq, cq_);
    destroy_one(ibv_destroy_comp_channel, channel_);
    destroy_one(ibv_dereg_mr, mr_);
    destroy_one(ibv_dealloc_pd, pd_);
    destroy_one(ibv_close_device, context_);
  }
  template <typename Destroy, typename T>
  static void destroy_one(Destroy destroy, T* object) {
    EXPECT_EQ(object != nullptr ? destroy(object) : 0, 0);
  }
  static std::byte* memory() {
    static std::byte bytes[kBytes];
    return bytes;
  }

  ibv_device* const device_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_ah* ah_ = nullptr;
  Side a_, b_;
  bool told_ = false;
};

TEST_F(Lives, OfQueuePairsForDatagrams) {
  if (!roce()) GTEST_SKIP() << "iWARP has none";
  try_lives([&] { return DatagramLife(context()->device).live(); });
}

class Managed {
 public:
  explicit Managed(ConnectionEnds& ends) : ends_(ends) {
    ends.make_queue_pairs_by([this](rdma_cm_id* id) { return make_queue_pair(id); });
  }

  Life live() {
    scenario_ = next_scenario();
    const bool whole = connect() && scenario_->exchange() &&
                       scenario_->ok(ends_.disconnect_client()) && ends_.both_ended(kPatience);
    scenario_->flush();
    for (rdma_cm_id* id : {ends_.client(), ends_.server()}) {
      if (id == nullptr || id->qp == nullptr) continue;
      scenario_->forget_queue_pair(id == ends_.client());
      rdma_destroy_qp(id);
    }
    scenario_->destroy();
    ends_.destroy_connection();
    return {whole, scenario_->told_of_failure()};
  }

 private:
  bool connect() {
    int error = ends_.resolve();
    if (error == EPROTO) error = ENOMEM;  // an event has reported the failure
    if (!scenario_->ok(error)) return false;
    const Outcome outcome = ends_.connect(kPatience, error);
    EXPECT_NE(outcome, Outcome::kSilence);
    if (outcome == Outcome::kConnected) return true;
    (void)scenario_->ok(error != 0 ? error : ECONNRESET);
    return false;
  }
  int make_queue_pair(rdma_cm_id* id) {
    const bool first = id == ends_.client();
    if (first && !scenario_->create(id->verbs)) return ENOMEM;
    return scenario_->create_queue_pair(first, id) ? 0 : ENOMEM;
  }

  ConnectionEnds& ends_;
  WorkScenario* scenario_ = nullptr;
};

TEST_F(Lives, OfManagedConnections) {
  ConnectionEnds ends;
  ASSERT_EQ(ends.listen(), 0);
  Managed managed(ends);
  try_lives([&] { return managed.live(); });
}

// --- In a new process, in which the engine has not been used

int64_t number_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? -1 : std::atoll(value);
}

/// uwarp's loopback device, or null.
ibv_device* find_device() {
  int count = 0;
  // The list is not freed, because its device is used.
  ibv_device** const list = ibv_get_device_list(&count);
  for (int i = 0; list != nullptr && i < count; ++i)
    if (std::strcmp(ibv_get_device_name(list[i]), "uwarp_lo") == 0) return list[i];
  return nullptr;
}

/// Runs in a process that the test Processes starts.
TEST(Process, OfBothKindsOfLives) {
  const int64_t n = number_of("UWARP_TEST_PROCESS");
  if (n < 0) return;  // only runs when started by the test Processes
  alarm(60);
  const int64_t before = allocations_made();
  fail_allocation(n, Whose::kAnyThread);
  bool whole = false, told = true;
  if (ibv_device* const device = find_device()) {
    const Life alone = live_alone(device);
    whole = alone.whole;
    told = alone.told;
  }
  ConnectionEnds ends;
  if (const int error = ends.listen()) {
    EXPECT_EQ(error, ENOMEM);
    whole = false;
  } else {
    const Life managed = Managed(ends).live();
    if (!managed.whole) {
      EXPECT_TRUE(managed.told);
      whole = false;
    }
  }
  const bool failed = stop_failing_allocations();
  EXPECT_TRUE(whole || (failed && told)) << "failed without a word";
  std::printf("allocations %lld\n", static_cast<long long>(allocations_made() - before));
}

/// How many allocations such a process has made; -1 if it failed.
int64_t run_process(const std::string& program, int64_t n) {
  const std::string command = "UWARP_TEST_PROCESS=" + std::to_string(n) + " " + program +
                              " --gtest_filter=Process.OfBothKindsOfLives 2>&1";
  FILE* const output = popen(command.c_str(), "r");
  if (output == nullptr) return -1;
  std::string all;
  char line[512];
  while (std::fgets(line, sizeof line, output) != nullptr) all += line;
  const int status = pclose(output);
  EXPECT_EQ(status, 0) << all;
  const size_t at = all.find("allocations ");
  return status != 0 || at == std::string::npos ? -1 : std::atoll(all.c_str() + at + 12);
}

TEST(Processes, OfBothKindsOfLives) {
  char program[4096] = {};
  ASSERT_GT(readlink("/proc/self/exe", program, sizeof program - 1), 0);
  const int64_t allocations = run_process(program, 0);
  ASSERT_GT(allocations, 0);
  const Choice choice = choose(allocations, kProcesses);
  std::printf("%lld allocations, every %lldth from %lld\n", static_cast<long long>(allocations),
              static_cast<long long>(choice.step), static_cast<long long>(choice.first));
  for (int64_t n = choice.first; n <= allocations && !HasFailure(); n += choice.step) {
    SCOPED_TRACE("UWARP_TEST_ALLOCATION=" + std::to_string(n));
    (void)run_process(program, n);
    if (choice.one) break;
  }
}

}  // namespace
