// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// UDP sockets. Any failure ends the program.
#pragma once

#include <netinet/in.h>

namespace uwarp::bench {

/// A nonblocking socket that is bound there, with as large a receive buffer as it gets without a
/// privilege.
int make_udp_socket(const sockaddr_in& own);
/// On any port, reached by 127.0.0.1.
sockaddr_in any_port();
sockaddr_in own_address(int fd);
void connect_udp(int fd, const sockaddr_in& peer);

}  // namespace uwarp::bench
