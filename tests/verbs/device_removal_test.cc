// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The network device of a program is deleted: every id of the device gets the event, its
// connections end, everything can be destroyed, and a device of the same name is a new one. Runs in
// its own network namespace.
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "verbs/own_namespace.h"
#include "verbs/verbs_fixture.h"

namespace {

TEST(DeviceRemoval, InANamespace) { run_in_namespace("DeviceRemovalInside.*"); }

bool listed(const std::string& name) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  bool found = false;
  for (int i = 0; i < count; ++i) found = found || name == ibv_get_device_name(list[i]);
  ibv_free_device_list(list);
  return found;
}

/// The carrier of a new veth comes up a moment after it; that is an event of the device.
bool active(const std::string& name) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ibv_port_attr port = {};
  for (int i = 0; i < count; ++i) {
    if (name != ibv_get_device_name(list[i])) continue;
    ibv_context* context = ibv_open_device(list[i]);
    if (context == nullptr) continue;
    EXPECT_EQ(ibv_query_port(context, 1, &port), 0);
    ibv_close_device(context);
  }
  ibv_free_device_list(list);
  return port.state == IBV_PORT_ACTIVE;
}

class DeviceRemovalInside : public VerbsTest {
 protected:
  void SetUp() override {
    if (!inside_namespace()) GTEST_SKIP() << "only in the namespace";
    (void)shell("ip link show veth0 >/dev/null 2>&1 || { " + std::string(kMakeVeth) + "; }");
    ASSERT_TRUE(wait_until([] { return active("uwarp_veth0"); }));
    VerbsTest::SetUp();
    channel_ = rdma_create_event_channel();
    ASSERT_NE(channel_, nullptr);
  }
  void TearDown() override {
    if (channel_ != nullptr) rdma_destroy_event_channel(channel_);
  }
  static void delete_device() { ASSERT_EQ(shell("ip link del veth0"), 0); }

  rdma_cm_id* make_id() {
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_create_id(channel_, &id, nullptr, RDMA_PS_TCP), 0);
    return id;
  }
  static sockaddr_in address(const char* ip, uint16_t port = 0) {
    sockaddr_in made = {};
    made.sin_family = AF_INET;
    made.sin_port = port;
    inet_pton(AF_INET, ip, &made.sin_addr);
    return made;
  }
  rdma_cm_id* listen_on(const char* ip) {
    rdma_cm_id* id = make_id();
    sockaddr_in here = address(ip);
    EXPECT_EQ(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&here)), 0) << std::strerror(errno);
    EXPECT_EQ(rdma_listen(id, 4), 0);
    return id;
  }
  struct Told {
    rdma_cm_event_type type;
    rdma_cm_id* id;
  };
  Told next_event() {
    rdma_cm_event* event = nullptr;
    if (!readable(channel_->fd) || rdma_get_cm_event(channel_, &event) != 0) {
      ADD_FAILURE() << "no event";
      return {RDMA_CM_EVENT_ADDR_ERROR, nullptr};
    }
    const Told told{event->event, event->id};
    rdma_ack_cm_event(event);
    return told;
  }
  rdma_cm_id* expect(rdma_cm_event_type type) {
    const Told told = next_event();
    EXPECT_STREQ(rdma_event_str(told.type), rdma_event_str(type));
    return told.id;
  }
  rdma_cm_id* resolve(uint16_t port) {
    rdma_cm_id* id = make_id();
    sockaddr_in there = address("10.77.0.1", port);
    EXPECT_EQ(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&there), 2000), 0);
    EXPECT_EQ(expect(RDMA_CM_EVENT_ADDR_RESOLVED), id);
    return id;
  }
  static void make_queue_pair(rdma_cm_id* id) {
    ibv_qp_init_attr init = init_attributes(nullptr, 16);
    ASSERT_EQ(rdma_create_qp(id, nullptr, &init), 0) << std::strerror(errno);
  }
  void connect_to(rdma_cm_id* listener, rdma_cm_id*& client, rdma_cm_id*& server) {
    client = resolve(rdma_get_src_port(listener));
    ASSERT_EQ(rdma_resolve_route(client, 2000), 0);
    ASSERT_EQ(expect(RDMA_CM_EVENT_ROUTE_RESOLVED), client);
    make_queue_pair(client);
    rdma_conn_param parameters = {};
    ASSERT_EQ(rdma_connect(client, &parameters), 0);
    server = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    ASSERT_NE(server, nullptr);
    make_queue_pair(server);
    ASSERT_EQ(rdma_accept(server, &parameters), 0);
    expect(RDMA_CM_EVENT_ESTABLISHED);
    expect(RDMA_CM_EVENT_ESTABLISHED);
  }

  rdma_event_channel* channel_ = nullptr;
};

