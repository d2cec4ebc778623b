// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// rdma_resolve_addr if the next hop answers, and if there is none. The tests run in their own
// network namespace; the neighbour is in another one.
#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include "verbs/own_namespace.h"
#include "verbs/verbs_fixture.h"

namespace {

TEST(Neighbour, InANamespace) { run_in_namespace("NeighbourInside.*"); }

constexpr int kShortMs = 300;
constexpr int kLongMs = 60'000;  // longer than any test waits

/// A process in its own network namespace, until the end of the test.
class OtherNamespace {
 public:
  OtherNamespace() {
    int ready[2];
    if (pipe(ready) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      close(ready[0]);
      const char done = unshare(CLONE_NEWNET) == 0 ? 'y' : 'n';
      if (write(ready[1], &done, 1) != 1) _exit(1);
      for (;;) pause();
    }
    close(ready[1]);
    char done = 'n';
    made_ = read(ready[0], &done, 1) == 1 && done == 'y';
    close(ready[0]);
  }
  ~OtherNamespace() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  bool made() const { return made_; }
  std::string pid() const { return std::to_string(pid_); }
  /// Without the preload: nsenter does not run with ThreadSanitizer in it.
  std::string enter() const { return "env -u LD_PRELOAD nsenter -t " + pid() + " -n "; }

 private:
  pid_t pid_ = -1;
  bool made_ = false;
};

/// From now on this thread may not send empty datagrams, as with a firewall.
bool forbid_empty_datagrams() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendto, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog whole = {sizeof program / sizeof program[0], program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole) == 0;
}

class NeighbourInside : public VerbsTest {
 protected:
  void SetUp() override {
    if (!inside_namespace()) GTEST_SKIP() << "only in the namespace";
    (void)shell("ip link del veth0 2>/dev/null");
    // The kernel gives up sooner than by its default, 3 s.
    ASSERT_EQ(shell(std::string(kMakeVeth) +
                    " && ip addr add fd77::1/64 dev veth0 nodad"
                    " && ip ntable change name arp_cache dev veth0 retrans 100"
                    " && ip ntable change name ndisc_cache dev veth0 retrans 100"),
              0);
    ASSERT_TRUE(other_.made());
    ASSERT_EQ(shell("ip link set veth1 netns " + other_.pid() + " && " + other_.enter() +
                    "ip link set veth1 up && " + other_.enter() +
                    "ip addr add 10.77.0.2/24 dev veth1 && " + other_.enter() +
                    "ip addr add fd77::2/64 dev veth1 nodad"),
              0);
    VerbsTest::SetUp();
    channel_ = rdma_create_event_channel();
    ASSERT_NE(channel_, nullptr);
    ASSERT_EQ(rdma_create_id(channel_, &id_, nullptr, RDMA_PS_TCP), 0);
  }
  void TearDown() override {
    if (id_ != nullptr) {
      EXPECT_EQ(rdma_destroy_id(id_), 0);
    }
    if (channel_ != nullptr) rdma_destroy_event_channel(channel_);
  }

  static int resolve(rdma_cm_id* id, const std::string& ip, int timeout_ms) {
    sockaddr_storage there = {};
    if (ip.find(':') != std::string::npos) {
      auto& six = reinterpret_cast<sockaddr_in6&>(there);
      six.sin6_family = AF_INET6;
      six.sin6_port = htons(7471);
      inet_pton(AF_INET6, ip.c_str(), &six.sin6_addr);
    } else {
      auto& four = reinterpret_cast<sockaddr_in&>(there);
      four.sin_family = AF_INET;
      four.sin_port = htons(7471);
      inet_pton(AF_INET, ip.c_str(), &four.sin_addr);
    }
    errno = 0;
    const int result =
        rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&there), timeout_ms);
    if (result == 0) {
      EXPECT_EQ(errno, 0) << ip;
    }
    return result;
  }
  struct Told {
    rdma_cm_event_type type;
    int status;
  };
  Told next_event() {
    rdma_cm_event* event = nullptr;
    if (!readable(channel_->fd) || rdma_get_cm_event(channel_, &event) != 0) {
      ADD_FAILURE() << "no event";
      return {RDMA_CM_EVENT_TIMEWAIT_EXIT, 0};
    }
    const Told told{event->event, event->status};
    rdma_ack_cm_event(event);
    return told;
  }
  void expect(rdma_cm_event_type type, int status) {
    const Told told = next_event();
    EXPECT_STREQ(rdma_event_str(told.type), rdma_event_str(type));
    EXPECT_EQ(told.status, status);
  }

  const OtherNamespace other_;
  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* id_ = nullptr;
};

