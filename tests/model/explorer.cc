// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Searches all orders depth first, with a stack of choices; each order runs from the start again.
// The bound on preemptions grows from 0, so the first finding needs the fewest preemptions.
#include "model/explorer.h"

#include <cxxabi.h>
#include <gtest/gtest.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define UWARP_MODEL_ASAN 1
#endif

namespace uwarp::model {
namespace {

constexpr size_t kStackBytes = 128 << 10;
/// Most steps of one order. More means that the threads keep each other from going on.
constexpr uint64_t kMaxSteps = 20'000;
constexpr uint64_t kMaxInterleavings = 30'000'000;

// The C++ runtime keeps exceptions that are thrown or caught per thread, so each fiber needs its
// own state.
struct ExceptionState {
  void* caught;
  unsigned uncaught;
};

class Fiber {
 public:
  Fiber() = default;
  explicit Fiber(void (*entry)()) : stack_(new char[kStackBytes]) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_.get();
    context_.uc_stack.ss_size = kStackBytes;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
  }
  Fiber(const Fiber&) = delete;

  // longjmp() saves the system call for the signal mask that other ways of switching make.
  [[gnu::noinline]] void switch_to(Fiber& next) {
    auto& current = *reinterpret_cast<ExceptionState*>(abi::__cxa_get_globals());
    exceptions_ = current;
    current = next.exceptions_;
#ifdef UWARP_MODEL_ASAN
    void* fake_stack = nullptr;
    const bool to_main = next.stack_ == nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, to_main ? main_bottom : next.stack_.get(),
                                   to_main ? main_bytes : kStackBytes);
    swapcontext(&context_, &next.context_);
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#else
    if (_setjmp(jump_) != 0) return;
    if (next.started_) _longjmp(next.jump_, 1);
    next.started_ = true;
    setcontext(&next.context_);
#endif
  }
  void mark_started() { started_ = true; }
  /// The first call on a new stack.
  static void arrived() {
#ifdef UWARP_MODEL_ASAN
    const void* bottom = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (main_bottom == nullptr) {
      main_bottom = bottom;
      main_bytes = bytes;
    }
#endif
  }

 private:
  std::unique_ptr<char[]> stack_;
  ucontext_t context_{};
  jmp_buf jump_{};
  bool started_ = false;
  ExceptionState exceptions_{};
#ifdef UWARP_MODEL_ASAN
  static inline const void* main_bottom = nullptr;
  static inline size_t main_bytes = 0;
#endif
};

struct Thread {
  const char* name = "";
  std::function<void()> body;
  bool ended = true;
  const std::function<bool()>* ready = nullptr;  // null: the thread can go on
  const void* sleeps_at = nullptr;
  const char* waits_for = "";
  Where waits_where;
  uint64_t changes = 0;       // changes that this thread made
  uint64_t seen_changes = 0;  // changes by other threads when its waiting loop began this round
};

struct Choice {
  uint8_t taken;
  uint8_t count;
};

class Explorer {
 public:
  static constexpr int kMain = -1;

  Outcome explore(const Property& property, const MakeScenario& make);

  void add(const char* name, std::function<void()> body) {
    if (count_ == Threads::kMaxThreads) abort();
    Thread& thread = threads_[count_++];
    thread = {};
    thread.name = name;
    thread.body = std::move(body);
    thread.ended = false;
  }

  int self() const { return current_; }
  bool running() const { return current_ != kMain; }
  Thread& current() { return threads_[current_]; }

  void point(const char* what, Where where) {
    if (!running()) return;
    if (++steps_ > kMaxSteps) fail("no end: the threads keep each other from going on", where);
    int candidates[Threads::kMaxThreads];
    int count = 0;
    candidates[count++] = current_;
    if (preemptions_ < bound_) add_ready(candidates, count);
    const int next = pick(candidates, count, where);
    if (next == current_) return;
    ++preemptions_;
    if (tracing_) trace(std::string("-- interrupted before ") + what, where);
    go(next);
  }