TEST_F(DeviceRemovalInside, EachIdOfTheDeviceGetsAnEvent) {
  rdma_cm_id* const listener = listen_on("10.77.0.1");
  rdma_cm_id* const wildcard = listen_on("0.0.0.0");
  rdma_cm_id *client = nullptr, *server = nullptr;
  ASSERT_NO_FATAL_FAILURE(connect_to(listener, client, server));
  rdma_cm_id* const resolved = resolve(rdma_get_src_port(listener));
  ibv_recv_wr receive = {}, *bad = nullptr;
  receive.wr_id = 1;
  ASSERT_EQ(ibv_post_recv(client->qp, &receive, &bad), 0);

  delete_device();
  std::set<rdma_cm_id*> removed;
  for (int i = 0; i < 4; ++i) removed.insert(expect(RDMA_CM_EVENT_DEVICE_REMOVAL));
  EXPECT_EQ(removed, (std::set<rdma_cm_id*>{listener, client, server, resolved}));
  EXPECT_COMPLETION(client->recv_cq, 1, IBV_WC_WR_FLUSH_ERR);
  ibv_async_event event = {};
  ASSERT_TRUE(readable(client->verbs->async_fd));
  ASSERT_EQ(ibv_get_async_event(client->verbs, &event), 0);
  EXPECT_STREQ(ibv_event_type_str(event.event_type), ibv_event_type_str(IBV_EVENT_DEVICE_FATAL));
  ibv_ack_async_event(&event);

  EXPECT_EQ(rdma_disconnect(client), -1);
  EXPECT_EQ(rdma_resolve_route(resolved, 100), -1);
  for (rdma_cm_id* id : {client, server}) rdma_destroy_qp(id);
  for (rdma_cm_id* id : {client, server, listener, resolved}) EXPECT_EQ(rdma_destroy_id(id), 0);
  EXPECT_FALSE(readable(channel_->fd, std::chrono::milliseconds(100))) << "one event too many";
  EXPECT_EQ(rdma_destroy_id(wildcard), 0);
}

