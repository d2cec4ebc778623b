// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "carrier/access_gate.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "unit/eventually.h"

namespace uwarp {
namespace {

constexpr uint32_t kEntry = 5;

struct Peer {
  explicit Peer(pid_t pid = getpid(), bool open = true) {
    EXPECT_TRUE(process->find(pid));
    gate = std::make_shared<AccessGate>(control, *control, process);
    if (open) gate->open(&domain, kAccessRemoteWrite);
  }
  const std::shared_ptr<PeerProcess> process = std::make_shared<PeerProcess>();
  const std::shared_ptr<OneSidedControl> control = std::make_shared<OneSidedControl>();
  ProtectionDomain domain;
  RemoteUse use{*control};
  std::shared_ptr<AccessGate> gate;
};

TEST(AccessGate, LetsInWithTheRightsOfOneDomain) {
  Peer peer(getpid(), false);
  alignas(8) const char domain[16] = {};
  const auto name = reinterpret_cast<uintptr_t>(domain);
  EXPECT_FALSE(peer.use.is_open());
  EXPECT_FALSE(peer.use.admits(name, kAccessRemoteRead));
  EXPECT_FALSE(peer.use.admits(0, 0)) << "no domain";
  peer.gate->open(domain, kAccessRemoteRead | kAccessLocalWrite);
  EXPECT_TRUE(peer.use.admits(name, kAccessRemoteRead));
  EXPECT_FALSE(peer.use.admits(name, kAccessRemoteWrite));
  EXPECT_FALSE(peer.use.admits(name + 8, kAccessRemoteRead));
  peer.gate->open(domain, kAccessRemoteWrite);
  EXPECT_FALSE(peer.use.admits(name, kAccessRemoteRead)) << "the right was taken away";
  EXPECT_TRUE(peer.use.admits(name, kAccessRemoteWrite));
  peer.gate->shut();
  EXPECT_FALSE(peer.use.admits(name, kAccessRemoteWrite));
}

TEST(AccessGate, WaitsForTheCopyOfThatEntryOnly) {
  Peer peer;
  peer.gate->wait(kEntry);
  peer.use.begin(kEntry);
  peer.gate->wait(kEntry + 1);
  std::atomic<bool> done{false};
  std::thread owner([&] {
    peer.gate->wait(kEntry);
    EXPECT_TRUE(done) << "the copy was under way";
    peer.gate->wait(TargetGate::kAnything);
  });
  usleep(20'000);
  done = true;
  peer.use.end();
  owner.join();
}

TEST(AccessGate, APeerThatHoldsOnLosesTheConnection) {
  Peer peer;
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  peer.gate->set_socket(ends[0]);
  peer.use.begin(kEntry);
  char byte;
  peer.gate->wait(kEntry);
  EXPECT_EQ(read(ends[1], &byte, 1), 0) << "it was shut down";
  EXPECT_FALSE(peer.gate->uses(TargetGate::kAnything)) << "it is not waited for again";
  close(ends[0]);
  close(ends[1]);
}

// It may have written the word, without any right to the memory.
TEST(AccessGate, APeerThatWasNeverLetInIsNotWaitedFor) {
  Peer peer(getpid(), false);
  peer.use.begin(kEntry);
  EXPECT_FALSE(peer.gate->uses(kEntry));
  peer.gate->wait(kEntry);
  peer.gate->wait(TargetGate::kAnything);
}

// Who copies all the time is not waited for all the time: what begins later knows of the change.
TEST(AccessGate, TheNextCopyIsNotWaitedFor) {
  Peer peer;
  std::atomic<bool> over{false};
  std::thread copies([&] {
    while (!over) {
      peer.use.begin(kEntry);
      usleep(100);
      peer.use.begin(kEntry);
    }
    peer.use.end();
  });
  for (int i = 0; i < 20; ++i) peer.gate->wait(TargetGate::kAnything);
  EXPECT_TRUE(peer.use.is_open()) << "it was not given up";
  over = true;
  copies.join();
}

TEST(AccessGates, WaitForThoseOfTheDomainOnly) {
  AccessGates gates;
  Peer peer, other;
  gates.add(peer.gate);
  gates.add(other.gate);
  peer.use.begin(kEntry);
  gates.wait(kEntry, &other.domain);
  EXPECT_TRUE(peer.use.is_open());
  peer.use.end();
}

TEST(AccessGate, AProcessThatIsGoneIsNotWaitedFor) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    pause();
    _exit(0);
  }
  Peer peer(child);
  peer.use.begin(kEntry);
  EXPECT_TRUE(peer.gate->uses(TargetGate::kAnything));
  EXPECT_FALSE(peer.process->gone());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  peer.gate->wait(kEntry);
  EXPECT_FALSE(peer.gate->uses(TargetGate::kAnything));
}

// As it does in exec(), too.
TEST(PeerProcess, HasLeftOnceItsEndOfTheSocketIsClosed) {
  PeerProcess self;
  ASSERT_TRUE(self.find(getpid()));
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  EXPECT_FALSE(self.has_left(ends[0]));
  close(ends[1]);
  EXPECT_TRUE(self.has_left(ends[0]));
  close(ends[0]);
  PeerProcess none;
  EXPECT_FALSE(none.find(-1));
  EXPECT_FALSE(none);
}

TEST(AccessGates, KeepOneWhoseConnectionIsGoneAsLongAsItIsUsed) {
  AccessGates gates;
  Peer peer;
  const std::weak_ptr<OneSidedControl> memory = peer.control;
  gates.add(peer.gate);
  peer.use.begin(kEntry);
  gates.leave(peer.gate);
  const std::weak_ptr<AccessGate> gate = std::exchange(peer.gate, nullptr);
  EXPECT_FALSE(gate.expired()) << "a region may be taken away yet";
  gates.wait(kEntry + 1, &peer.domain);
  EXPECT_FALSE(gate.expired());
  std::thread copy([&] {
    usleep(10'000);
    peer.use.end();
  });
  gates.wait(kEntry, &peer.domain);
  copy.join();
  gates.wait(kEntry, &peer.domain);
  EXPECT_TRUE(gate.expired());
}

}  // namespace
}  // namespace uwarp
