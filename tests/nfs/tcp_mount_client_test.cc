// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Lists of exports by TCP, from a mountd that is made up.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "nfs/mount_client.h"
#include "nfs/xdr.h"

namespace uwarp::nfs {
namespace {

/// Answers the first call of one connection by one export with so many groups.
class Mountd {
 public:
  explicit Mountd(size_t groups) : groups_(groups), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_, generic, length), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(getsockname(listener_, generic, &length), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread(&Mountd::serve, this);
  }
  ~Mountd() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }

  uint16_t port() const { return port_; }

 private:
  void serve() const {
    const int peer = accept(listener_, nullptr, nullptr);
    uint32_t head[2];  // the mark of the record, and the XID
    if (recv(peer, head, sizeof head, MSG_WAITALL) == sizeof head) {
      send_reply(peer, ntohl(head[1]));
    }
    char rest[256];
    while (recv(peer, rest, sizeof rest, 0) > 0) {
    }
    close(peer);
  }

  void send_reply(int peer, uint32_t xid) const {
    XdrWriter out;
    // A reply, accepted, no verifier, success.
    for (uint32_t word : {xid, 1u, 0u, 0u, 0u, 0u}) {
      out.u32(word);
    }
    out.boolean(true);
    out.string("/exported");
    for (size_t i = 0; i < groups_; ++i) {
      out.boolean(true);
      out.string("host");
    }
    out.boolean(false);
    out.boolean(false);
    const uint32_t mark = htonl(0x80000000u | static_cast<uint32_t>(out.bytes().size()));
    send(peer, &mark, sizeof mark, MSG_NOSIGNAL);
    for (size_t sent = 0; sent < out.bytes().size();) {
      const ssize_t more =
          send(peer, out.bytes().data() + sent, out.bytes().size() - sent, MSG_NOSIGNAL);
      if (more <= 0) {
        return;
      }
      sent += static_cast<size_t>(more);
    }
  }

  const size_t groups_;
  const int listener_;
  uint16_t port_ = 0;
  std::thread thread_;
};

std::vector<ExportEntry> exports_of(const Mountd& mountd) {
  return make_tcp_mount_client("127.0.0.1", mountd.port())->exports();
}

TEST(TcpMountClient, ListsExportsAndTheirGroups) {
  const Mountd mountd(3);
  const auto exports = exports_of(mountd);
  ASSERT_EQ(exports.size(), 1u);
  EXPECT_EQ(exports.front().path, "/exported");
  EXPECT_EQ(exports.front().groups, std::vector<std::string>(3, "host"));
}

TEST(TcpMountClient, GroupsWithoutEnd) {
  const Mountd mountd(70000);
  EXPECT_THROW(exports_of(mountd), RpcError);
}

}  // namespace
}  // namespace uwarp::nfs
