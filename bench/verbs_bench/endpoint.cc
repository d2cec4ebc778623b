// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Verbs objects and connections of verbs_bench.
#include "verbs_bench/endpoint.h"

#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace uwarp::bench {
namespace {

constexpr int kResolveMs = 5000;
constexpr int kBacklog = 1024;
constexpr uint8_t kReadsOutstanding = 16;

rdma_conn_param connection_parameters() {
  rdma_conn_param parameters{};
  parameters.responder_resources = kReadsOutstanding;
  parameters.initiator_depth = kReadsOutstanding;
  parameters.retry_count = 7;
  parameters.rnr_retry_count = 7;
  return parameters;
}

rdma_event_channel* make_event_channel() {
  rdma_event_channel* channel = rdma_create_event_channel();
  if (channel == nullptr) die("rdma_create_event_channel");
  return channel;
}

/// The next event; acknowledged on return.
rdma_cm_event_type next_event(rdma_event_channel* channel, rdma_cm_id*& id, RemoteMemory* remote) {
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(channel, &event) != 0) die("rdma_get_cm_event");
  const rdma_cm_event_type type = event->event;
  id = event->id;
  const rdma_conn_param& parameters = event->param.conn;
  if (type == RDMA_CM_EVENT_ESTABLISHED && remote != nullptr &&
      parameters.private_data_len >= sizeof *remote) {
    std::memcpy(remote, parameters.private_data, sizeof *remote);
  }
  if (event->status != 0) {
    std::fprintf(stderr, "%s: status %d\n", rdma_event_str(type), event->status);
  }
  rdma_ack_cm_event(event);
  return type;
}

void destroy(rdma_cm_id* id) {
  rdma_destroy_qp(id);
  if (rdma_destroy_id(id) != 0) die("rdma_destroy_id");
}

}  // namespace

Resources::Resources(ibv_context* context, const Shape& shape)
    : shape_(shape), memory_(shape.memory_bytes) {
  const auto entries = static_cast<int>(shape.cq_entries);
  if ((channel = ibv_create_comp_channel(context)) == nullptr) die("ibv_create_comp_channel");
  if ((pd_ = ibv_alloc_pd(context)) == nullptr) die("ibv_alloc_pd");
  send_cq = ibv_create_cq(context, entries, nullptr, nullptr, 0);
  recv_cq = ibv_create_cq(context, entries, nullptr, channel, 0);
  if (send_cq == nullptr || recv_cq == nullptr) die("ibv_create_cq");
  region_ = ibv_reg_mr(pd_, memory_.data(), memory_.size(),
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                           IBV_ACCESS_REMOTE_ATOMIC);
  // Not every device has atomics.
  if (region_ == nullptr) {
    region_ = ibv_reg_mr(pd_, memory_.data(), memory_.size(),
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
  }
  if (region_ == nullptr) die("ibv_reg_mr");
}

Resources::~Resources() { ibv_dereg_mr(region_); }

void Resources::make_queue_pair(rdma_cm_id* id, ibv_cq* cq) const {
  ibv_qp_init_attr attributes{};
  attributes.send_cq = cq != nullptr ? cq : send_cq;
  attributes.recv_cq = cq != nullptr ? cq : recv_cq;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = shape_.send_wr;
  attributes.cap.max_recv_wr = shape_.recv_wr;
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_recv_sge = 1;
  if (rdma_create_qp(id, pd_, &attributes) != 0) die("rdma_create_qp");
}

ibv_sge Resources::sge(uint32_t bytes) const {
  return {reinterpret_cast<uint64_t>(memory_.data()), bytes, region_->lkey};
}

RemoteMemory Resources::advertised() const {
  return {reinterpret_cast<uint64_t>(memory_.data()), region_->rkey};
}

ibv_sge Resources::next_buffer(uint32_t bytes) {
  ibv_sge next = sge(bytes);
  next.addr += uint64_t{next_buffer_} * bytes;
  next_buffer_ = next_buffer_ + 1 < shape_.buffers ? next_buffer_ + 1 : 0;
  return next;
}

void Resources::post_receives(ibv_qp* qp, uint32_t count, uint32_t bytes, uint64_t wr_id) {
  if (count == 0) return;
  if (receives_.size() < count) {
    receives_.resize(count);
    places_.resize(count);
  }
  for (uint32_t i = 0; i < count; ++i) {
    places_[i] = next_buffer(bytes);
    receives_[i] = {wr_id, i + 1 < count ? &receives_[i + 1] : nullptr, &places_[i], 1};
  }
  ibv_recv_wr* bad = nullptr;
  if ((errno = ibv_post_recv(qp, receives_.data(), &bad)) != 0) die("ibv_post_recv");
}

uint32_t poll(ibv_cq* cq, std::span<ibv_wc> out) {
  const int count = ibv_poll_cq(cq, static_cast<int>(out.size()), out.data());
  if (count < 0) die("ibv_poll_cq");
  for (int i = 0; i < count; ++i) {
    if (out[static_cast<size_t>(i)].status == IBV_WC_SUCCESS) continue;
    // The other end may be gone by the time its last message is answered.
    if (out[static_cast<size_t>(i)].status == IBV_WC_WR_FLUSH_ERR) return static_cast<uint32_t>(i);
    std::fprintf(stderr, "completion: %s\n", ibv_wc_status_str(out[static_cast<size_t>(i)].status));
    std::exit(1);
  }
  return static_cast<uint32_t>(count);
}

Connector::Connector(const Options& options, const Shape& shape)
    : options_(options), shape_(shape), channel_(make_event_channel()) {
  rdma_addrinfo hints{};
  hints.ai_port_space = RDMA_PS_TCP;
  if (rdma_getaddrinfo(options.address.c_str(), std::to_string(options.port).c_str(), &hints,
                       &where_) != 0) {
    die("rdma_getaddrinfo");
  }
}

void Connector::start() {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(channel_, &id, nullptr, RDMA_PS_TCP) != 0) die("rdma_create_id");
  if (rdma_resolve_addr(id, nullptr, where_->ai_dst_addr, kResolveMs) != 0) {
    die("rdma_resolve_addr");
  }
}

