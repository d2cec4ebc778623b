// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A fake of the engine's part of rdma_cm ids: gives out ports, records calls, and lets a test play
// the network.
#pragma once

#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rdma_cm/cm_address.h"
#include "rdma_cm/cm_transport.h"

namespace uwarp {

class FakeConnection : public CmConnection {
 public:
  const ConnectParameters& request_parameters() const override { return request; }
  sockaddr_storage local_address() const override { return local; }
  sockaddr_storage remote_address() const override { return remote; }
  int accept(const CmQueuePair& queue_pair, ConnectParameters parameters,
             std::weak_ptr<ConnectionOwner> new_owner) override {
    calls.push_back("accept " + std::to_string(queue_pair.number));
    given = std::move(parameters);
    accepting = queue_pair;
    owner = std::move(new_owner);
    return accept_result;
  }
  int reject(std::span<const std::byte> private_data) override {
    calls.push_back("reject");
    given.private_data.assign(private_data.begin(), private_data.end());
    return 0;
  }
  int disconnect() override {
    calls.push_back("disconnect");
    return 0;
  }
  void abort() override { calls.push_back("abort"); }

  ConnectParameters request;
  ConnectParameters given;
  CmQueuePair accepting;
  sockaddr_storage local{};
  sockaddr_storage remote{};
  int accept_result = 0;
  std::weak_ptr<ConnectionOwner> owner;
  std::vector<std::string> calls;
};

class FakeTransport : public CmTransport {
 public:
  struct Port : BoundPort {
    explicit Port(const sockaddr_storage& bound) : address(bound) {}
    void share() override { shared = true; }
    sockaddr_storage local_address() const override { return address; }
    sockaddr_storage address;
    bool shared = false;
  };
  struct FakeListener : CmListener {
    void close() override { closed = true; }
    bool closed = false;
    std::weak_ptr<CmListenerOwner> owner;
  };

  bool wait_for_neighbour(const IpAddress&, const Route&, uint32_t timeout_ms,
                          std::weak_ptr<NeighbourListener> listener) override {
    neighbour = std::move(listener);
    neighbour_timeout_ms = timeout_ms;
    if (inside_wait) inside_wait(*neighbour.lock());
    return neighbour_is_asked_for;
  }
  int check_group(const NetDevice&, const IpAddress&, const IpAddress& group) override {
    last_group = group;
    return group_error;
  }
  Result<std::unique_ptr<BoundPort>> bind(const sockaddr_storage& address,
                                          const BindOptions& options) override {
    if (bind_error != 0) return Error{bind_error};
    last_options = options;
    sockaddr_storage bound = address;
    if (port_of(bound) == 0) set_port(bound, next_port++);
    return std::unique_ptr<BoundPort>(new Port(bound));
  }
  Result<std::shared_ptr<CmListener>> listen(std::unique_ptr<BoundPort>,
                                             std::weak_ptr<CmListenerOwner> owner) override {
    if (listen_error != 0) return Error{listen_error};
    listener = std::make_shared<FakeListener>();
    listener->owner = std::move(owner);
    return std::shared_ptr<CmListener>(listener);
  }
  Result<std::shared_ptr<CmConnection>> connect(ConnectRequest request,
                                                std::weak_ptr<ConnectionOwner> owner) override {
    if (connect_error != 0) return Error{connect_error};
    connection = std::make_shared<FakeConnection>();
    connection->owner = std::move(owner);
    last_connect = std::move(request);
    if (inside_connect) inside_connect(*connection);
    return std::shared_ptr<CmConnection>(connection);
  }
  void call_after(Source& source, uint64_t delay_ms) override {
    waiting = &source;
    wait_ms = delay_ms;
  }

  bool neighbour_is_asked_for = false;
  uint32_t neighbour_timeout_ms = 0;
  std::weak_ptr<NeighbourListener> neighbour;
  std::function<void(NeighbourListener&)> inside_wait;
  int group_error = 0;
  IpAddress last_group;
  int bind_error = 0;
  int listen_error = 0;
  int connect_error = 0;
  uint16_t next_port = 40000;
  BindOptions last_options;
  std::shared_ptr<FakeListener> listener;
  std::shared_ptr<FakeConnection> connection;
  ConnectRequest last_connect;
  std::function<void(FakeConnection&)> inside_connect;
  Source* waiting = nullptr;  ///< for its time, wait_ms
  uint64_t wait_ms = 0;
};

}  // namespace uwarp
