// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "memory/place_last.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "memory/fault_safe_copy.h"

namespace uwarp {
namespace {

constexpr size_t kMostBytes = 64;
constexpr size_t kAlignments = 16;

void for_all(const std::function<void(size_t alignment, size_t size)>& check) {
  for (size_t alignment = 0; alignment < kAlignments; ++alignment)
    for (size_t size = 1; size <= kMostBytes; ++size) check(alignment, size);
}

TEST(PlaceLast, TheLastStoreIsAlignedAndAsWideAsCanBe) {
  alignas(kAlignments) std::array<std::byte, kAlignments + kMostBytes> memory;
  for_all([&](size_t alignment, size_t size) {
    const size_t bytes = last_store_bytes(memory.data() + alignment, size);
    const auto fits = [&](size_t width) {
      return width <= size && width <= 8 && (alignment + size) % width == 0;
    };
    ASSERT_TRUE(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8);
    EXPECT_TRUE(fits(bytes)) << size << " bytes at " << alignment;
    EXPECT_FALSE(fits(2 * bytes)) << size << " bytes at " << alignment;
  });
}

TEST(PlaceLast, AllBytesArriveAndNoOthersChange) {
  if (!fault_safe_copy_works()) GTEST_SKIP() << "no process_vm_writev() here";
  std::array<std::byte, kMostBytes> source;
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i + 1);
  for (const bool on_demand : {false, true}) {
    for_all([&](size_t alignment, size_t size) {
      alignas(kAlignments) std::array<std::byte, kAlignments + kMostBytes + 1> memory{};
      std::byte* const to = memory.data() + alignment;
      if (on_demand)
        ASSERT_TRUE(place_last_on_demand(to, source.data(), size));
      else
        place_last(to, source.data(), size);
      for (size_t i = 0; i < memory.size(); ++i) {
        const bool inside = i >= alignment && i < alignment + size;
        ASSERT_EQ(memory[i], inside ? source[i - alignment] : std::byte{0});
      }
    });
  }
}

}  // namespace
}  // namespace uwarp
