// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Changes of a netdev are reported to the application. Runs in its own network namespace.
#include <sys/resource.h>

#include <cstdio>

#include "verbs/own_namespace.h"
#include "verbs/verbs_fixture.h"

namespace {

using std::chrono::milliseconds;

TEST(PortEvents, InANamespace) { run_in_namespace("PortEventsInside.*"); }

class PortEventsInside : public VerbsTest {
 protected:
  void SetUp() override {
    if (!inside_namespace()) GTEST_SKIP() << "only in the namespace";
    VerbsTest::SetUp();
    // When the port is active, the set-up itself causes no more events: the addresses were there
    // before, and IPv6 adds none.
    EXPECT_TRUE(wait_until([&] { return port_state() == IBV_PORT_ACTIVE; }));
    while (readable(context()->async_fd, milliseconds(100))) take();
  }
  ibv_port_state port_state() {
    ibv_port_attr attr = {};
    EXPECT_EQ(ibv_query_port(context(), 1, &attr), 0);
    return attr.state;
  }
  ibv_async_event take() {
    ibv_async_event event = {};
    EXPECT_EQ(ibv_get_async_event(context(), &event), 0);
    ibv_ack_async_event(&event);
    return event;
  }
  /// Waits for this event and skips others.
  bool comes(ibv_event_type type, int port) {
    while (readable(context()->async_fd)) {
      const ibv_async_event event = take();
      if (event.event_type == type) return event.element.port_num == port;
    }
    return false;
  }
};

TEST_F(PortEventsInside, LinkGoesDownAndUp) {
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(shell("ip link set veth1 down"), 0);
    EXPECT_TRUE(comes(IBV_EVENT_PORT_ERR, 1));
    EXPECT_EQ(port_state(), IBV_PORT_DOWN);
    ASSERT_EQ(shell("ip link set veth1 up"), 0);
    EXPECT_TRUE(comes(IBV_EVENT_PORT_ACTIVE, 1));
    EXPECT_EQ(port_state(), IBV_PORT_ACTIVE);
  }
}

TEST_F(PortEventsInside, AddressComesAndGoes) {
  const auto last_gid_byte = [&](int index) {
    ibv_gid gid = {};
    EXPECT_EQ(ibv_query_gid(context(), 1, index, &gid), 0);
    return int{gid.raw[15]};
  };
  EXPECT_EQ(last_gid_byte(0), 1);
  ASSERT_EQ(shell("ip addr add 10.77.0.9/24 dev veth0"), 0);
  EXPECT_TRUE(comes(IBV_EVENT_GID_CHANGE, 1));
  EXPECT_EQ(last_gid_byte(1), 9) << "the table has it when the event comes";
  ASSERT_EQ(shell("ip addr del 10.77.0.9/24 dev veth0"), 0);
  EXPECT_TRUE(comes(IBV_EVENT_GID_CHANGE, 1));
}

// The engine cannot read from the kernel then; that is not a change of the netdev.
TEST_F(PortEventsInside, AnAddressComesAtTheLimitOfOpenFiles) {
  End end(context());
  // Started before the limit, which it would inherit.
  FILE* other = popen("read go; ip addr add 10.77.0.10/24 dev veth0", "w");
  ASSERT_NE(other, nullptr);
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit none = {0, files.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  fputs("go\n", other);
  EXPECT_EQ(pclose(other), 0);
  EXPECT_FALSE(next_async_event(context(), milliseconds(300)));
  EXPECT_EQ(port_state(), IBV_PORT_ACTIVE);
  EXPECT_EQ(state_of(end.qp.get()), IBV_QPS_INIT);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_TRUE(comes(IBV_EVENT_GID_CHANGE, 1));
  ASSERT_EQ(shell("ip addr del 10.77.0.10/24 dev veth0"), 0);
  EXPECT_TRUE(comes(IBV_EVENT_GID_CHANGE, 1));
}

TEST_F(PortEventsInside, NetdevDisappears) {
  End end(context());
  ASSERT_EQ(end.post_receive(1), 0);
  ASSERT_EQ(shell("ip link del veth0"), 0);
  EXPECT_TRUE(comes(IBV_EVENT_DEVICE_FATAL, 0));
  EXPECT_COMPLETION(end.cq.get(), 1, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(state_of(end.qp.get()), IBV_QPS_ERR);
  // A device with the same name is not the same device.
  ASSERT_EQ(shell(kMakeVeth), 0);
  EXPECT_FALSE(next_async_event(context(), milliseconds(100)));
}

}  // namespace