void Connector::resolve_route(rdma_cm_id* id) {
  if (rdma_resolve_route(id, kResolveMs) != 0) die("rdma_resolve_route");
}

void Connector::connect(rdma_cm_id* id) {
  if (!resources_) resources_ = std::make_unique<Resources>(id->verbs, shape_);
  resources_->make_queue_pair(id);
  if (options_.mode == "wake-up") resources_->post_receives(id->qp, shape_.recv_wr, options_.size);
  rdma_conn_param parameters = connection_parameters();
  if (rdma_connect(id, &parameters) != 0) die("rdma_connect");
}

void Connector::wait(uint32_t count, const Established& established, bool closed) {
  for (uint32_t done = 0; done < count;) {
    rdma_cm_id* id = nullptr;
    switch (const auto type = next_event(channel_, id, &remote_)) {
      case RDMA_CM_EVENT_ADDR_RESOLVED:
        resolve_route(id);
        break;
      case RDMA_CM_EVENT_ROUTE_RESOLVED:
        connect(id);
        break;
      case RDMA_CM_EVENT_ESTABLISHED:
        established(id);
        if (!closed) ++done;
        break;
      case RDMA_CM_EVENT_DISCONNECTED:
        if (!closed) die("the other end is gone");
        destroy(id);
        ++done;
        break;
      case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        break;
      default:
        std::fprintf(stderr, "verbs_bench: %s\n", rdma_event_str(type));
        std::exit(1);
    }
  }
}

rdma_cm_id* Connector::open_one() {
  rdma_cm_id* made = nullptr;
  start();
  wait(1, [&](rdma_cm_id* id) { made = id; });
  return made;
}

Acceptor::Acceptor(const Options& options, const Shape& shape)
    : shape_(shape), channel_(make_event_channel()) {
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(options.port);
  rdma_cm_id* listener = nullptr;
  if (rdma_create_id(channel_, &listener, nullptr, RDMA_PS_TCP) != 0) die("rdma_create_id");
  if (rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&any)) != 0) die("rdma_bind_addr");
  if (rdma_listen(listener, kBacklog) != 0) die("rdma_listen");
}

void Acceptor::accept(rdma_cm_id* id) {
  const RemoteMemory memory = resources_->advertised();
  rdma_conn_param parameters = connection_parameters();
  parameters.private_data = &memory;
  parameters.private_data_len = sizeof memory;
  if (rdma_accept(id, &parameters) != 0) die("rdma_accept");
}

void Acceptor::run(const std::function<void(Resources&, ibv_qp*)>& accepting,
                   const std::function<void(Resources&, ibv_qp*)>& established) {
  rdma_cm_id* first = nullptr;
  for (;;) {
    rdma_cm_id* id = nullptr;
    switch (next_event(channel_, id, nullptr)) {
      case RDMA_CM_EVENT_CONNECT_REQUEST:
        if (!resources_) resources_ = std::make_unique<Resources>(id->verbs, shape_);
        resources_->make_queue_pair(id, queue_of_ ? queue_of_(id->verbs) : nullptr);
        if (first == nullptr) {
          first = id;
          accepting(*resources_, id->qp);
        }
        accept(id);
        break;
      case RDMA_CM_EVENT_ESTABLISHED:
        if (id == first) established(*resources_, id->qp);
        break;
      case RDMA_CM_EVENT_DISCONNECTED:
        if (id == first) return;
        destroy(id);
        break;
      default:
        break;
    }
  }
}

}  // namespace uwarp::bench
