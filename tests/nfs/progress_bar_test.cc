// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/progress_bar.h"

#include <gtest/gtest.h>

namespace uwarp::nfs {
namespace {

TEST(ProgressBar, LineFitsTheTerminal) {
  std::string half = ProgressBar::line("a/file", 500, 1000, 1, 80);
  EXPECT_EQ(half, "a/file [##########..........]  50 %  500 B  500 B/s");
  for (size_t columns = 0; columns < 80; ++columns) {
    EXPECT_LE(ProgressBar::line("a/file", 500, 1000, 1, columns).size(), columns);
  }
  EXPECT_NE(ProgressBar::line("x", 0, 0, 0, 80).find("100 %"), std::string::npos);
}

TEST(ProgressBar, Sizes) {
  EXPECT_EQ(human_size(999), "999 B");
  EXPECT_EQ(human_size(1500), "1.50 kB");
  EXPECT_EQ(human_size(3.2e9), "3.20 GB");
}

}  // namespace
}  // namespace uwarp::nfs
