// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "memory/fault_safe_copy.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "unit/kernel_copies.h"

namespace uwarp {
namespace {

/// Three pages: writable, read-only, not mapped.
struct Pages : ::testing::Test {
  Pages() : page(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    start = static_cast<std::byte*>(
        mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    start[0] = std::byte{5};
    mprotect(start + page, page, PROT_READ);
    munmap(start + 2 * page, page);
  }
  void SetUp() override { UWARP_NEEDS_KERNEL_COPIES(); }
  ~Pages() override { munmap(start, 2 * page); }
  const size_t page;
  std::byte* start;
  std::byte ours[8] = {};
};

TEST(FaultSafeCopy, WorksWhereTheKernelHasIt) {
  char from = 1, to = 0;
  const iovec ours{&to, 1}, theirs{&from, 1};
  const bool allowed = process_vm_readv(getpid(), &ours, 1, &theirs, 1, 0) == 1;
  EXPECT_EQ(fault_safe_copy_works(), allowed);
}

TEST_F(Pages, Reads) {
  EXPECT_TRUE(fault_safe_read(ours, start, 8));
  EXPECT_EQ(ours[0], std::byte{5});
  EXPECT_TRUE(fault_safe_read(ours, start + 2 * page - 8, 8));
  EXPECT_FALSE(fault_safe_read(ours, start + 2 * page - 4, 8));
  EXPECT_FALSE(fault_safe_read(ours, nullptr, 8));
}

TEST_F(Pages, Writes) {
  ours[7] = std::byte{9};
  EXPECT_TRUE(fault_safe_write(start + page - 8, ours, 8));
  EXPECT_EQ(start[page - 1], std::byte{9});
  EXPECT_FALSE(fault_safe_write(start + page - 4, ours, 8)) << "half of it read-only";
  EXPECT_FALSE(fault_safe_write(start + 2 * page, ours, 8));
}

TEST_F(Pages, Probes) {
  EXPECT_TRUE(fault_safe_probe(start));
  EXPECT_EQ(start[0], std::byte{5});
  EXPECT_FALSE(fault_safe_probe(start + page)) << "read-only";
  EXPECT_FALSE(fault_safe_probe(start + 2 * page));
}

}  // namespace
}  // namespace uwarp
