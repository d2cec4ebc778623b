// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Addresses of rdma_cm ids as an application sees them: which binds succeed, in one process and in
// two, and which addresses the ends of a connection have.
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "verbs/verbs_fixture.h"

namespace {

using EventChannel = std::unique_ptr<rdma_event_channel, decltype(&rdma_destroy_event_channel)>;
using Id = std::unique_ptr<rdma_cm_id, Destroyer<rdma_destroy_id>>;

sockaddr_in loopback(uint16_t port = 0) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  out.sin_port = htons(port);
  return out;
}

class BindTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(channel_, nullptr) << "run this under uwarp-run"; }

  Id new_id(rdma_port_space port_space = RDMA_PS_TCP) {
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_create_id(channel_.get(), &id, nullptr, port_space), 0);
    return Id(id);
  }
  /// 0 or the errno.
  template <typename Address>
  static int bind(const Id& id, Address address) {
    return rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&address)) == 0 ? 0 : errno;
  }
  static int resolve(const Id& id, sockaddr_in source, sockaddr_in destination) {
    const int result = rdma_resolve_addr(id.get(), reinterpret_cast<sockaddr*>(&source),
                                         reinterpret_cast<sockaddr*>(&destination), 2000);
    return result == 0 ? 0 : errno;
  }
  static int set_option(const Id& id, int name, int value) {
    return rdma_set_option(id.get(), RDMA_OPTION_ID, name, &value, sizeof value) == 0 ? 0 : errno;
  }
  static uint16_t port_of(const Id& id) { return ntohs(rdma_get_src_port(id.get())); }

  /// The id of the next event, which must be this one.
  static rdma_cm_id* next(rdma_event_channel* channel, rdma_cm_event_type type) {
    rdma_cm_event* event = nullptr;
    if (!readable(channel->fd) || rdma_get_cm_event(channel, &event) != 0) {
      ADD_FAILURE() << rdma_event_str(type) << " does not come";
      return nullptr;
    }
    EXPECT_STREQ(rdma_event_str(event->event), rdma_event_str(type));
    rdma_cm_id* id = event->id;
    rdma_ack_cm_event(event);
    return id;
  }

  EventChannel channel_{rdma_create_event_channel(), rdma_destroy_event_channel};
};

TEST_F(BindTest, APortIsTakenFromBindOn) {
  const Id first = new_id();
  ASSERT_EQ(bind(first, loopback()), 0);
  ASSERT_NE(port_of(first), 0);
  Id second = new_id();
  EXPECT_EQ(bind(second, loopback(port_of(first))), EADDRINUSE);
  // The id may try another address.
  EXPECT_EQ(bind(second, loopback()), 0);
  // Datagrams have a port space of their own.
  EXPECT_EQ(bind(new_id(RDMA_PS_UDP), loopback(port_of(first))), 0);
}

TEST_F(BindTest, APortIsFreeAgainWithItsId) {
  Id id = new_id();
  ASSERT_EQ(bind(id, loopback()), 0);
  const uint16_t port = port_of(id);
  for (int i = 0; i < 10; ++i) {
    id = new_id();
    ASSERT_EQ(bind(id, loopback(port)), 0);
    ASSERT_EQ(rdma_listen(id.get(), 1), 0);
    EXPECT_EQ(bind(new_id(), loopback(port)), EADDRINUSE);
  }
}

TEST_F(BindTest, ASourceAddressIsBoundToo) {
  const Id first = new_id();
  ASSERT_EQ(bind(first, loopback()), 0);
  const Id second = new_id();
  EXPECT_EQ(resolve(second, loopback(port_of(first)), loopback(7471)), EADDRINUSE);
}