  // `self_too`: if `ready` holds, the caller may go on at once too; the other threads are tried
  // first.
  void block(const std::function<bool()>& ready, const char* what, Where where, bool self_too) {
    if (!running()) return;
    if (++steps_ > kMaxSteps) fail("no end: the threads keep each other from going on", where);
    Thread& self = current();
    self.ready = &ready;
    self.waits_for = what;
    self.waits_where = where;
    int candidates[Threads::kMaxThreads];
    int count = 0;
    add_ready(candidates, count);
    if ((self_too || count == 0) && ready()) candidates[count++] = current_;
    if (count == 0) stuck(where);
    go(pick(candidates, count, where));
    self.ready = nullptr;
  }

  int choose(int count, Where where) {
    if (!running() || count < 2) return 0;
    return decide(count, where);
  }

  void end_thread() {
    current().ended = true;
    note_change();
    int candidates[Threads::kMaxThreads];
    int count = 0;
    add_ready(candidates, count);
    if (count != 0) {
      go(pick(candidates, count, Where::current()));
    } else if (std::any_of(threads_, threads_ + count_, [](auto& t) { return !t.ended; })) {
      stuck(Where::current());
    } else {
      leave();
    }
  }

  void yield(Where where) {
    if (!running()) return;
    Thread& self = current();
    const std::function<bool()> changed = [&] { return others(self) != self.seen_changes; };
    block(changed, "another thread", where, true);
    self.seen_changes = others(self);
  }
  void relax(Where where) {
    static const std::function<bool()> always = [] { return true; };
    block(always, "nothing", where, true);
  }

  void sleep_at(const void* address, const char* what, Where where) {
    if (!running()) fail("waits outside of a thread", where);
    Thread& self = current();
    self.sleeps_at = address;
    const std::function<bool()> woken = [&] { return self.sleeps_at == nullptr; };
    if (tracing_) trace("sleeps", where);
    block(woken, what, where, false);
  }
  void wake_at(const void* address, bool all, Where where) {
    point("notify", where);
    std::vector<Thread*> asleep;
    for (int i = 0; i < count_; ++i)
      if (threads_[i].sleeps_at == address) asleep.push_back(&threads_[i]);
    if (tracing_) trace("notify: " + std::to_string(asleep.size()) + " asleep", where);
    if (asleep.empty()) return;
    if (all) {
      for (Thread* thread : asleep) thread->sleeps_at = nullptr;
    } else {
      asleep[static_cast<size_t>(choose(static_cast<int>(asleep.size()), where))]->sleeps_at =
          nullptr;
    }
    note_change();
  }

  void note_change() {
    ++changes_;
    if (running()) ++current().changes;
  }

  bool tracing() const { return tracing_; }
  void trace(const std::string& line, Where where) {
    const char* slash = std::strrchr(where.file_name(), '/');
    const char* name = running() ? current().name : "-";
    char head[200];
    snprintf(head, sizeof head, "  %-12s %s:%u  ", name,
             slash != nullptr ? slash + 1 : where.file_name(), where.line());
    schedule_ += head + line + "\n";
  }

  [[noreturn]] void fail(const std::string& text, Where where) {
    if (tracing_) trace("*** " + text, where);
    if (finding_.empty()) finding_ = text;
    if (!running()) throw Broken();
    leave();
    abort();
  }

  void quarantine(void* memory) {
    if (std::find(quarantine_.begin(), quarantine_.end(), memory) != quarantine_.end())
      fail("freed twice", Where::current());
    running() ? quarantine_.push_back(memory) : ::operator delete(memory);
  }

 private:
  /// Thrown if a check outside of the threads fails.
  struct Broken {};

  uint64_t others(const Thread& self) const { return changes_ - self.changes; }

  void add_ready(int* candidates, int& count) {
    for (int i = 0; i < count_; ++i)
      if (i != current_ && !threads_[i].ended &&
          (threads_[i].ready == nullptr || (*threads_[i].ready)()))
        candidates[count++] = i;
  }
  int pick(const int* candidates, int count, Where where) {
    return candidates[count == 1 ? 0 : decide(count, where)];
  }
  int decide(int count, Where where) {
    if (depth_ == choices_.size()) choices_.push_back({0, static_cast<uint8_t>(count)});
    const Choice& choice = choices_[depth_++];
    if (choice.count != count) fail("the scenario does not repeat itself", where);
    return choice.taken;
  }
  bool next_order() {
    while (!choices_.empty() && choices_.back().taken + 1 == choices_.back().count)
      choices_.pop_back();
    if (choices_.empty()) return false;
    ++choices_.back().taken;
    return true;
  }

