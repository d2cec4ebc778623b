// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/rdma_server.h"

#include <netdb.h>

#include <array>
#include <new>

#include "nfs/nfs3_service.h"

namespace uwarp::nfs {

namespace {

/// The largest WRITE and what goes with it.
constexpr uint32_t kCallBytesMax = Nfs3Service::kTransferBytesMax + (64 << 10);

rpcrdma::ServerOptions server_options(const RdmaServerOptions& options) {
  rpcrdma::ServerOptions made;
  if (options.inline_threshold) {
    made.inline_send = made.inline_receive = *options.inline_threshold;
  }
  made.announce = options.announce;
  made.call_max = kCallBytesMax;
  return made;
}

/// The address alone: a client that reconnects may come from another port.
std::string client_of(const rpcrdma::Request& request) {
  sockaddr_storage peer{};
  rpcrdma_request_peer(request.get(), &peer);
  char host[NI_MAXHOST] = {};
  getnameinfo(reinterpret_cast<const sockaddr*>(&peer), sizeof peer, host, sizeof host, nullptr, 0,
              NI_NUMERICHOST);
  return host;
}

ReplyRoom room_of(const rpcrdma::Request& request) {
  ReplyRoom room{rpcrdma_request_reply_max(request.get()), std::nullopt};
  if (rpcrdma_request_result_count(request.get()) > 0) {
    room.chunk = rpcrdma_request_result_max(request.get(), 0);
  }
  return room;
}

void forget(void* reply) { delete static_cast<ServiceReply*>(reply); }

}  // namespace

RdmaServer::RdmaServer(RpcDispatcher& dispatcher, const RdmaServerOptions& options)
    : dispatcher_(dispatcher) {
  try {
    server_ = std::make_unique<rpcrdma::Server>(
        options.host, options.port, [this](rpcrdma::Request request) { serve(std::move(request)); },
        server_options(options));
  } catch (const std::system_error& error) {
    throw RpcError("cannot listen on " + options.host + " port " + options.port + ": " +
                   error.code().message());
  }
}

void RdmaServer::serve(rpcrdma::Request request) try {
  auto handled = dispatcher_.handle(client_of(request), request.message(), room_of(request));
  if (!handled) {
    return;  // dropped
  }
  auto reply = std::make_unique<ServiceReply>(std::move(*handled));
  std::array<rpcrdma_piece, 2> pieces = {rpcrdma::piece(reply->message.bytes()),
                                         rpcrdma::ddp_piece(reply->item)};
  // The reply, with the file's memory in it, goes when the item has been sent.
  request.reply(std::span(pieces).first(reply->item.empty() ? 1 : 2), &forget, reply.get());
  (void)reply.release();
} catch (const std::bad_alloc&) {
  // The request is dropped, and the client asks again.
}

}  // namespace uwarp::nfs
