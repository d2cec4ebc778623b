// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a test of connections needs around an endpoint: queues, a domain, registered memory, a
// loopback device, and owners that record their events.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "connect/connection.h"
#include "connect/endpoint.h"
#include "connect/listener.h"
#include "engine/engine.h"
#include "os/clock.h"
#include "unit/eventually.h"

namespace uwarp {

inline const NetDevice& loopback_device() {
  static const NetDevice* device = [] {
    auto* made = new NetDevice;
    made->name = "lo";
    made->verbs_name = "uwarp_lo";
    made->ifindex = 1;
    made->running = made->loopback = true;
    made->gids = {IpAddress::from_string("127.0.0.1").value()};
    return made;
  }();
  return *device;
}

inline sockaddr_storage loopback_address(uint16_t port = 0) {
  sockaddr_storage address{};
  (void)loopback_device().gids[0].to_sockaddr(address, port);
  return address;
}

/// The side of one application.
class Node : public QpEventListener {
 public:
  explicit Node(uint32_t send_depth = 64, uint32_t recv_depth = 64, bool extensions = true)
      : cq(4 * (send_depth + recv_depth), nullptr), memory(256 * 1024) {
    region =
        engine.regions()
            .add(domain, memory.data(), memory.size(), reinterpret_cast<uintptr_t>(memory.data()),
                 kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead)
            .value();
    config.domain = &domain;
    config.send_cq = config.recv_cq = &cq;
    config.regions = &engine.regions();
    config.listener = this;
    config.max_send_wr = send_depth;
    config.max_recv_wr = recv_depth;
    config.max_send_sge = config.max_recv_sge = 4;
    config.max_inline_bytes = 64;
    config.extensions = extensions;
    make_endpoint();
  }
  /// Makes a new queue pair with another configuration.
  template <typename Change>
  void replace(const Change& change) {
    endpoint->destroy();
    change(config);
    make_endpoint();
  }
  ~Node() override {
    endpoint->destroy();
    engine.remove_region(*region);
  }

  void qp_event(QpEvent event) override {
    // Counted separately: whether this event comes to a queue pair in RTR depends on how quick the
    // peer is.
    if (event == QpEvent::kCommEstablished) {
      ++communication_established;
      return;
    }
    const std::lock_guard guard(mutex_);
    events_.push_back(event);
  }
  std::vector<QpEvent> events() {
    const std::lock_guard guard(mutex_);
    return events_;
  }

  // ---- The modify_qp calls of a program that connects without rdma_cm.
  static constexpr int kInitMask = 0x39, kRtrMask = 0x129181, kRtsMask = 0x12e01;
  uint32_t psn = 0x123456;
  int init() {
    ibv_qp_attr attributes = initial_attributes();
    attributes.qp_state = IBV_QPS_INIT;
    attributes.qp_access_flags = kAccessRemoteWrite | kAccessRemoteRead | kAccessLocalWrite;
    return endpoint->modify(attributes, kInitMask);
  }
  int rtr(Qpn peer, uint32_t peer_psn = 0x123456) {
    ibv_qp_attr attributes = initial_attributes();
    attributes.qp_state = IBV_QPS_RTR;
    attributes.ah_attr.is_global = 1;
    std::memcpy(attributes.ah_attr.grh.dgid.raw, loopback_device().gids[0].bytes().data(), 16);
    attributes.dest_qp_num = peer.value;
    attributes.rq_psn = peer_psn;
    attributes.max_dest_rd_atomic = 4;
    return endpoint->modify(attributes, kRtrMask);
  }
  int rts(uint8_t timeout = 14) {
    ibv_qp_attr attributes = initial_attributes();
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = timeout;
    attributes.retry_cnt = 7;
    attributes.max_rd_atomic = 4;
    attributes.sq_psn = psn;
    return endpoint->modify(attributes, kRtsMask);
  }
  int move(QpState state) {
    ibv_qp_attr attributes = initial_attributes();
    attributes.qp_state = static_cast<ibv_qp_state>(state);
    return endpoint->modify(attributes, IBV_QP_STATE);
  }
  QpState state() const { return static_cast<QpState>(endpoint->attributes().qp_state); }