  void go(int next) {
    if (next == current_) return;
    Fiber& from = *fibers_[current_];
    current_ = next;
    from.switch_to(*fibers_[next]);
  }
  void leave() {
    Fiber& from = *fibers_[current_];
    current_ = kMain;
    from.switch_to(main_);
  }
  [[noreturn]] void stuck(Where where) {
    std::string text = "all sleep:";
    for (int i = 0; i < count_; ++i) {
      const Thread& thread = threads_[i];
      if (thread.ended) continue;
      const char* slash = std::strrchr(thread.waits_where.file_name(), '/');
      text += std::string(" ") + thread.name + " waits for " + thread.waits_for + " at " +
              (slash != nullptr ? slash + 1 : "?") + ":" +
              std::to_string(thread.waits_where.line());
    }
    fail(text, where);
  }
  static void run_fiber();
  void run_once(const MakeScenario& make);
  void start_fibers();
  bool search(const MakeScenario& make, Outcome& outcome);
  std::string schedule_of_finding(const MakeScenario& make);

  Thread threads_[Threads::kMaxThreads];
  int count_ = 0;
  int current_ = kMain;
  Fiber main_;
  std::unique_ptr<Fiber> fibers_[Threads::kMaxThreads];
  std::vector<Choice> choices_;
  size_t depth_ = 0;
  int bound_ = 0;
  int preemptions_ = 0;
  uint64_t steps_ = 0;
  uint64_t changes_ = 0;
  bool tracing_ = false;
  std::string finding_;
  std::string schedule_;
  std::vector<void*> quarantine_;
  // Fibers and scenarios of orders that ended in a finding: their threads have stopped half way.
  std::vector<std::unique_ptr<Fiber>> abandoned_;
  std::vector<std::unique_ptr<Scenario>> abandoned_scenarios_;
};

// Never destroyed: abandoned threads hold memory, which a leak checker accepts as long as their
// stacks exist.
Explorer& explorer = *new Explorer;

// Runs one body per order; the fiber is used for all orders.
void Explorer::run_fiber() {
  Fiber::arrived();
  for (;;) {
    try {
      explorer.current().body();
    } catch (const std::exception& error) {
      explorer.fail(std::string("exception: ") + error.what(), Where::current());
    } catch (...) {
      explorer.fail("exception", Where::current());
    }
    explorer.end_thread();
  }
}

void Explorer::start_fibers() {
  for (int i = 0; i < count_; ++i)
    if (fibers_[i] == nullptr) fibers_[i] = std::make_unique<Fiber>(&Explorer::run_fiber);
}

void Explorer::run_once(const MakeScenario& make) {
  depth_ = 0;
  preemptions_ = 0;
  steps_ = 0;
  changes_ = 0;
  count_ = 0;
  Atomics::sleepers.reset(0);
  std::unique_ptr<Scenario> scenario = make();
  Threads threads;
  scenario->start(threads);
  start_fibers();
  int candidates[Threads::kMaxThreads];
  int count = 0;
  add_ready(candidates, count);
  current_ = pick(candidates, count, Where::current());
  main_.mark_started();
  main_.switch_to(*fibers_[current_]);
  if (finding_.empty()) {
    try {
      scenario->finish();
    } catch (const Broken&) {
    }
  } else {
    for (auto& fiber : fibers_)
      if (fiber != nullptr) abandoned_.push_back(std::move(fiber));
    abandoned_scenarios_.push_back(std::move(scenario));
  }
  scenario.reset();
  for (void* memory : quarantine_) ::operator delete(memory);
  quarantine_.clear();
}

// True if all orders within the bound were run, or if there is a finding.
bool Explorer::search(const MakeScenario& make, Outcome& outcome) {
  choices_.clear();
  outcome.interleavings = 0;
  do {
    run_once(make);
    ++outcome.interleavings;
    if (!finding_.empty()) return true;
    if (outcome.interleavings == kMaxInterleavings) return false;
  } while (next_order());
  return true;
}