TEST_F(DeviceRemovalInside, VerbsOfARemovedDevice) {
  auto end = std::make_unique<End>(context());
  const End peer(context());
  end->connect(peer.address());
  Srq srq;
  {
    ibv_srq_init_attr init = {nullptr, {16, 1, 0}};
    srq.reset(ibv_create_srq(end->pd.get(), &init));
  }
  ASSERT_EQ(end->post_receive(1), 0);
  delete_device();
  const auto event = next_async_event(context());
  ASSERT_TRUE(event);
  EXPECT_EQ(event->event_type, IBV_EVENT_DEVICE_FATAL);
  ibv_ack_async_event(const_cast<ibv_async_event*>(&*event));
  EXPECT_COMPLETION(end->cq.get(), 1, IBV_WC_WR_FLUSH_ERR);

  const auto refuses = [](const char* call, bool failed) {
    EXPECT_TRUE(failed) << call;
    EXPECT_EQ(errno, EIO) << call;
    errno = 0;
  };
  ibv_port_attr port = {};
  ibv_device_attr attributes = {};
  ibv_qp_init_attr init = init_attributes(end->cq.get());
  ibv_srq_init_attr srq_init = {nullptr, {16, 1, 0}};
  refuses("query_port", ibv_query_port(context(), 1, &port) != 0);
  refuses("query_device", ibv_query_device(context(), &attributes) != 0);
  refuses("alloc_pd", ibv_alloc_pd(context()) == nullptr);
  refuses("create_cq", ibv_create_cq(context(), 16, nullptr, nullptr, 0) == nullptr);
  refuses("create_srq", ibv_create_srq(end->pd.get(), &srq_init) == nullptr);
  refuses("create_qp", ibv_create_qp(end->pd.get(), &init) == nullptr);
  refuses("reg_mr", ibv_reg_mr(end->pd.get(), end->memory.data(), 64, 0) == nullptr);
  refuses("alloc_mw", ibv_alloc_mw(end->pd.get(), IBV_MW_TYPE_1) == nullptr);
  refuses("modify_qp", to_state(end->qp.get(), IBV_QPS_RESET) != 0);
  refuses("resize_cq", ibv_resize_cq(end->cq.get(), 64) != 0);
  // New requests are flushed, as on every queue pair in ERR.
  ASSERT_EQ(end->post_receive(2), 0);
  EXPECT_COMPLETION(end->cq.get(), 2, IBV_WC_WR_FLUSH_ERR);
  ASSERT_EQ(end->post_send(3), 0);
  EXPECT_COMPLETION(end->cq.get(), 3, IBV_WC_WR_FLUSH_ERR);
  EXPECT_FALSE(listed("uwarp_veth0"));
  // Everything can be destroyed: the destructors check this.
}

TEST_F(DeviceRemovalInside, ADeviceThatComesBackIsANewOne) {
  rdma_cm_id* const old_listener = listen_on("10.77.0.1");
  delete_device();
  ASSERT_EQ(shell(kMakeVeth), 0);
  EXPECT_EQ(expect(RDMA_CM_EVENT_DEVICE_REMOVAL), old_listener);
  ASSERT_EQ(rdma_destroy_id(old_listener), 0);
  const auto event = next_async_event(context());
  ASSERT_TRUE(event);
  EXPECT_EQ(event->event_type, IBV_EVENT_DEVICE_FATAL);
  ibv_ack_async_event(const_cast<ibv_async_event*>(&*event));

  const Context again = open_device();
  ASSERT_NE(again, nullptr);
  ibv_port_attr port = {};
  EXPECT_EQ(ibv_query_port(again.get(), 1, &port), 0);
  EXPECT_EQ(ibv_query_port(context(), 1, &port), EIO);
  rdma_cm_id* const listener = listen_on("10.77.0.1");
  rdma_cm_id *client = nullptr, *server = nullptr;
  ASSERT_NO_FATAL_FAILURE(connect_to(listener, client, server));
  ASSERT_EQ(rdma_disconnect(client), 0);
  for (rdma_cm_id* id : {client, server}) rdma_destroy_qp(id);
  for (rdma_cm_id* id : {client, server, listener}) EXPECT_EQ(rdma_destroy_id(id), 0);
}

// The link and its addresses go and come back, but the device stays.
TEST_F(DeviceRemovalInside, ALinkThatIsDownIsNoRemoval) {
  rdma_cm_id* const listener = listen_on("10.77.0.1");
  ASSERT_EQ(shell("ip addr add 10.77.0.2/24 dev veth0 && ip link set veth0 down && "
                  "ip addr flush dev veth0 && ip addr add 10.77.0.1/24 dev veth0 && "
                  "ip link set veth0 up"),
            0);
  EXPECT_FALSE(readable(channel_->fd, std::chrono::milliseconds(200)));
  rdma_cm_id *client = nullptr, *server = nullptr;
  ASSERT_NO_FATAL_FAILURE(connect_to(listener, client, server));
  ASSERT_EQ(rdma_disconnect(client), 0);
  for (rdma_cm_id* id : {client, server}) rdma_destroy_qp(id);
  for (rdma_cm_id* id : {client, server, listener}) EXPECT_EQ(rdma_destroy_id(id), 0);
}

}  // namespace
