// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/xrc_domain.h"

#include <gtest/gtest.h>

namespace uwarp {
namespace {

struct Domain : ::testing::Test {
  XrcQueue queue(uint32_t number, ProtectionDomain& protection, CompletionQueue& completions) {
    return {number, &receives, &completions, &protection};
  }
  bool reaches(const ProtectionDomain& protection) {
    return domain.protection_domain().reaches(&protection);
  }
  SharedReceiveQueue receives{4, 1};
  CompletionQueue completions{4, nullptr}, others{4, nullptr};
  ProtectionDomain first, second;
  XrcDomain domain;
};

TEST_F(Domain, FindsQueuesByNumber) {
  const XrcQueue one = queue(16, first, completions), two = queue(70000, second, others);
  domain.enter(one);
  domain.enter(two);
  EXPECT_EQ(domain.find(16), &one);
  EXPECT_EQ(domain.find(70000), &two);
  for (const uint32_t none : {0u, 17u, 69999u, ~0u}) EXPECT_EQ(domain.find(none), nullptr);
  domain.leave(one);
  EXPECT_EQ(domain.find(16), nullptr);
  EXPECT_FALSE(domain.completes_to(completions));
  EXPECT_TRUE(domain.completes_to(others));
}

// As long as one of its queues is in the domain.
TEST_F(Domain, ReachesTheProtectionDomainsOfItsQueues) {
  EXPECT_TRUE(reaches(domain.protection_domain()));
  EXPECT_FALSE(reaches(first));
  const XrcQueue one = queue(16, first, completions), two = queue(17, first, completions),
                 three = queue(18, second, completions);
  for (const XrcQueue* each : {&one, &two, &three}) domain.enter(*each);
  EXPECT_TRUE(reaches(first));
  EXPECT_TRUE(reaches(second));
  domain.leave(one);
  EXPECT_TRUE(reaches(first));
  domain.leave(two);
  EXPECT_FALSE(reaches(first));
  EXPECT_TRUE(reaches(second));
  EXPECT_FALSE(domain.protection_domain().reaches(nullptr)) << "a free place matches no domain";
  domain.enter(one);
  EXPECT_TRUE(reaches(first));
  EXPECT_FALSE(first.reaches(&second)) << "in one direction only";
}

}  // namespace
}  // namespace uwarp