std::string Explorer::schedule_of_finding(const MakeScenario& make) {
  const std::string first = std::exchange(finding_, {});
  tracing_ = true;
  schedule_.clear();
  run_once(make);
  tracing_ = false;
  if (finding_ != first) return "(the scenario does not repeat itself: " + finding_ + ")\n";
  return schedule_;
}

Outcome Explorer::explore(const Property& property, const MakeScenario& make) {
  Outcome outcome;
  for (bound_ = 0; bound_ <= property.preemptions && finding_.empty(); ++bound_)
    outcome.complete = search(make, outcome);
  if (!finding_.empty()) {
    --bound_;
    const std::string schedule = schedule_of_finding(make);
    outcome.finding = std::exchange(finding_, {}) + "\n" + schedule;
  }
  return outcome;
}

}  // namespace

void Threads::add(const char* name, std::function<void()> body) {
  explorer.add(name, std::move(body));
}

Outcome explore(const Property& property, const MakeScenario& make) {
  return explorer.explore(property, make);
}

void expect_holds(const Property& property, const MakeScenario& make) {
  const char* depth = getenv("UWARP_MODEL_DEPTH");
  Property deeper = property;
  if (depth != nullptr) deeper.preemptions += atoi(depth);
  const Outcome outcome = explore(deeper, make);
  printf("%s: %s %llu interleavings%s.\n", property.name, property.sentence,
         static_cast<unsigned long long>(outcome.interleavings),
         outcome.complete ? "" : ", cut off");
  EXPECT_EQ(outcome.finding, "");
  EXPECT_TRUE(outcome.complete || depth != nullptr);
}

void expect_found(const Property& property, const MakeScenario& make, const std::string& words) {
  const Outcome outcome = explore(property, make);
  const std::string shown = outcome.finding.substr(0, outcome.finding.find('\n'));
  printf("%s: broken on purpose: %s (after %llu interleavings)\n", property.name,
         shown.empty() ? "NOT FOUND" : shown.c_str(),
         static_cast<unsigned long long>(outcome.interleavings));
  if (getenv("UWARP_MODEL_SCHEDULES") != nullptr) printf("%s", outcome.finding.c_str());
  EXPECT_FALSE(outcome.finding.empty());
  EXPECT_NE(outcome.finding.find(words), std::string::npos) << outcome.finding;
}

void check(bool holds, const char* text, Where where) {
  if (!holds) explorer.fail(text, where);
}
int choose(int count, Where where) { return explorer.choose(count, where); }
void point(const char* what, Where where) { explorer.point(what, where); }
void block_until(const std::function<bool()>& ready, const char* what, Where where) {
  explorer.point(what, where);
  if (!ready()) explorer.block(ready, what, where, false);
}
int self() { return explorer.self(); }
void yield(Where where) { explorer.yield(where); }
void relax(Where where) { explorer.relax(where); }
void note_change() { explorer.note_change(); }
bool tracing() { return explorer.tracing(); }
void trace(const std::string& line, Where where) { explorer.trace(line, where); }
void fail(const std::string& text, Where where) { explorer.fail(text, where); }
void quarantine(void* memory) { explorer.quarantine(memory); }
void sleep_at(const void* address, const char* what, Where where) {
  explorer.sleep_at(address, what, where);
}
void wake_at(const void* address, bool all, Where where) { explorer.wake_at(address, all, where); }

void Mutex::lock(Where where) {
  point("lock", where);
  alive_.touch("mutex", where);
  if (locked_) explorer.block([this] { return !locked_; }, "mutex", where, false);
  locked_ = true;
  if (tracing()) trace("lock", where);
}
bool Mutex::try_lock(Where where) {
  point("try_lock", where);
  alive_.touch("mutex", where);
  if (tracing()) trace(locked_ ? "try_lock fails" : "try_lock", where);
  if (locked_) return false;
  note_change();
  return locked_ = true;
}
void Mutex::unlock(Where where) {
  point("unlock", where);
  alive_.touch("mutex", where);
  if (!locked_) fail("unlocks what is not locked", where);
  locked_ = false;
  note_change();
  if (tracing()) trace("unlock", where);
}

}  // namespace uwarp::model
