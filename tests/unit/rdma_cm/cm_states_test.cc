// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Every call on an rdma_cm id in every state of the id: the table in docs/verbs.md, "Ids of
// rdma_cm".
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "unit/rdma_cm/cm_channel.h"

namespace uwarp {
namespace {

const std::vector<std::string> kStates = {"idle",     "bound",       "listening",     "address",
                                          "route",    "connecting",  "request",       "accepting",
                                          "answered", "established", "disconnecting", "closed"};

/// The result of a call in each state, in the order of kStates: `-` is EINVAL, `is` is EISCONN, `x`
/// is a state that the persona does not have.
struct Row {
  const char* call;
  const char* results;
};

// clang-format off
constexpr Row kIwarp[] = {
    //                   idle bound listen addr route connecting request accepting answered established disconnecting closed
    {"bind",            "ok   -     -      -    -     -          -       -         x        -           -             -"},
    {"resolve_addr",    "ok   ok    -      -    -     -          -       -         x        -           -             -"},
    {"resolve_route",   "-    -     -      ok   -     -          -       -         x        -           -             -"},
    {"listen",          "ok   ok    -      -    -     -          -       -         x        -           -             -"},
    {"connect",         "-    -     -      -    ok    -          -       -         x        -           -             -"},
    {"accept",          "-    -     -      -    -     -          ok      -         x        -           -             -"},
    {"establish",       "-    -     -      -    -     -          -       -         x        -           -             -"},
    {"reject",          "-    -     -      -    -     -          ok      -         x        -           -             -"},
    {"disconnect",      "-    -     -      -    -     -          ok      -         x        ok          ok            ok"},
    {"notify",          "-    -     -      -    -     ok         ok      ok        x        ok          ok            ok"},
    {"afonly",          "ok   ok    -      -    -     -          -       -         x        -           -             -"},
    {"reuseaddr on",    "ok   ok    -      ok   ok    ok         ok      ok        x        ok          ok            ok"},
    {"reuseaddr off",   "ok   -     -      -    -     -          -       -         x        -           -             -"},
    {"tos",             "ok   ok    ok     ok   ok    ok         ok      ok        x        ok          ok            ok"},
    {"ack_timeout",     "ok   ok    ok     ok   ok    ok         ok      ok        x        ok          ok            ok"},
    {"qp attributes",   "-    -     -      ok   ok    ok         ok      ok        x        ok          ok            ok"},
    {"migrate",         "ok   ok    ok     ok   ok    ok         ok      ok        x        ok          ok            ok"},
    {"write event",     "ok   ok    ok     ok   ok    ok         ok      ok        x        ok          ok            ok"},
    {"join multicast",  "-    -     -      -    -     -          -       -         x        -           -             -"},
};
// With InfiniBand the active side has a third step.
constexpr Row kRoce[] = {
    {"bind",            "ok   -     -      -    -     -          -       -         -        -           -             -"},
    {"resolve_addr",    "ok   ok    -      -    -     -          -       -         -        -           -             -"},
    {"resolve_route",   "-    -     -      ok   -     -          -       -         -        -           -             -"},
    {"listen",          "ok   ok    -      -    -     -          -       -         -        -           -             -"},
    {"connect",         "-    -     -      -    ok    -          -       -         -        -           -             -"},
    {"accept",          "-    -     -      -    -     -          ok      -         -        -           -             -"},
    {"establish",       "-    -     -      -    -     -          -       -         ok       ok          ok            -"},
    {"reject",          "-    -     -      -    -     -          ok      -         ok       -           -             -"},
    {"disconnect",      "-    -     -      -    -     -          ok      -         ok       ok          ok            ok"},
    {"notify",          "-    -     -      -    -     -          -       ok        -        is          -             -"},
    {"afonly",          "ok   ok    -      -    -     -          -       -         -        -           -             -"},
    {"reuseaddr on",    "ok   ok    -      ok   ok    ok         ok      ok        ok       ok          ok            ok"},
    {"reuseaddr off",   "ok   -     -      -    -     -          -       -         -        -           -             -"},
    {"qp attributes",   "-    -     -      ok   ok    ok         ok      ok        ok       ok          ok            ok"},
};
// Datagrams: one request and one answer, and no connection that could end.
constexpr Row kRoceDatagrams[] = {
    {"bind",            "ok   -     -      -    -     -          -       x         x        -           x             -"},
    {"resolve_addr",    "ok   ok    -      -    -     -          -       x         x        -           x             -"},
    {"resolve_route",   "-    -     -      ok   -     -          -       x         x        -           x             -"},
    {"listen",          "ok   ok    -      -    -     -          -       x         x        -           x             -"},
    {"connect",         "-    -     -      -    ok    -          -       x         x        -           x             -"},
    {"accept",          "-    -     -      -    -     -          ok      x         x        -           x             -"},
    {"establish",       "-    -     -      -    -     -          ok      x         x        -           x             -"},
    {"reject",          "-    -     -      -    -     -          ok      x         x        -           x             -"},
    {"disconnect",      "-    -     -      -    -     ok         ok      x         x        ok          x             ok"},
    {"notify",          "-    -     -      -    -     -          -       x         x        -           x             -"},
    {"afonly",          "ok   ok    -      -    -     -          -       x         x        -           x             -"},
    {"reuseaddr on",    "ok   ok    -      ok   ok    ok         ok      x         x        ok          x             ok"},
    {"reuseaddr off",   "ok   -     -      -    -     -          -       x         x        -           x             -"},
    {"tos",             "ok   ok    ok     ok   ok    ok         ok      x         x        ok          x             ok"},
    {"ack_timeout",     "-    -     -      -    -     -          -       x         x        -           x             -"},
    {"qp attributes",   "-    -     -      ok   ok    ok         ok      x         x        ok          x             ok"},
    {"migrate",         "ok   ok    ok     ok   ok    ok         ok      x         x        ok          x             ok"},
    // A loopback address has no device, so an id that is bound to another address may join as well.
    {"join multicast",  "-    -     -      ok   -     -          -       x         x        -           x             -"},
};
// clang-format on

class CmStates : public RdmaCmNodeTest {
 protected:
  explicit CmStates(Persona persona = Persona::kIwarp) : RdmaCmNodeTest(persona) {}

