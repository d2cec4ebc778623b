// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Which sources stay quiet, and that each is ended once.
#include "io/quiet_sources.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace uwarp {
namespace {

class Looked : public Source {
 public:
  bool ready(uint32_t) override { return false; }
  void end_quiet() override { ++ended; }
  bool looked_at() override { return looked; }
  bool looked = true;
  int ended = 0;
};

TEST(QuietSources, HoldsAFew) {
  QuietSources quiet;
  EXPECT_FALSE(quiet.any());
  std::vector<std::shared_ptr<Looked>> sources;
  for (size_t i = 0; i < QuietSources::kMost; ++i) {
    sources.push_back(std::make_shared<Looked>());
    EXPECT_TRUE(quiet.add(*sources.back()));
  }
  Looked& refused = *sources.emplace_back(std::make_shared<Looked>());
  EXPECT_FALSE(quiet.add(refused));
  quiet.end_all();
  EXPECT_FALSE(quiet.any());
  for (const auto& source : sources) EXPECT_EQ(source->ended, source.get() == &refused ? 0 : 1);
  quiet.end_all();
  EXPECT_EQ(sources[0]->ended, 1);
  EXPECT_TRUE(quiet.add(refused));
}

TEST(QuietSources, EndsThoseThatNobodyLooksAt) {
  QuietSources quiet;
  const auto busy = std::make_shared<Looked>();
  const auto left = std::make_shared<Looked>();
  auto gone = std::make_shared<Looked>();
  EXPECT_TRUE(quiet.add(*left) && quiet.add(*gone) && quiet.add(*busy));
  left->looked = false;
  gone.reset();
  quiet.end_idle();
  EXPECT_EQ(left->ended, 1);
  EXPECT_EQ(busy->ended, 0);
  EXPECT_TRUE(quiet.any());
  busy->looked = false;
  quiet.end_idle();
  EXPECT_EQ(busy->ended, 1);
  EXPECT_FALSE(quiet.any());
  quiet.end_idle();
  EXPECT_EQ(left->ended + busy->ended, 2);
}

}  // namespace
}  // namespace uwarp
