// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Whole lives of two connected ends, from the first object to the last, in which one allocation
// fails, in whichever thread makes it: the application is told of what has failed, all that it has
// posted completes once, nothing hangs, and nothing is left.
//
// By default some allocations are tried, beginning with one drawn at random. UWARP_TEST_ALLOCATION
// names one, or is "all".
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>

#include "faults/connection_ends.h"
#include "faults/failing_allocations.h"
#include "faults/work_scenario.h"
#include "verbs/verbs_fixture.h"

namespace {

/// Allocations that are tried by default in each test, and of processes.
constexpr int64_t kTries = 60;
constexpr int64_t kProcesses = 24;

/// Which allocations of a life are to fail.
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

/// `live` runs a life to its end and says whether all of it has succeeded, and whether the
/// application was told of a failure.
struct Life {
  bool whole;
  bool told;
};
class Lives : public VerbsTest {
 protected:
  /// A port is kept for the next queue pair if none has been called there.
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
  make_spare_port();
  const size_t files = open_files();
  const Choice choice = choose(allocations);
  // The number varies with the order in which threads get on.
  for (int64_t n = choice.first; n <= allocations + allocations / 8; n += choice.step) {
    SCOPED_TRACE("UWARP_TEST_ALLOCATION=" + std::to_string(n));
    fail_allocation(n, Whose::kAnyThread);
    const Life life = live();
    const bool failed = stop_failing_allocations();
    EXPECT_TRUE(life.whole || (failed && life.told)) << "failed without a word";
    EXPECT_TRUE(wait_until([&] { return open_files() <= files; }));
    if (::testing::Test::HasFailure() || choice.one) break;
  }
  std::printf("%lld allocations, every %lldth from %lld\n", static_cast<long long>(allocations),
              static_cast<long long>(choice.step), static_cast<long long>(choice.first));
  ASSERT_TRUE(live().whole);
  // Some are kept for the next time, and by whom depends on threads.
  EXPECT_TRUE(wait_until([&] { return live_allocations() <= left + 32; }))
      << live_allocations() - left << " allocations are left";
}

/// In place of the one before. Not from the heap, where the allocation that fails would be ours.
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
    if (error == EPROTO) error = ENOMEM;  // an event has said so
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

// --- In a process of its own, in which nothing has been made yet

int64_t number_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? -1 : std::atoll(value);
}

/// A device of ours, or null.
ibv_device* find_device() {
  int count = 0;
  // The list is left: its devices are used.
  ibv_device** const list = ibv_get_device_list(&count);
  for (int i = 0; list != nullptr && i < count; ++i)
    if (std::strcmp(ibv_get_device_name(list[i]), "uwarp_lo") == 0) return list[i];
  return nullptr;
}

/// Runs in a process made by Processes.
TEST(Process, OfBothKindsOfLives) {
  const int64_t n = number_of("UWARP_TEST_PROCESS");
  if (n < 0) return;  // run by the test that makes processes
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

/// How many allocations such a process has made; -1 if it has failed.
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
