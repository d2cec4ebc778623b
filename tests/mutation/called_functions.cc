// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Linked into test programs whose product code is compiled with -finstrument-functions: writes to
// the file that UWARP_CALLED_FUNCTIONS names which functions each test has called, in any thread,
// by their offsets in the program:
//
//   test SUITE.NAME MICROSECONDS passed|failed
//   OFFSET (hexadecimal), a line for each
//
// Without that setting it costs a test of a flag per call.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define NOT_INSTRUMENTED __attribute__((no_instrument_function))

extern "C" char __executable_start;

namespace {

constexpr size_t kSlots = 1 << 16;

struct Slot {
  std::atomic<uintptr_t> function;
  std::atomic<uint32_t> last_test;  // number of the last test that has called it
};
Slot slots[kSlots];
std::atomic<uint32_t> current_test;  // 0: nothing is written down

NOT_INSTRUMENTED void called(uintptr_t function, uint32_t test) {
  for (size_t i = (function >> 2) % kSlots;; i = (i + 1) % kSlots) {
    uintptr_t there = slots[i].function.load(std::memory_order_relaxed);
    if (there == 0 && slots[i].function.compare_exchange_strong(there, function)) there = function;
    if (there == function) {
      slots[i].last_test.store(test, std::memory_order_relaxed);
      return;
    }
  }
}

class Writer : public testing::EmptyTestEventListener {
 public:
  explicit Writer(const char* path) : file_(std::fopen(path, "w")) {}

 private:
  void OnTestStart(const testing::TestInfo&) override {
    start_ = std::chrono::steady_clock::now();
    current_test = ++number_;
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    current_test = 0;
    const auto took = std::chrono::steady_clock::now() - start_;
    std::fprintf(
        file_, "test %s.%s %lld %s\n", test.test_suite_name(), test.name(),
        static_cast<long long>(std::chrono::duration_cast<std::chrono::microseconds>(took).count()),
        test.result()->Failed() ? "failed" : "passed");
    for (const Slot& slot : slots) {
      if (slot.last_test == number_)
        std::fprintf(file_, "%zx\n",
                     slot.function - reinterpret_cast<uintptr_t>(&__executable_start));
    }
    std::fflush(file_);
  }

  std::FILE* file_;
  uint32_t number_ = 0;
  std::chrono::steady_clock::time_point start_;
};

const bool listening = [] {
  if (const char* path = std::getenv("UWARP_CALLED_FUNCTIONS"))
    testing::UnitTest::GetInstance()->listeners().Append(new Writer(path));
  return true;
}();

}  // namespace

extern "C" {

NOT_INSTRUMENTED void __cyg_profile_func_enter(void* function, void*) {
  if (const uint32_t test = current_test.load(std::memory_order_relaxed); test != 0)
    called(reinterpret_cast<uintptr_t>(function), test);
}

NOT_INSTRUMENTED void __cyg_profile_func_exit(void*, void*) {}

}  // extern "C"
