// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The end of the range of ports that the system gives out: after many connects each port is that of
// a connection which has ended, or all of them are bound.
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "verbs/cm_ends.h"
#include "verbs/own_namespace.h"

namespace {

TEST(FewPorts, InANamespace) { run_in_namespace("FewPortsInside.*"); }

/// In a namespace whose programs are given only a few ports.
class FewPortsInside : public VerbsTest {
 protected:
  static constexpr int kFirst = 40'000, kLast = 40'015;

  void SetUp() override {
    if (!inside_namespace()) GTEST_SKIP() << "only in the namespace";
    std::ofstream("/proc/sys/net/ipv4/ip_local_port_range") << kFirst << ' ' << kLast << std::flush;
    VerbsTest::SetUp();
  }
  /// Each port is that of a connection which has ended, as after many connects.
  static void use_up_ports();
  static CmId bound_id(rdma_event_channel* channel, int& error);
};

/// A TCP socket at this port of the host, as those of servers are.
int tcp_socket(sockaddr_storage at) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
  EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
  EXPECT_EQ(bind(fd, generic(at), sizeof(sockaddr_in)), 0) << std::strerror(errno);
  return fd;
}

// The side that closes first keeps its port for a minute.
void FewPortsInside::use_up_ports() {
  sockaddr_storage server = cm_address("127.0.0.1", 9);
  const int listener = tcp_socket(server);
  ASSERT_EQ(listen(listener, 1), 0);
  for (int port = kFirst; port <= kLast; ++port) {
    const int client = tcp_socket(cm_address("127.0.0.1", static_cast<uint16_t>(port)));
    ASSERT_EQ(connect(client, generic(server), sizeof(sockaddr_in)), 0) << std::strerror(errno);
    const int accepted = accept(listener, nullptr, nullptr);
    close(client);
    char byte = 0;
    EXPECT_EQ(read(accepted, &byte, 1), 0);
    close(accepted);
  }
  close(listener);
}

CmId FewPortsInside::bound_id(rdma_event_channel* channel, int& error) {
  CmId id = make_cm_id(channel);
  sockaddr_storage any = cm_address("127.0.0.1");
  error = rdma_bind_addr(id.get(), generic(any)) == 0 ? 0 : errno;
  return id;
}

// Listeners, and queue pairs that are connected without rdma_cm.
TEST_F(FewPortsInside, ThatConnectionsHaveLeft) {
  use_up_ports();
  const CmChannel channel = make_cm_channel();
  for (int i = 0; i < 4; ++i) {
    int error = 0;
    const CmId id = bound_id(channel.get(), error);
    EXPECT_EQ(error, 0) << std::strerror(error);
    EXPECT_EQ(rdma_listen(id.get(), 1), 0) << std::strerror(errno);
  }
  Pair pair(context());
  ASSERT_EQ(pair.b.post_receive(1), 0);
  ASSERT_EQ(pair.a.post_send(2), 0);
  EXPECT_COMPLETION(pair.b.cq.get(), 1, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(pair.a.cq.get(), 2, IBV_WC_SUCCESS);
}

// As the rdma_cm of a kernel says it.
TEST_F(FewPortsInside, AllOfWhichAreBound) {
  const CmChannel channel = make_cm_channel();
  std::vector<CmId> ids;
  int error = 0;
  while (error == 0 && ids.size() <= size_t{kLast - kFirst + 1})
    ids.push_back(bound_id(channel.get(), error));
  EXPECT_EQ(error, EADDRNOTAVAIL) << std::strerror(error);
  ids.pop_back();
  ids.pop_back();
  ids.push_back(bound_id(channel.get(), error));
  EXPECT_EQ(error, 0) << std::strerror(error);
}

}  // namespace