  /// A new id in this state, with its events read.
  uint32_t id_in(const std::string& state) {
    if (state == "idle") return channel_.create();
    if (state == "listening") return listening_id();
    if (state == "request" || state == "accepting") return requested(state == "accepting");
    const uint32_t id = channel_.create();
    if (state == "bound") {
      EXPECT_EQ(channel_.bind(id, 0), 0);
      return id;
    }
    EXPECT_EQ(channel_.resolve(id), 0);
    if (state != "address") {
      EXPECT_EQ(channel_.resolve_route(id), 0);
      if (state != "route") connect_until(id, state);
    }
    read_events();
    return id;
  }

  void connect_until(uint32_t id, const std::string& state) {
    EXPECT_EQ(channel_.connect(id), 0);
    if (state == "connecting") return;
    if (state == "closed") return owner()->connection_rejected({}, -ECONNREFUSED, {});
    ConnectParameters peer;
    peer.qkey = kCmQkey;
    owner()->connection_established({}, {}, peer);
    if (state == "answered") return;
    establish(id);
    if (state == "disconnecting") {
      EXPECT_EQ(channel_.disconnect(id), 0);
    }
  }

  uint32_t requested(bool accept) {
    listening_id();
    request();
    rdma_ucm_event_resp event{};
    EXPECT_EQ(channel_.event(event), 0);
    if (accept) {
      EXPECT_EQ(channel_.accept(event.id, 5), 0);
    }
    return event.id;
  }

  void read_events() {
    while (channel_.next_event() != kNone) {
    }
  }

