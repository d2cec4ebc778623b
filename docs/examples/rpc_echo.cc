// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// librpcrdma: a server and a client in one process. The server answers each call with the call
// itself. A real program encodes an RPC message (RFC 5531) here; to the library only its first four
// bytes mean something, the XID.
//
//   rpc_echo HOST      an address of this machine
#include <arpa/inet.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <rpcrdma/rpcrdma.hpp>
#include <string>

int main(int argc, char** argv) try {
  const std::string host = argc > 1 ? argv[1] : "127.0.0.1";
  rpcrdma::Server server(host, "", [](rpcrdma::Request request) {
    rpcrdma_piece answer = rpcrdma::piece(request.message());
    request.reply({&answer, 1});
  });
  rpcrdma::Client client(host, std::to_string(server.port()));

  std::string message = "XID.hello over RDMA";
  uint32_t xid = htonl(client.next_xid());
  std::memcpy(message.data(), &xid, sizeof xid);
  std::string reply(64, '\0');
  rpcrdma_piece piece = rpcrdma::piece(std::as_bytes(std::span(message)));
  rpcrdma_call call{};
  call.pieces = &piece;
  call.piece_count = 1;
  call.reply = reply.data();
  call.reply_size = reply.size();
  client.call(call);
  reply.resize(call.reply_length);
  std::printf("%s\n", reply.substr(sizeof xid).c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "rpc_echo: %s\n", error.what());
  return 1;
}
