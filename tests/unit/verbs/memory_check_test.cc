// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <vector>

#include "verbs/region.h"

namespace uwarp {
namespace {

constexpr size_t kPage = 4096;

/// Six pages: read-write, read-write in another mapping, a hole, read-only, no access, read-write.
class Pages {
 public:
  Pages() {
    base_ = static_cast<char*>(
        mmap(nullptr, 6 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mmap(base_ + kPage, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1,
         0);
    munmap(base_ + 2 * kPage, kPage);
    mprotect(base_ + 3 * kPage, kPage, PROT_READ);
    mprotect(base_ + 4 * kPage, kPage, PROT_NONE);
  }
  ~Pages() { munmap(base_, 6 * kPage); }
  char* page(int number) const { return base_ + number * kPage; }

 private:
  char* base_;
};

struct Row {
  const char* what;
  size_t offset;
  size_t length;
  int reading;  // expected if only reading is asked for
  int writing;
};
constexpr Row kRows[] = {
    {"one page", 0, kPage, 0, 0},
    {"inside a page", 100, 1, 0, 0},
    {"two mappings", 10, 2 * kPage - 10, 0, 0},
    {"one byte into the hole", 10, 2 * kPage - 9, EFAULT, EFAULT},
    {"in the hole", 2 * kPage + 5, 10, EFAULT, EFAULT},
    {"last byte of the hole", 3 * kPage - 1, 1, EFAULT, EFAULT},
    {"from the hole on", 3 * kPage - 1, 2, EFAULT, EFAULT},
    {"read-only", 3 * kPage, kPage, 0, EFAULT},
    {"into no access", 4 * kPage - 1, 2, EFAULT, EFAULT},
    {"no access", 4 * kPage, kPage, EFAULT, EFAULT},
    {"behind it", 5 * kPage, kPage, 0, 0},
};

TEST(MemoryCheck, FindsHolesAndMissingRights) {
  const Pages pages;
  for (const Row& row : kRows) {
    EXPECT_EQ(check_memory(pages.page(0) + row.offset, row.length, false), row.reading) << row.what;
    EXPECT_EQ(check_memory(pages.page(0) + row.offset, row.length, true), row.writing) << row.what;
  }
}

TEST(MemoryCheck, MapsFileGivesTheSameAnswers) {
  const Pages pages;
  for (const Row& row : kRows) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(pages.page(0)) + row.offset;
    EXPECT_EQ(check_memory_by_maps(begin, begin + row.length, false), row.reading) << row.what;
    EXPECT_EQ(check_memory_by_maps(begin, begin + row.length, true), row.writing) << row.what;
  }
}

TEST(MemoryCheck, QueryGivesTheSameAnswersWhereItExists) {
  const Pages pages;
  const uintptr_t base = reinterpret_cast<uintptr_t>(pages.page(0));
  if (check_memory_by_query(base, base + 1, false) == ENOSYS) GTEST_SKIP() << "Linux before 6.11";
  for (const Row& row : kRows) {
    const uintptr_t begin = base + row.offset;
    EXPECT_EQ(check_memory_by_query(begin, begin + row.length, false), row.reading) << row.what;
    EXPECT_EQ(check_memory_by_query(begin, begin + row.length, true), row.writing) << row.what;
  }
}

TEST(MemoryCheck, MsyncFindsHoles) {
  const Pages pages;
  for (const Row& row : kRows) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(pages.page(0)) + row.offset;
    const bool hole = row.reading == EFAULT && row.offset < 3 * kPage;
    EXPECT_EQ(check_memory_by_msync(begin, begin + row.length), hole ? EFAULT : 0) << row.what;
  }
}

TEST(MemoryCheck, UsualMemoryIsRight) {
  int on_stack = 0;
  std::vector<char> on_heap(1 << 20);
  EXPECT_EQ(check_memory(&on_stack, sizeof on_stack, true), 0);
  EXPECT_EQ(check_memory(on_heap.data(), on_heap.size(), true), 0);
  EXPECT_EQ(check_memory("literal", 7, false), 0);
  EXPECT_EQ(check_memory("literal", 7, true), EFAULT);
  EXPECT_EQ(check_memory(nullptr, 0, true), 0) << "nothing is always there";
  EXPECT_EQ(check_memory(nullptr, 1, false), EFAULT);
}

/// Many mappings, so that the reading buffer cuts lines of the maps file at many places.
TEST(MemoryCheck, MapsFileOfManyLines) {
  constexpr int kMappings = 600;
  char* base = static_cast<char*>(
      mmap(nullptr, kMappings * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  for (int i = 0; i < kMappings; i += 2) mprotect(base + i * kPage, kPage, PROT_READ);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(base);
  for (int i = 1; i < kMappings; ++i) {
    EXPECT_EQ(check_memory_by_maps(begin, begin + i * kPage, false), 0) << i;
    const uintptr_t page = begin + i * kPage;
    EXPECT_EQ(check_memory_by_maps(page, page + kPage, true), i % 2 == 0 ? EFAULT : 0) << i;
  }
  munmap(base, kMappings * kPage);
}

}  // namespace
}  // namespace uwarp
