// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Shared memory that one process hands to another: when it arrives, and at which owner.
#include "connect/local_door.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "progress/progress.h"

namespace uwarp {
namespace {

class Waiting : public CarrierOwner {
 public:
  void carrier_arrived(std::unique_ptr<RingCarrier> carrier) override {
    carriers.push_back(std::move(carrier));
  }
  std::vector<std::unique_ptr<RingCarrier>> carriers;
};

class LocalDoorTest : public testing::Test {
 protected:
  void serve() { (void)door_.ready(EPOLLIN); }
  /// A peer brings memory to the door and hands it over. Returns the peer's end, or null.
  static std::unique_ptr<RingCarrier> visit(const LocalDoor::Ticket& ticket) {
    auto delivery = LocalDoor::bring(ticket);
    if (!delivery) return nullptr;
    auto joined = std::move(delivery->carrier);
    EXPECT_EQ(LocalDoor::hand_over(*delivery, *joined), 0);
    return joined;
  }
  Progress progress_;
  LocalDoor door_{progress_};
  std::shared_ptr<Waiting> owner_ = std::make_shared<Waiting>();
};

// The peer may write into the memory as soon as it has joined, even if the thread that brought the
// memory is not running. So this end must have joined the stream before.
TEST_F(LocalDoorTest, NothingComesBeforeItIsHandedOver) {
  const auto ticket = door_.expect(owner_);
  ASSERT_TRUE(ticket);
  auto delivery = LocalDoor::bring(*ticket);
  ASSERT_TRUE(delivery);
  serve();
  EXPECT_TRUE(owner_->carriers.empty());
  const auto joined = std::move(delivery->carrier);
  ASSERT_EQ(LocalDoor::hand_over(*delivery, *joined), 0);
  serve();
  ASSERT_EQ(owner_->carriers.size(), 1u);

  char byte = 'x';
  const iovec message = {&byte, 1};
  EXPECT_EQ(owner_->carriers[0]->send({&message, 1}), 1);
  char got = 0;
  const iovec room = {&got, 1};
  EXPECT_EQ(joined->receive({&room, 1}), 1);
  EXPECT_EQ(got, 'x');
}

TEST_F(LocalDoorTest, ATicketIsGoodOnce) {
  const auto ticket = door_.expect(owner_);
  ASSERT_TRUE(ticket);
  const auto other = door_.expect(owner_);  // keeps the door open
  ASSERT_TRUE(other);
  for (int i = 0; i < 2; ++i) {
    ASSERT_NE(visit(*ticket), nullptr);
    serve();
  }
  EXPECT_EQ(owner_->carriers.size(), 1u);
}

// Many queue pairs may become busy at the same moment, and each peer tries only once.
TEST_F(LocalDoorTest, ManyComeAtOnce) {
  constexpr size_t kMany = 100;
  std::vector<std::unique_ptr<RingCarrier>> joined;
  for (size_t i = 0; i < kMany; ++i) {
    const auto ticket = door_.expect(owner_);
    ASSERT_TRUE(ticket);
    joined.push_back(visit(*ticket));
    ASSERT_NE(joined.back(), nullptr) << i;
  }
  serve();
  EXPECT_EQ(owner_->carriers.size(), kMany);
}

TEST_F(LocalDoorTest, SilentVisitorsMakeRoom) {
  std::vector<LocalDoor::Delivery> silent;
  const auto ticket = door_.expect(owner_);
  ASSERT_TRUE(ticket);
  for (int i = 0; i < 100; ++i) {
    auto delivery = LocalDoor::bring(*ticket);
    ASSERT_TRUE(delivery);
    silent.push_back(std::move(*delivery));
  }
  serve();
  ASSERT_NE(visit(*ticket), nullptr);
  serve();
  EXPECT_EQ(owner_->carriers.size(), 1u);
}

TEST_F(LocalDoorTest, AClosedDoorRefuses) {
  const auto ticket = door_.expect(owner_);
  ASSERT_TRUE(ticket);
  door_.forget(ticket->number);
  const auto delivery = LocalDoor::bring(*ticket);
  ASSERT_FALSE(delivery);
  EXPECT_EQ(delivery.error(), ECONNREFUSED);
}

}  // namespace
}  // namespace uwarp
