// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The functions of rpcrdma.h. No exception leaves them.
#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>

#include "core/private_data.h"
#include "rpcrdma/rpcrdma.h"
#include "verbs/client.h"
#include "verbs/server.h"

namespace {

constexpr uint32_t kCreditsMax = 1024;
constexpr uint32_t kCallMaxLeast = 1024;

/// The result of `body`, or what its exception means: memory or threads have run out.
template <typename Body>
int guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  } catch (const std::system_error& error) {
    return -error.code().value();
  } catch (...) {
    return -EIO;
  }
}

template <typename Options>
void clamp_common(Options& options) {
  options.inline_send = rpcrdma::core::announceable(options.inline_send);
  options.inline_receive = rpcrdma::core::announceable(options.inline_receive);
  options.credits = std::clamp(options.credits, 1u, kCreditsMax);
}

}  // namespace

extern "C" {

const char* rpcrdma_version(void) { return RPCRDMA_VERSION; }

void rpcrdma_client_options_init(rpcrdma_client_options* options) {
  *options = {};
  options->inline_send = options->inline_receive = RPCRDMA_INLINE_DEFAULT;
  options->credits = 32;
  options->announce = options->invalidation = 1;
  options->connect_ms = 10000;
  options->timeout_ms = 60000;
  options->retries = 5;
}

int rpcrdma_client_connect(rpcrdma_client** client, const char* host, const char* service,
                           const rpcrdma_client_options* options) {
  return guarded([&] {
    rpcrdma_client_options mine;
    rpcrdma_client_options_init(&mine);
    if (options != nullptr) mine = *options;
    clamp_common(mine);
    mine.timeout_ms = std::max(mine.timeout_ms, 1u);
    if (client == nullptr || host == nullptr || service == nullptr) return -EINVAL;
    std::unique_ptr<rpcrdma_client> made(new rpcrdma_client{{host, service, mine}});
    if (const int error = made->client.open()) return error;
    *client = made.release();
    return 0;
  });
}

void rpcrdma_client_close(rpcrdma_client* client) { delete client; }

void rpcrdma_client_settings(rpcrdma_client* client, rpcrdma_settings* settings) {
  *settings = client->client.settings();
}

void rpcrdma_client_statistics(rpcrdma_client* client, rpcrdma_statistics* statistics) {
  *statistics = client->client.statistics();
}

uint32_t rpcrdma_client_xid(rpcrdma_client* client) { return client->client.next_xid(); }

int rpcrdma_client_register(rpcrdma_client* client, void* base, size_t length,
                            rpcrdma_memory** memory) {
  return guarded([&] { return client->client.register_memory(base, length, *memory); });
}

void rpcrdma_memory_release(rpcrdma_memory* memory) {
  if (memory == nullptr) return;
  ibv_dereg_mr(memory->mr);
  delete memory;
}

int rpcrdma_client_start(rpcrdma_client* client, rpcrdma_call* call) {
  return guarded([&] { return client->client.start(*call); });
}

int rpcrdma_client_wait(rpcrdma_client* client, rpcrdma_call* call) {
  return guarded([&] { return client->client.wait(*call); });
}

int rpcrdma_client_call(rpcrdma_client* client, rpcrdma_call* call) {
  if (call->done != nullptr) return -EINVAL;
  const int error = rpcrdma_client_start(client, call);
  return error != 0 ? error : rpcrdma_client_wait(client, call);
}

int rpcrdma_client_cancel(rpcrdma_client* client, rpcrdma_call* call) {
  return guarded([&] { return client->client.cancel(*call); });
}

void rpcrdma_server_options_init(rpcrdma_server_options* options) {
  *options = {};
  options->inline_send = options->inline_receive = RPCRDMA_INLINE_DEFAULT;
  options->credits = 32;
  options->announce = options->invalidation = 1;
  options->call_max = (1u << 20) + (64u << 10);
  options->connections = 64;
}

int rpcrdma_server_listen(rpcrdma_server** server, const char* host, const char* service,
                          const rpcrdma_server_options* options, rpcrdma_handler handler,
                          void* context) {
  return guarded([&] {
    rpcrdma_server_options mine;
    rpcrdma_server_options_init(&mine);
    if (options != nullptr) mine = *options;
    clamp_common(mine);
    mine.call_max = std::max(mine.call_max, kCallMaxLeast);
    if (server == nullptr || handler == nullptr) return -EINVAL;
    std::unique_ptr<rpcrdma_server> made(new rpcrdma_server{{mine, handler, context}});
    if (const int error = made->server.listen(host, service)) return error;
    *server = made.release();
    return 0;
  });
}

uint16_t rpcrdma_server_port(rpcrdma_server* server) { return server->server.port(); }

void rpcrdma_server_statistics(rpcrdma_server* server, rpcrdma_statistics* statistics) {
  *statistics = server->server.statistics();
}

unsigned rpcrdma_server_connections(rpcrdma_server* server) { return server->server.connections(); }

void rpcrdma_server_close(rpcrdma_server* server) { delete server; }

const void* rpcrdma_request_message(const rpcrdma_request* request, size_t* length) {
  *length = request->message.size();
  return request->message.data();
}

unsigned rpcrdma_request_result_count(const rpcrdma_request* request) {
  return static_cast<unsigned>(request->header.chunks.writes.size());
}

size_t rpcrdma_request_result_max(const rpcrdma_request* request, unsigned index) {
  const auto& writes = request->header.chunks.writes;
  return index < writes.size() ? rpcrdma::core::length_of(writes[index]) : 0;
}

size_t rpcrdma_request_reply_max(const rpcrdma_request* request) {
  return rpcrdma::core::longest_reply(request->header.chunks,
                                      request->session->settings().server_to_client);
}

void rpcrdma_request_settings(const rpcrdma_request* request, rpcrdma_settings* settings) {
  *settings = request->session->settings();
}

void rpcrdma_request_peer(const rpcrdma_request* request, sockaddr_storage* peer) {
  *peer = request->session->peer();
}

uint64_t rpcrdma_request_connection(const rpcrdma_request* request) {
  return request->session->number();
}

void* rpcrdma_request_buffer(rpcrdma_request* request, size_t length, rpcrdma_memory** memory) {
  void* base = nullptr;
  const int error = guarded([&] {
    auto buffer = request->session->take_buffer(length);
    if (buffer == nullptr) return -ENOMEM;
    base = buffer->base;
    *memory = &buffer->memory;
    request->result_memory.push_back(std::move(buffer));
    return 0;
  });
  return error == 0 ? base : nullptr;
}

int rpcrdma_request_reply(rpcrdma_request* request, const rpcrdma_piece* pieces,
                          unsigned piece_count, void (*done)(void*), void* context) {
  const auto session = request->session;
  return guarded([&] {
    return session->reply(std::unique_ptr<rpcrdma_request>(request), {pieces, piece_count}, done,
                          context);
  });
}

void rpcrdma_request_drop(rpcrdma_request* request) {
  const auto session = request->session;
  session->drop(std::unique_ptr<rpcrdma_request>(request));
}

}  // extern "C"