  /// ACCEPT without parameters, as rdma_establish() sends it.
  int establish(uint32_t id) {
    rdma_ucm_accept payload{};
    payload.id = id;
    return channel_.command(RDMA_USER_CM_CMD_ACCEPT, payload);
  }
  template <typename T>
  int set_option(uint32_t id, uint32_t name, T value) {
    return channel_.command(RDMA_USER_CM_CMD_SET_OPTION,
                            rdma_ucm_set_option{reinterpret_cast<uint64_t>(&value), id,
                                                RDMA_OPTION_ID, name, sizeof value});
  }
  int qp_attributes(uint32_t id) {
    ib_uverbs_qp_attr out{};
    constexpr uint32_t kInit = 1;
    return channel_.command(RDMA_USER_CM_CMD_INIT_QP_ATTR,
                            rdma_ucm_init_qp_attr{address_of(out), id, kInit}, sizeof out);
  }
  int migrate(uint32_t id) {
    Channel::known = {{channel_.fd(), channel_.node()}};
    rdma_ucm_migrate_resp out{};
    return channel_.command(
        RDMA_USER_CM_CMD_MIGRATE_ID,
        rdma_ucm_migrate_id{address_of(out), id, static_cast<uint32_t>(channel_.fd())}, sizeof out);
  }
  int join(uint32_t id) {
    rdma_ucm_create_id_resp out{};
    rdma_ucm_join_ip_mcast payload{};
    payload.response = address_of(out);
    payload.addr = loopback_in6(0);
    payload.id = id;
    return channel_.command(RDMA_USER_CM_CMD_JOIN_IP_MCAST, payload, sizeof out);
  }

  int call(const std::string& name, uint32_t id) {
    constexpr uint32_t kCommunicationEstablished = 4;
    const std::map<std::string, std::function<int()>> calls = {
        {"bind", [&] { return channel_.bind(id, 0); }},
        {"resolve_addr", [&] { return channel_.resolve(id); }},
        {"resolve_route", [&] { return channel_.resolve_route(id); }},
        {"listen", [&] { return channel_.listen(id); }},
        {"connect", [&] { return channel_.connect(id); }},
        {"accept", [&] { return channel_.accept(id, 5); }},
        {"establish", [&] { return establish(id); }},
        {"reject", [&] { return channel_.reject(id); }},
        {"disconnect", [&] { return channel_.disconnect(id); }},
        {"notify",
         [&] {
           return channel_.command(RDMA_USER_CM_CMD_NOTIFY,
                                   rdma_ucm_notify{id, kCommunicationEstablished});
         }},
        {"afonly", [&] { return set_option(id, RDMA_OPTION_ID_AFONLY, 1); }},
        {"reuseaddr on", [&] { return set_option(id, RDMA_OPTION_ID_REUSEADDR, 1); }},
        {"reuseaddr off", [&] { return set_option(id, RDMA_OPTION_ID_REUSEADDR, 0); }},
        {"tos", [&] { return set_option(id, RDMA_OPTION_ID_TOS, uint8_t{0x20}); }},
        {"ack_timeout", [&] { return set_option(id, RDMA_OPTION_ID_ACK_TIMEOUT, uint8_t{14}); }},
        {"qp attributes", [&] { return qp_attributes(id); }},
        {"migrate", [&] { return migrate(id); }},
        {"write event", [&] { return channel_.write_event(id, kUser); }},
        {"join multicast", [&] { return join(id); }},
    };
    return calls.at(name)();
  }