  // ---- Work.
  Sge sge(size_t offset, uint32_t length) {
    return {reinterpret_cast<uintptr_t>(memory.data() + offset), length, region->key.load()};
  }
  int post_recv(uint64_t id, size_t offset, uint32_t length) {
    const Sge one = sge(offset, length);
    const int error = endpoint->post_recv(id, {&one, 1});
    endpoint->receives_posted();
    return error;
  }
  int post(SendRequest request, size_t offset, uint32_t length) {
    const Sge one = sge(offset, length);
    request.flags |= kSendSignaled;
    if (length != 0) request.sges = {&one, 1};
    const int error = endpoint->qp().post_send(request);
    if (error == 0) endpoint->pump({.messages = 1, .bytes = length});
    return error;
  }
  int post_send(uint64_t id, size_t offset, uint32_t length) {
    SendRequest request;
    request.wr_id = id;
    return post(request, offset, length);
  }
  int post_rdma(SendOpcode opcode, uint64_t id, size_t offset, uint32_t length, Node& peer,
                size_t peer_offset) {
    SendRequest request;
    request.wr_id = id;
    request.opcode = opcode;
    request.remote_address = reinterpret_cast<uintptr_t>(peer.memory.data() + peer_offset);
    request.rkey = peer.region->key.load();
    return post(request, offset, length);
  }
  /// Polls once, and serves the sockets if the queue is empty.
  bool poll(WorkCompletion& out) {
    if (cq.poll(&out, 1) == 1) return true;
    engine.poller().poll(cq);
    return cq.poll(&out, 1) == 1;
  }
  /// The next completion, by polling.
  WorkCompletion wait_polling() {
    WorkCompletion out{};
    const uint64_t end = now_ns() + 20 * kNsPerSecond;
    while (!poll(out))
      if (now_ns() > end) {
        ADD_FAILURE() << "no completion";
        break;
      }
    return out;
  }
  /// The next completion, without a call that serves the sockets.
  WorkCompletion wait_passive() {
    WorkCompletion out{};
    EXPECT_TRUE(eventually([&] { return cq.poll(&out, 1) == 1; })) << "no completion";
    return out;
  }

  Engine& engine = Engine::instance();
  CompletionQueue cq;
  ProtectionDomain domain;
  QpConfig config;
  std::vector<std::byte> memory;
  MemoryRegion* region;
  std::shared_ptr<Endpoint> endpoint;
  std::atomic<int> communication_established{0};

 private:
  void make_endpoint() {
    auto made = Endpoint::create(engine.context(), loopback_device(), config);
    EXPECT_TRUE(made.ok());
    endpoint = std::move(*made);
  }

  std::mutex mutex_;
  std::vector<QpEvent> events_;
};

/// Records what happens to a connection.
class RecordingOwner : public ConnectionOwner {
 public:
  void connection_established(const std::shared_ptr<Connection>&, const sockaddr_storage&,
                              const ConnectParameters& told) override {
    const std::lock_guard guard(mutex_);
    parameters_ = told;
    ++established;
  }
  void connection_rejected(const std::shared_ptr<Connection>&, int why,
                           std::span<const std::byte> bytes) override {
    const std::lock_guard guard(mutex_);
    private_data_.assign(bytes.begin(), bytes.end());
    status = why;
    ++rejected;
  }
  void connection_failed(const std::shared_ptr<Connection>&, int why) override {
    status = why;
    ++failed;
  }
  void connection_ended(const std::shared_ptr<Connection>&) override { ++ended; }

  ConnectParameters parameters() {
    const std::lock_guard guard(mutex_);
    return parameters_;
  }
  std::vector<std::byte> private_data() {
    const std::lock_guard guard(mutex_);
    return private_data_;
  }

  std::atomic<int> established{0}, rejected{0}, failed{0}, ended{0}, status{0};

 private:
  std::mutex mutex_;
  ConnectParameters parameters_;
  std::vector<std::byte> private_data_;
};

/// Keeps the requests of a listener.
class RecordingListener : public ListenerOwner {
 public:
  bool connection_requested(std::shared_ptr<Connection> request) override {
    const std::lock_guard guard(mutex_);
    if (refuse) return false;
    requests_.push_back(std::move(request));
    return true;
  }
  std::shared_ptr<Connection> take() {
    std::shared_ptr<Connection> first;
    EXPECT_TRUE(eventually([&] {
      const std::lock_guard guard(mutex_);
      if (requests_.empty()) return false;
      first = std::move(requests_.front());
      requests_.erase(requests_.begin());
      return true;
    })) << "no request came";
    return first;
  }
  size_t count() {
    const std::lock_guard guard(mutex_);
    return requests_.size();
  }
  std::atomic<bool> refuse{false};

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Connection>> requests_;
};

}  // namespace uwarp