TEST_F(BindTest, AnotherProcessHoldsItsPortsToo) {
  int told[2], ends[2];
  ASSERT_EQ(pipe(told) | pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[1]);
    const EventChannel channel(rdma_create_event_channel(), rdma_destroy_event_channel);
    rdma_cm_id* id = nullptr;
    if (channel == nullptr || rdma_create_id(channel.get(), &id, nullptr, RDMA_PS_TCP) != 0)
      _exit(1);
    const Id bound(id);
    if (bind(bound, loopback()) != 0) _exit(2);
    const uint16_t port = port_of(bound);
    if (write(told[1], &port, sizeof port) != sizeof port) _exit(3);
    char none;
    _exit(read(ends[0], &none, 1) == 0 ? 0 : 4);
  }
  close(told[1]);
  uint16_t port = 0;
  ASSERT_EQ(read(told[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  const Id own = new_id();
  EXPECT_EQ(bind(own, loopback(port)), EADDRINUSE);
  EXPECT_EQ(resolve(own, loopback(port), loopback(7471)), EADDRINUSE);
  close(ends[1]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(bind(own, loopback(port)), 0);
  close(told[0]);
  close(ends[0]);
}

TEST_F(BindTest, ReuseAddrIsForBothAndNotForListeners) {
  const Id first = new_id();
  const Id second = new_id();
  const Id third = new_id();
  EXPECT_EQ(set_option(first, RDMA_OPTION_ID_REUSEADDR, 1), 0);
  EXPECT_EQ(set_option(second, RDMA_OPTION_ID_REUSEADDR, 1), 0);
  ASSERT_EQ(bind(first, loopback()), 0);
  ASSERT_EQ(bind(second, loopback(port_of(first))), 0);
  EXPECT_EQ(bind(third, loopback(port_of(first))), EADDRINUSE);
  EXPECT_EQ(rdma_listen(first.get(), 1), -1);
  EXPECT_EQ(errno, EADDRINUSE);
  // The id `third` is still bound.
  EXPECT_EQ(bind(third, loopback(port_of(first))), EADDRINUSE);
  // The option may be set after the bind, but not cleared.
  const Id late = new_id();
  ASSERT_EQ(bind(late, loopback()), 0);
  EXPECT_EQ(set_option(late, RDMA_OPTION_ID_REUSEADDR, 1), 0);
  EXPECT_EQ(set_option(late, RDMA_OPTION_ID_REUSEADDR, 0), EINVAL);
  EXPECT_EQ(set_option(third, RDMA_OPTION_ID_REUSEADDR, 1), 0);
  ASSERT_EQ(bind(third, loopback(port_of(late))), 0);
  // A listener can neither set nor clear it.
  const Id listener = new_id();
  ASSERT_EQ(rdma_listen(listener.get(), 1), 0);
  EXPECT_EQ(set_option(listener, RDMA_OPTION_ID_REUSEADDR, 1), EINVAL);
  EXPECT_EQ(set_option(listener, RDMA_OPTION_ID_REUSEADDR, 0), EINVAL);
}

TEST_F(BindTest, AfOnlyOfAWildcard) {
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  sockaddr_in any4{};
  any4.sin_family = AF_INET;
  const Id id = new_id();
  EXPECT_EQ(set_option(id, RDMA_OPTION_ID_AFONLY, 0), 0);
  ASSERT_EQ(bind(id, any), 0);
  any4.sin_port = htons(port_of(id));
  EXPECT_EQ(bind(new_id(), any4), EADDRINUSE);
  // Set after the bind, the option takes effect, and the port stays.
  EXPECT_EQ(set_option(id, RDMA_OPTION_ID_AFONLY, 1), 0);
  EXPECT_EQ(port_of(id), ntohs(any4.sin_port));
  ASSERT_EQ(rdma_listen(id.get(), 1), 0);
  EXPECT_EQ(bind(new_id(), any4), 0);
  EXPECT_EQ(set_option(id, RDMA_OPTION_ID_AFONLY, 0), EINVAL);
}

TEST_F(BindTest, AnIpv4ClientOfAnIpv6ListenerIsSeenAsSuch) {
  EventChannel heard(rdma_create_event_channel(), rdma_destroy_event_channel);
  rdma_cm_id* made = nullptr;
  ASSERT_EQ(rdma_create_id(heard.get(), &made, nullptr, RDMA_PS_TCP), 0);
  const Id listener(made);
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  ASSERT_EQ(bind(listener, any), 0);
  ASSERT_EQ(rdma_listen(listener.get(), 1), 0);

  const Id client = new_id();
  sockaddr_in there = loopback(port_of(listener));
  ASSERT_EQ(rdma_resolve_addr(client.get(), nullptr, reinterpret_cast<sockaddr*>(&there), 2000), 0);
  next(channel_.get(), RDMA_CM_EVENT_ADDR_RESOLVED);
  ASSERT_EQ(rdma_resolve_route(client.get(), 2000), 0);
  next(channel_.get(), RDMA_CM_EVENT_ROUTE_RESOLVED);
  ibv_qp_init_attr attributes{};
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap = {4, 4, 1, 1, 0};
  ASSERT_EQ(rdma_create_qp(client.get(), nullptr, &attributes), 0);
  rdma_conn_param parameters{};
  ASSERT_EQ(rdma_connect(client.get(), &parameters), 0);
  const Id request(next(heard.get(), RDMA_CM_EVENT_CONNECT_REQUEST));
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(rdma_get_peer_addr(request.get())->sa_family, AF_INET);
  EXPECT_EQ(rdma_get_local_addr(request.get())->sa_family, AF_INET);
  EXPECT_EQ(rdma_reject(request.get(), nullptr, 0), 0);
  next(channel_.get(), RDMA_CM_EVENT_REJECTED);
  rdma_destroy_qp(client.get());
}

}  // namespace
