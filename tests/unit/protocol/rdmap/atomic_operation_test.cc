// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Arithmetic and execution of atomics. 7306-5.1.1-e to -h, 7306-5.1.2-a to -c.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <set>
#include <thread>
#include <vector>

#include "protocol/rdmap/segment_rules.h"
#include "unit/kernel_copies.h"

namespace uwarp {
namespace {

struct Add {
  uint64_t old, add, mask, result;
};
// 7306-5.1.1-e, -f: plain adds, fields, dropped carries, exclusive or, probing.
constexpr Add kAdds[] = {
    {0x29, 1, 0, 0x2a},
    {0xffffffffffffffff, 1, 0, 0},
    {0xffffffffffffffff, 1, 0x8000000000000000, 0},
    {0x00000001ffffffff, 1, 0x0000000080000000, 0x0000000100000000},
    {0x00000001ffffffff, 1, 0, 0x0000000200000000},
    {0xffffffffffffffff, 0x0000000100000001, 0x8000000080000000, 0},
    {0x00ff00ff00ff00ff, 0x0001000100010001, 0x8080808080808080, 0},
    {0x00ff00ff00ff00ff, 0x0001000100010001, 0x8000800080008000, 0x0100010001000100},
    {5, 3, 0xffffffffffffffff, 6},
    {7, 0, 0, 7},
};

struct Swap {
  uint64_t old, compare, compare_mask, swap, swap_mask, result;
};
constexpr uint64_t kAll = ~uint64_t{0};
constexpr Swap kSwaps[] = {
    {0x2a, 0x2a, kAll, 0x1122334455667788, kAll, 0x1122334455667788},
    {0x2b, 0x2a, kAll, 0x1122334455667788, kAll, 0x2b},
    {0xaaaaaaaa0000002a, 0x2a, 0xff, 0xdeadbeef, 0xffffffff, 0xaaaaaaaadeadbeef},
    {0x1234, 0, 0, 0xffff, 0xf0, 0x12f4},
    {0x1234, 0x1234, kAll, 0xffff, 0, 0x1234},
};

std::byte* bytes(uint64_t& cell) { return reinterpret_cast<std::byte*>(&cell); }

// Proves: 7306-5.1.1-e 7306-5.1.1-f 7306-5.1.1-g
TEST(ExecuteAtomic, FetchAdd) {
  for (const Add& v : kAdds) {
    uint64_t cell = v.old;
    const AtomicRequestHeader request{.add_or_swap = v.add, .add_or_swap_mask = v.mask};
    EXPECT_EQ(execute_atomic(bytes(cell), request), v.old);  // 7306-5.1.1-h
    EXPECT_EQ(cell, v.result);
  }
}

// Proves: 7306-5.1.2-a 7306-5.1.2-b 7306-5.1.2-c
TEST(ExecuteAtomic, CmpSwap) {
  for (const Swap& v : kSwaps) {
    uint64_t cell = v.old;
    const AtomicRequestHeader request{.opcode = AtomicOpcode::kCmpSwap,
                                      .add_or_swap = v.swap,
                                      .add_or_swap_mask = v.swap_mask,
                                      .compare = v.compare,
                                      .compare_mask = v.compare_mask};
    EXPECT_EQ(execute_atomic(bytes(cell), request), v.old);
    EXPECT_EQ(cell, v.result);
  }
}

// A slow implementation, field by field.
TEST(MaskedAdd, EqualsAddingFieldByField) {
  uint64_t state = 1;
  const auto random = [&] { return state = state * 6364136223846793005u + 1442695040888963407u; };
  for (int round = 0; round < 20000; ++round) {
    const uint64_t old = random(), add = random(), mask = random() & random();
    uint64_t expected = 0, carry = 0;
    for (int bit = 0; bit < 64; ++bit) {
      const uint64_t sum = (old >> bit & 1) + (add >> bit & 1) + carry;
      expected |= (sum & 1) << bit;
      carry = (mask >> bit & 1) ? 0 : sum >> 1;
    }
    ASSERT_EQ(masked_add(old, add, mask), expected);
  }
}

// 7306-5-a: the sum is exact, and every value is returned once.
TEST(ExecuteAtomic, IsAtomicBetweenThreads) {
  uint64_t cell = 0;
  constexpr int kThreads = 4;
  constexpr uint64_t kEach = 20000;
  std::vector<std::vector<uint64_t>> seen(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      // Half of the threads use the masked form, which is a loop.
      const AtomicRequestHeader request{.add_or_swap = 1,
                                        .add_or_swap_mask = i % 2 ? uint64_t{1} << 63 : 0};
      for (uint64_t n = 0; n < kEach; ++n) seen[i].push_back(execute_atomic(bytes(cell), request));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(cell, kThreads * kEach);
  std::set<uint64_t> all;
  for (const auto& some : seen) all.insert(some.begin(), some.end());
  EXPECT_EQ(all.size(), kThreads * kEach);
}

/// One page that can be unmapped.
struct OnDemandAtomic : ::testing::Test {
  void SetUp() override { UWARP_NEEDS_KERNEL_COPIES(); }
  ~OnDemandAtomic() override { munmap(page, kPage); }
  static void* map(void* at = nullptr, int flags = 0) {
    return mmap(at, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  }
  std::optional<uint64_t> execute(const AtomicRequestHeader& request) {
    return execute_atomic_on_demand(static_cast<std::byte*>(page), request, mutex);
  }
  uint64_t value() const { return *static_cast<uint64_t*>(page); }
  static constexpr size_t kPage = 65536;  // the largest page size
  void* const page = map();
  Mutex mutex;
};

// Proves: 7306-5.1.1-e 7306-5.1.2-b
TEST_F(OnDemandAtomic, DoesAsTheInstructionDoes) {
  for (const Add& v : kAdds) {
    *static_cast<uint64_t*>(page) = v.old;
    EXPECT_EQ(execute({.add_or_swap = v.add, .add_or_swap_mask = v.mask}), v.old);
    EXPECT_EQ(value(), v.result);
  }
  for (const Swap& v : kSwaps) {
    *static_cast<uint64_t*>(page) = v.old;
    EXPECT_EQ(execute({.opcode = AtomicOpcode::kCmpSwap,
                       .add_or_swap = v.swap,
                       .add_or_swap_mask = v.swap_mask,
                       .compare = v.compare,
                       .compare_mask = v.compare_mask}),
              v.old);
    EXPECT_EQ(value(), v.result);
  }
}

TEST_F(OnDemandAtomic, NeedsMemoryThatIsThereAndWritable) {
  mprotect(page, kPage, PROT_READ);
  EXPECT_EQ(execute({.add_or_swap = 1}), std::nullopt);
  munmap(page, kPage);
  EXPECT_EQ(execute({.add_or_swap = 1}), std::nullopt);
}

// 7306-5-a
TEST_F(OnDemandAtomic, IsAtomicBetweenThreads) {
  constexpr uint64_t kEach = 5000;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (uint64_t n = 0; n < kEach; ++n) EXPECT_TRUE(execute({.add_or_swap = 1}));
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(value(), 4 * kEach);
}

}  // namespace
}  // namespace uwarp
