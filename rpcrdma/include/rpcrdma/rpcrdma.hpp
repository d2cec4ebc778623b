// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The C++ face of librpcrdma: owners for the objects of rpcrdma.h, with std::system_error where the
// C functions return an error. Everything is inline; the ABI is that of C.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "rpcrdma/rpcrdma.h"

namespace rpcrdma {

/// Throws what a function of rpcrdma.h returned, if that is an error.
inline void check(int result, const char* what) {
  if (result < 0) throw std::system_error(-result, std::generic_category(), what);
}

/// A plain piece of a message.
inline rpcrdma_piece piece(std::span<const std::byte> bytes) {
  return {bytes.data(), bytes.size(), 0, nullptr};
}

/// A DDP-eligible piece: an opaque's content, without length word and padding.
inline rpcrdma_piece ddp_piece(std::span<const std::byte> bytes, rpcrdma_memory* memory = nullptr) {
  return {bytes.data(), bytes.size(), RPCRDMA_PIECE_DDP, memory};
}

/// Where a DDP-eligible result is to go.
inline rpcrdma_result result(std::span<std::byte> room, rpcrdma_memory* memory = nullptr) {
  return {room.data(), room.size(), 0, memory, 0};
}

struct ClientOptions : rpcrdma_client_options {
  ClientOptions() { rpcrdma_client_options_init(this); }
};

struct ServerOptions : rpcrdma_server_options {
  ServerOptions() { rpcrdma_server_options_init(this); }
};

struct ReleaseMemory {
  void operator()(rpcrdma_memory* memory) const { rpcrdma_memory_release(memory); }
};
/// Registered memory; goes before the client does.
using Memory = std::unique_ptr<rpcrdma_memory, ReleaseMemory>;

class Client {
 public:
  Client(const std::string& host, const std::string& service, const ClientOptions& options = {}) {
    rpcrdma_client* made = nullptr;
    check(rpcrdma_client_connect(&made, host.c_str(), service.c_str(), &options), host.c_str());
    client_.reset(made);
  }

  rpcrdma_client* get() const { return client_.get(); }
  uint32_t next_xid() { return rpcrdma_client_xid(get()); }

  /// Sends a call and waits for its reply; throws when there is none.
  void call(rpcrdma_call& call) { check(rpcrdma_client_call(get(), &call), "RPC"); }
  void start(rpcrdma_call& call) { check(rpcrdma_client_start(get(), &call), "RPC"); }
  /// The status of the call.
  int wait(rpcrdma_call& call) { return rpcrdma_client_wait(get(), &call); }

  Memory register_memory(std::span<std::byte> bytes) {
    rpcrdma_memory* made = nullptr;
    check(rpcrdma_client_register(get(), bytes.data(), bytes.size(), &made), "registration");
    return Memory(made);
  }

  rpcrdma_settings settings() const {
    rpcrdma_settings settings;
    rpcrdma_client_settings(get(), &settings);
    return settings;
  }
  rpcrdma_statistics statistics() const {
    rpcrdma_statistics statistics;
    rpcrdma_client_statistics(get(), &statistics);
    return statistics;
  }

 private:
  struct Close {
    void operator()(rpcrdma_client* client) const { rpcrdma_client_close(client); }
  };
  std::unique_ptr<rpcrdma_client, Close> client_;
};

/// A request on its way through a handler; dropped unless it is replied to.
class Request {
 public:
  explicit Request(rpcrdma_request* request) : request_(request) {}

  rpcrdma_request* get() const { return request_.get(); }

  std::span<const std::byte> message() const {
    size_t length = 0;
    const void* at = rpcrdma_request_message(get(), &length);
    return {static_cast<const std::byte*>(at), length};
  }

  /// DDP pieces must be of rpcrdma_request_buffer() unless `done` is given. A negative errno value
  /// says that the reply has not gone.
  int reply(std::span<const rpcrdma_piece> pieces, void (*done)(void*) = nullptr,
            void* context = nullptr) {
    return rpcrdma_request_reply(request_.release(), pieces.data(),
                                 static_cast<unsigned>(pieces.size()), done, context);
  }

 private:
  struct Drop {
    void operator()(rpcrdma_request* request) const { rpcrdma_request_drop(request); }
  };
  std::unique_ptr<rpcrdma_request, Drop> request_;
};

class Server {
 public:
  using Handler = std::function<void(Request)>;

  /// host empty: all addresses. service empty: a free port.
  Server(const std::string& host, const std::string& service, Handler handler,
         const ServerOptions& options = {})
      : handler_(std::make_unique<Handler>(std::move(handler))) {
    rpcrdma_server* made = nullptr;
    check(rpcrdma_server_listen(&made, host.empty() ? nullptr : host.c_str(),
                                service.empty() ? nullptr : service.c_str(), &options, &handle,
                                handler_.get()),
          host.c_str());
    server_.reset(made);
  }

  rpcrdma_server* get() const { return server_.get(); }
  uint16_t port() const { return rpcrdma_server_port(get()); }
  unsigned connections() const { return rpcrdma_server_connections(get()); }

  rpcrdma_statistics statistics() const {
    rpcrdma_statistics statistics;
    rpcrdma_server_statistics(get(), &statistics);
    return statistics;
  }

 private:
  static void handle(rpcrdma_request* request, void* context) {
    (*static_cast<Handler*>(context))(Request(request));
  }
  struct Close {
    void operator()(rpcrdma_server* server) const { rpcrdma_server_close(server); }
  };
  // Outlives the server, whose threads call it.
  std::unique_ptr<Handler> handler_;
  std::unique_ptr<rpcrdma_server, Close> server_;
};

}  // namespace rpcrdma
