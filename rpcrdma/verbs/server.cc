// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/server.h"

#include <netdb.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "verbs/announcement.h"

namespace rpcrdma::verbs {

namespace {

constexpr int kBacklog = 64;

}  // namespace

Server::Server(const rpcrdma_server_options& options, rpcrdma_handler handler, void* context)
    : options_(options), session_config_{options.credits, options.call_max, handler, context} {}

Server::~Server() {
  closing_ = true;
  wake_.ring();
  if (thread_.joinable()) thread_.join();
  if (listener_ != nullptr) rdma_destroy_id(listener_);
}

int Server::listen(const char* host, const char* service) {
  if (channel_.get() == nullptr) return -ENODEV;
  if (wake_.fd() < 0) return -EMFILE;
  if (rdma_create_id(channel_.get(), &listener_, nullptr, RDMA_PS_TCP) != 0) return -errno;
  if (const int error = bind(host, service)) return error;
  if (rdma_listen(listener_, kBacklog) != 0) return -errno;
  thread_ = std::thread(&Server::run, this);
  return 0;
}

int Server::bind(const char* host, const char* service) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* list = nullptr;
  if (getaddrinfo(host, service != nullptr ? service : "0", &hints, &list) != 0)
    return -EADDRNOTAVAIL;
  int error = -EADDRNOTAVAIL;
  for (const addrinfo* one = list; one != nullptr && error != 0; one = one->ai_next)
    error = rdma_bind_addr(listener_, one->ai_addr) == 0 ? 0 : -errno;
  freeaddrinfo(list);
  return error;
}

uint16_t Server::port() const { return ntohs(rdma_get_src_port(listener_)); }

void Server::run() {
  std::array fds{readable(wake_.fd()), readable(channel_.fd())};
  while (!closing_) {
    ::poll(fds.data(), fds.size(), -1);
    wake_.clear();
    while (const auto event = channel_.next()) take(*event);
    reap();
  }
  for (const auto& [id, session] : sessions_) session->stop();
  for (const auto& [id, session] : sessions_) session->join();
  sessions_.clear();
  open_ = 0;
}

void Server::take(const CmEvent& event) {
  if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) return take_request(event);
  const auto found = sessions_.find(event.id);
  if (found == sessions_.end()) return;
  switch (event.type) {
    case RDMA_CM_EVENT_ESTABLISHED:
      found->second->start();
      break;
    case RDMA_CM_EVENT_ADDR_CHANGE:
      break;
    default:
      found->second->stop();  // all other events: the connection has failed or ended
      break;
  }
}

void Server::take_request(const CmEvent& event) {
  if (sessions_.size() < options_.connections && accept(event) == 0) return;
  rdma_reject(event.id, nullptr, 0);
  rdma_destroy_id(event.id);
}

/// On failure the id is as it came.
int Server::accept(const CmEvent& event) {
  const auto domain = domain_of(event.id->verbs);
  if (domain == nullptr) return -ENOMEM;
  const Announcement announcement(options_.announce != 0, options_.inline_send,
                                  options_.inline_receive,
                                  options_.invalidation != 0 && domain->can_invalidate());
  rpcrdma_settings settings = announcement.settle(core::Role::kServer, event.private_data);
  settings.credits = options_.credits;

  auto wake = std::make_unique<WakeUp>();
  if (wake->fd() < 0) return -EMFILE;  // it could not be stopped

  // The receives are there before the client is sent their size. RFC 8797-4.2-f.
  std::unique_ptr<Connection> connection;
  const Connection::Config config{announcement.own().receive_size, options_.credits};
  if (const int error = Connection::make(domain, event.id, config, connection)) return error;

  const std::vector<std::byte> private_data = announcement.private_data();
  const ibv_device_attr& limits = domain->attributes();
  rdma_conn_param parameters{};
  parameters.private_data = private_data.empty() ? nullptr : private_data.data();
  parameters.private_data_len = static_cast<uint8_t>(private_data.size());
  parameters.initiator_depth = static_cast<uint8_t>(
      std::min<int>(event.initiator_depth, std::min(limits.max_qp_init_rd_atom, 255)));
  parameters.responder_resources = static_cast<uint8_t>(
      std::min<int>(event.responder_resources, std::min(limits.max_qp_rd_atom, 255)));
  parameters.rnr_retry_count = 7;
  if (rdma_accept(event.id, &parameters) != 0) {
    const int error = -errno;
    connection->give_up_id();
    return error;
  }
  sessions_[event.id] = std::make_shared<Session>(
      next_number_++, session_config_, statistics_, std::move(connection), std::move(wake),
      settings, parameters.initiator_depth != 0, [this] { wake_.ring(); });
  open_ = static_cast<unsigned>(sessions_.size());
  return 0;
}

void Server::reap() {
  for (auto at = sessions_.begin(); at != sessions_.end();) {
    if (!at->second->ended()) {
      ++at;
      continue;
    }
    at->second->join();
    at = sessions_.erase(at);
  }
  open_ = static_cast<unsigned>(sessions_.size());
}

std::shared_ptr<Domain> Server::domain_of(ibv_context* context) {
  auto& domain = domains_[context];
  if (domain == nullptr) domain = Domain::of(context);
  return domain;
}

}  // namespace rpcrdma::verbs
