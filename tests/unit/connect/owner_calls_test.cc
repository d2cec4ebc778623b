// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The calls that the owner of a connection gets: each call after each other.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "connect/connection.h"

namespace uwarp {
namespace {

/// Records its calls.
class Listening : public ConnectionOwner {
 public:
  void connection_established(const std::shared_ptr<Connection>&, const sockaddr_storage&,
                              const ConnectParameters& peer) override {
    hear("established " + std::to_string(peer.initiator_depth));
  }
  void connection_rejected(const std::shared_ptr<Connection>&, int status,
                           std::span<const std::byte> bytes) override {
    hear("rejected " + std::to_string(status) + " " + std::to_string(bytes.size()));
  }
  void connection_failed(const std::shared_ptr<Connection>&, int status) override {
    hear("failed " + std::to_string(status));
  }
  void connection_ended(const std::shared_ptr<Connection>&) override { hear("ended"); }

  std::string heard;
  std::function<void()> inside;

 private:
  void hear(const std::string& what) {
    heard += heard.empty() ? what : ", " + what;
    if (inside) inside();
  }
};

struct Told {
  void make() {
    Lock lock(mutex);
    calls.make(lock, nullptr, {});
    EXPECT_FALSE(mutex.try_lock());
  }
  void notify(std::string_view call) {
    if (call == "established") calls.notify(OwnerCalls::kEstablished, 0, {.initiator_depth = 9});
    if (call == "rejected")
      calls.notify(OwnerCalls::kRejected, -5, {.private_data = {std::byte{1}, std::byte{2}}});
    if (call == "failed") calls.notify(OwnerCalls::kFailed, -7);
    if (call == "end") calls.notify_end();
  }

  Mutex mutex;
  std::shared_ptr<Listening> owner = std::make_shared<Listening>();
  OwnerCalls calls{owner};
};

TEST(OwnerCalls, EachAfterEachOther) {
  const std::string reset = "failed " + std::to_string(-ECONNRESET);
  const std::string expected[4][5] = {
      // then: established, rejected, failed, end, nothing
      {"established 9", "established 9", "established 9", "established 9, ended", "established 9"},
      {"rejected -5 2", "rejected -5 2", "rejected -5 2", "rejected -5 2", "rejected -5 2"},
      {"failed -7", "failed -7", "failed -7", "failed -7", "failed -7"},
      {reset, reset, reset, reset, reset},
  };
  const char* const kCalls[] = {"established", "rejected", "failed", "end", "nothing"};
  for (int first = 0; first < 4; ++first)
    for (int second = 0; second < 5; ++second)
      for (const bool at_once : {true, false}) {
        Told told;
        told.notify(kCalls[first]);
        EXPECT_TRUE(told.calls.due());
        if (at_once) told.make();
        told.notify(kCalls[second]);
        told.notify("end");
        told.notify("end");
        told.make();
        EXPECT_FALSE(told.calls.due());
        const std::string& all = expected[first][second];
        EXPECT_EQ(told.owner->heard, first == 0 && second != 3 ? all + ", ended" : all)
            << first << " " << second;
        EXPECT_EQ(told.calls.was_established(), first == 0);
      }
}

TEST(OwnerCalls, ADroppedOwnerIsNotCalledAgain) {
  Told told;
  told.notify("established");
  told.calls.drop_owner();
  told.notify("end");
  EXPECT_FALSE(told.calls.due());
  told.make();
  EXPECT_EQ(told.owner->heard, "");
  EXPECT_TRUE(told.calls.was_established());
}

TEST(OwnerCalls, AnOwnerThatIsGoneIsNotCalled) {
  Told told;
  told.notify("established");
  told.owner.reset();
  told.make();
  EXPECT_FALSE(told.calls.due());
}

// Only one thread makes calls at a time. Others leave their call to that thread.
TEST(OwnerCalls, OneAtATime) {
  Told told;
  told.owner->inside = [&] {
    const std::string before = told.owner->heard;
    told.notify("end");
    told.make();
    EXPECT_EQ(told.owner->heard, before);
  };
  told.notify("established");
  told.make();
  EXPECT_EQ(told.owner->heard, "established 9, ended");
}

TEST(OwnerCalls, AnOwnerWithoutMemoryGetsTheNextCall) {
  Told told;
  told.owner->inside = [&] {
    told.owner->inside = nullptr;
    throw std::bad_alloc();
  };
  told.notify("established");
  told.notify("end");
  told.make();
  EXPECT_EQ(told.owner->heard, "established 9, ended");
}

}  // namespace
}  // namespace uwarp