  void check(const char* call_name, const char* row) {
    static const std::map<std::string, int> kResults = {{"ok", 0}, {"-", EINVAL}, {"is", EISCONN}};
    std::istringstream cells(row);
    for (const std::string& state : kStates) {
      std::string cell;
      ASSERT_TRUE(cells >> cell) << call_name;
      if (cell == "x") continue;
      const uint32_t id = id_in(state);
      EXPECT_EQ(call(call_name, id), kResults.at(cell)) << call_name << ", " << state;
      read_events();
      EXPECT_GE(channel_.destroy(id), 0) << call_name << ", " << state;
    }
  }
};

class CmStatesRoce : public CmStates {
 protected:
  CmStatesRoce() : CmStates(Persona::kRoce) {}
};

TEST_F(CmStates, EveryCallInEveryState) {
  for (const Row& row : kIwarp) check(row.call, row.results);
}

TEST_F(CmStatesRoce, EveryCallInEveryState) {
  for (const Row& row : kRoce) check(row.call, row.results);
}

TEST_F(CmStatesRoce, EveryCallInEveryStateOfDatagrams) {
  channel_.usual_port_space = RDMA_PS_UDP;
  for (const Row& row : kRoceDatagrams) check(row.call, row.results);
}

// Like the kernel: at most 1024, and 1024 if no number is given.
TEST_F(CmStates, Backlogs) {
  const struct {
    int asked, given;
  } cases[] = {{0, 1024}, {-1, 1024}, {1, 1}, {1024, 1024}, {1025, 1024}, {1 << 30, 1024}};
  for (const auto& [asked, given] : cases) {
    const uint32_t id = listening_id(static_cast<uint32_t>(asked));
    int unread = 0;
    for (bool taken = true; taken && unread <= given; unread += taken) request(&taken);
    EXPECT_EQ(unread, given) << asked;
    channel_.destroy(id);
  }
}

TEST_F(CmStates, OptionsOfWrongShape) {
  const auto set = [&](uint32_t id, uint32_t level, uint32_t name, const void* value,
                       uint32_t bytes) {
    return channel_.command(
        RDMA_USER_CM_CMD_SET_OPTION,
        rdma_ucm_set_option{reinterpret_cast<uint64_t>(value), id, level, name, bytes});
  };
  const uint32_t id = channel_.create();
  const uint64_t on = 1;
  const std::vector<uint8_t> large((4u << 20) + 1);
  const std::pair<uint32_t, uint32_t> sizes[] = {{RDMA_OPTION_ID_TOS, 1},
                                                 {RDMA_OPTION_ID_REUSEADDR, 4},
                                                 {RDMA_OPTION_ID_AFONLY, 4},
                                                 {RDMA_OPTION_ID_ACK_TIMEOUT, 1}};
  for (const auto& [name, size] : sizes) {
    EXPECT_EQ(set(id, RDMA_OPTION_ID, name, &on, size), 0) << name;
    for (const uint32_t wrong : {0, 2, 8}) {
      EXPECT_EQ(set(id, RDMA_OPTION_ID, name, &on, wrong), EINVAL) << name;
    }
    EXPECT_EQ(set(id, 2, name, &on, size), ENOSYS) << name;
  }
  EXPECT_EQ(set(id, RDMA_OPTION_ID, 4, &on, 4), ENOSYS);
  EXPECT_EQ(set(id, RDMA_OPTION_ID, 4, large.data(), 4u << 20), ENOSYS);
  EXPECT_EQ(set(id, RDMA_OPTION_ID, 4, large.data(), (4u << 20) + 1), EINVAL);
  EXPECT_EQ(set(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, large.data(), 17), EINVAL);
  EXPECT_EQ(set(id, RDMA_OPTION_IB, 2, &on, 4), ENOSYS);
  EXPECT_EQ(set(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &on, 8), EINVAL);
  EXPECT_EQ(set(60000, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &on, 1), ENOENT);
  // Datagrams are not acknowledged.
  const uint32_t datagram = channel_.create(1, RDMA_PS_UDP);
  EXPECT_EQ(set(datagram, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &on, 1), EINVAL);
}

// rdma_destroy_id() waits for as many acknowledgements as events were reported.
TEST_F(CmStates, DestroyCountsWhatWasRead) {
  for (const std::string state : {"idle", "bound", "address", "route", "connecting"}) {
    const uint32_t id = id_in(state);
    const std::map<std::string, int> read = {
        {"idle", 0}, {"bound", 0}, {"address", 1}, {"route", 2}, {"connecting", 2}};
    EXPECT_EQ(channel_.destroy(id), read.at(state)) << state;
    EXPECT_EQ(channel_.destroy(id), -ENOENT) << state;
  }
}

}  // namespace
}  // namespace uwarp
