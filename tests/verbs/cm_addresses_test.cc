// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Addresses and ports of rdma_cm ids, as both ends of a connection see them.
#include <rdma/rsocket.h>

#include <future>
#include <set>

#include "verbs/cm_ends.h"

namespace {

class CmAddresses : public VerbsTest {
 protected:
  /// Each end's own address must be the other's peer address, port included.
  void expect_agreement(CmEnds& ends) {
    const sockaddr* const client = rdma_get_local_addr(ends.client());
    const sockaddr* const server = rdma_get_local_addr(ends.server());
    EXPECT_NE(port_of(client), 0);
    EXPECT_EQ(port_of(client), port_of(rdma_get_peer_addr(ends.server())));
    EXPECT_EQ(text_of(client), text_of(rdma_get_peer_addr(ends.server())));
    EXPECT_EQ(port_of(server), ends.port());
    EXPECT_EQ(port_of(server), port_of(rdma_get_peer_addr(ends.client())));
    EXPECT_EQ(text_of(server), text_of(rdma_get_peer_addr(ends.client())));
  }
};

TEST_F(CmAddresses, SourcePortStaysWhatItWasAfterResolving) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    CmEnds ends(host);
    ASSERT_TRUE(ends.resolve(cm_address(host, ends.port())));
    const uint16_t port = ntohs(rdma_get_src_port(ends.client()));
    EXPECT_NE(port, 0);
    ASSERT_TRUE(ends.connect());
    EXPECT_EQ(ntohs(rdma_get_src_port(ends.client())), port);
    expect_agreement(ends);
  }
}

TEST_F(CmAddresses, SourceAddressWithoutAPortGetsOne) {
  CmEnds ends;
  sockaddr_storage from = cm_address("127.0.0.5");
  ASSERT_TRUE(ends.resolve(cm_address("127.0.0.1", ends.port()), &from));
  ASSERT_TRUE(ends.connect());
  EXPECT_EQ(text_of(rdma_get_local_addr(ends.client())), "127.0.0.5");
  expect_agreement(ends);
}

// No other id gets such a port while its id lives, whether or not that id is connected.
TEST_F(CmAddresses, SourcePortsDiffer) {
  CmEnds ends;
  const CmChannel channel = make_cm_channel();
  std::vector<CmId> ids;
  std::set<uint16_t> ports;
  for (int i = 0; i < 100; ++i) {
    ids.push_back(make_cm_id(channel.get()));
    sockaddr_storage to = cm_address("127.0.0.1", ends.port());
    ASSERT_EQ(rdma_resolve_addr(ids.back().get(), nullptr, generic(to), 2000), 0);
    ASSERT_NE(expect_event(channel.get(), RDMA_CM_EVENT_ADDR_RESOLVED), nullptr);
    ports.insert(rdma_get_src_port(ids.back().get()));
  }
  EXPECT_EQ(ports.count(0), 0u);
  EXPECT_EQ(ports.size(), ids.size());
}

TEST_F(CmAddresses, RsocketsKnowTheirNames) {
  const int listener = rsocket(AF_INET, SOCK_STREAM, 0);
  ASSERT_GE(listener, 0);
  sockaddr_storage address = cm_address("127.0.0.1");
  socklen_t length = sizeof(sockaddr_in);
  ASSERT_EQ(rbind(listener, generic(address), length), 0);
  ASSERT_EQ(rlisten(listener, 1), 0);
  ASSERT_EQ(rgetsockname(listener, generic(address), &length), 0);
  auto accepted =
      std::async(std::launch::async, [&] { return raccept(listener, nullptr, nullptr); });
  const int client = rsocket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(rconnect(client, generic(address), length), 0);
  const int server = accepted.get();
  ASSERT_GE(server, 0);
  sockaddr_storage own = {}, seen = {};
  length = sizeof own;
  ASSERT_EQ(rgetsockname(client, generic(own), &length), 0);
  length = sizeof seen;
  ASSERT_EQ(rgetpeername(server, generic(seen), &length), 0);
  EXPECT_NE(port_of(generic(own)), 0);
  EXPECT_EQ(port_of(generic(own)), port_of(generic(seen)));
  EXPECT_EQ(text_of(generic(own)), text_of(generic(seen)));
  for (const int fd : {client, server, listener}) EXPECT_EQ(rclose(fd), 0);
}

// As in the kernel: the wildcard means the address that the id is bound to, or loopback.
TEST_F(CmAddresses, TheWildcardLeadsToThisHost) {
  const struct {
    const char* listener;
    const char* source;
    const char* wildcard;
    const char* reached;
  } cases[] = {{"127.0.0.1", nullptr, "0.0.0.0", "127.0.0.1"},
               {"127.0.0.7", "127.0.0.7", "0.0.0.0", "127.0.0.7"},
               {"::1", nullptr, "::", "::1"},
               {"::1", "::1", "::", "::1"},
               {"::", nullptr, "0.0.0.0", "127.0.0.1"}};
  for (const auto& expected : cases) {
    SCOPED_TRACE(std::string(expected.wildcard) + " at " + expected.listener);
    CmEnds ends(expected.listener);
    sockaddr_storage from = {};
    if (expected.source != nullptr) from = cm_address(expected.source);
    ASSERT_TRUE(ends.resolve(cm_address(expected.wildcard, ends.port()),
                             expected.source != nullptr ? &from : nullptr));
    ASSERT_TRUE(ends.connect());
    EXPECT_EQ(text_of(rdma_get_peer_addr(ends.client())), expected.reached);
    EXPECT_EQ(port_of(rdma_get_peer_addr(ends.client())), ends.port());
    ASSERT_EQ(ends.post_receive(ends.server(), 1), 0);
    ASSERT_EQ(ends.post_send(ends.client(), 2), 0);
    EXPECT_COMPLETION(ends.server()->recv_cq, 1, IBV_WC_SUCCESS);
    EXPECT_COMPLETION(ends.client()->send_cq, 2, IBV_WC_SUCCESS);
  }
}

}  // namespace