TEST_F(NeighbourInside, OneThatAnswers) {
  for (const char* ip : {"10.77.0.2", "fd77::2"}) {
    ASSERT_EQ(shell("ip neigh flush dev veth0"), 0);
    // The second time the neighbour is known.
    for (int i = 0; i < 2; ++i) {
      rdma_cm_id* id = nullptr;
      ASSERT_EQ(rdma_create_id(channel_, &id, nullptr, RDMA_PS_TCP), 0);
      ASSERT_EQ(resolve(id, ip, kLongMs), 0);
      expect(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
      EXPECT_EQ(rdma_destroy_id(id), 0);
    }
  }
}

TEST_F(NeighbourInside, NoAnswerWithinTheTime) {
  ASSERT_EQ(shell("ip ntable change name arp_cache dev veth0 retrans 30000 && "
                  "ip ntable change name ndisc_cache dev veth0 retrans 30000"),
            0);
  for (const char* ip : {"10.77.0.77", "fd77::77"}) {
    ASSERT_EQ(resolve(id_, ip, kShortMs), 0) << ip;
    EXPECT_EQ(resolve(id_, ip, kShortMs), -1) << "one at a time";
    expect(RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT);
  }
  // The id may try the next address.
  ASSERT_EQ(resolve(id_, "10.77.0.2", kLongMs), 0);
  expect(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
}

TEST_F(NeighbourInside, TheKernelGivesUpBefore) {
  for (const char* ip : {"10.77.0.77", "fd77::77"}) {
    // The second time the kernel has an entry for the failure, and asks again.
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(resolve(id_, ip, kLongMs), 0) << ip;
      expect(RDMA_CM_EVENT_ADDR_ERROR, -EHOSTUNREACH);
    }
  }
}

TEST_F(NeighbourInside, OneThatComesLater) {
  ASSERT_EQ(shell("ip ntable change name arp_cache dev veth0 retrans 30000"), 0);
  ASSERT_EQ(resolve(id_, "10.77.0.77", kLongMs), 0);
  EXPECT_FALSE(readable(channel_->fd, std::chrono::milliseconds(100)));
  ASSERT_EQ(shell("ip neigh replace 10.77.0.77 lladdr 02:00:00:00:00:77 dev veth0"), 0);
  expect(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
}

TEST_F(NeighbourInside, BehindAGatewayItIsTheGateway) {
  ASSERT_EQ(shell("ip route add 10.88.0.0/16 via 10.77.0.2 && "
                  "ip route add 10.89.0.0/16 via 10.77.0.77 && "
                  "ip route add fd88::/64 via fd77::2 && ip route add fd89::/64 via fd77::77"),
            0);
  for (const char* ip : {"10.89.0.1", "fd89::1"}) {
    ASSERT_EQ(resolve(id_, ip, kLongMs), 0) << ip;
    expect(RDMA_CM_EVENT_ADDR_ERROR, -EHOSTUNREACH);
  }
  for (const char* ip : {"10.88.0.1", "fd88::1"}) {
    rdma_cm_id* id = nullptr;
    ASSERT_EQ(rdma_create_id(channel_, &id, nullptr, RDMA_PS_TCP), 0);
    ASSERT_EQ(resolve(id, ip, kLongMs), 0) << ip;
    expect(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
    EXPECT_EQ(rdma_destroy_id(id), 0);
  }
}

TEST_F(NeighbourInside, DevicesWithoutNeighbours) {
  ASSERT_EQ(shell("ip link set veth0 arp off"), 0);
  ASSERT_EQ(resolve(id_, "10.77.0.77", kShortMs), 0);
  expect(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
}

// Without the question the neighbour cannot be found out, so the resolution succeeds; connecting
// may fail later.
TEST_F(NeighbourInside, WhereTheQuestionIsForbidden) {
  std::thread([&] {
    ASSERT_TRUE(forbid_empty_datagrams());
    EXPECT_EQ(resolve(id_, "10.77.0.77", kLongMs), 0);
  }).join();
  expect(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
}

// The device's own address, and the host's other addresses.
TEST_F(NeighbourInside, OwnAddressesNeedNone) {
  for (const char* ip : {"10.77.0.1", "fd77::1", "127.0.0.1"}) {
    rdma_cm_id* id = nullptr;
    ASSERT_EQ(rdma_create_id(channel_, &id, nullptr, RDMA_PS_TCP), 0);
    ASSERT_EQ(resolve(id, ip, kShortMs), 0) << ip;
    expect(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
    EXPECT_EQ(rdma_destroy_id(id), 0);
  }
}

TEST_F(NeighbourInside, ManyIdsWaitAndSomeGo) {
  const size_t files = open_files();
  std::vector<rdma_cm_id*> ids(20);
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(rdma_create_id(channel_, &ids[i], nullptr, RDMA_PS_TCP), 0);
    ASSERT_EQ(resolve(ids[i], i % 4 < 2 ? "10.77.0.77" : "fd77::77", kLongMs), 0);
  }
  for (size_t i = 0; i < ids.size(); i += 2) EXPECT_EQ(rdma_destroy_id(ids[i]), 0);
  for (size_t i = 1; i < ids.size(); i += 2) expect(RDMA_CM_EVENT_ADDR_ERROR, -EHOSTUNREACH);
  for (size_t i = 1; i < ids.size(); i += 2) EXPECT_EQ(rdma_destroy_id(ids[i]), 0);
  EXPECT_TRUE(wait_until([&] { return open_files() <= files; }))
      << "a wait for a neighbour has not ended";
}

}  // namespace
