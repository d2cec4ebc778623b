// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A fake of the engine's part of rdma_cm ids: gives out ports, and lets a test play
// the network.
#pragma once

#include <cerrno>
#include <functional>
#include <memory>

#include "rdma_cm/cm_address.h"
#include "rdma_cm/cm_id.h"
#include "rdma_cm/cm_transport.h"

namespace uwarp {

class FakeConnection : public CmConnection {
 public:
  enum class End : uint8_t { kNone, kRejected, kDisconnected, kAborted, kTwice };

  int accept(std::shared_ptr<Endpoint>, const ConnectParameters& parameters,
             std::weak_ptr<ConnectionOwner> new_owner) override {
    accepted = true;
    given = parameters;
    owner = std::move(new_owner);
    return accept_result;
  }
  int reject(std::span<const std::byte> private_data) override {
    given.private_data.assign(private_data.begin(), private_data.end());
    return ended(End::kRejected);
  }
  int disconnect() override { return ended(End::kDisconnected); }
  void abort() override { (void)ended(End::kAborted); }

  // What the peer asks for, and from where.
  ConnectParameters request;
  sockaddr_storage local{};
  sockaddr_storage remote{};
  // What the id has done.
  bool accepted = false;
  ConnectParameters given;
  End end = End::kNone;
  int accept_result = 0;
  std::weak_ptr<ConnectionOwner> owner;

 private:
  int ended(End how) {
    end = end == End::kNone ? how : End::kTwice;
    return 0;
  }
};

class FakeTransport : public CmTransport {
 public:
  struct FakeListener : CmListener {
    void close() override { closed = true; }
    bool closed = false;
    /// `asked` comes in. False: refused.
    bool request(std::shared_ptr<FakeConnection> asked) const {
      return owner.lock()->requested(asked, asked->request, asked->local, asked->remote);
    }
    std::weak_ptr<CmId> owner;
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
  Result<CmEndpoint> find_queue_pair(const CmQueuePair& number) override {
    wanted = number;
    return CmEndpoint{};
  }
  Result<BoundPort> bind(const sockaddr_storage& address, const BindOptions& options) override {
    if (bind_error != 0) return Error{bind_error};
    last_options = options;
    BoundPort bound{{}, address};
    if (port_of(address) == 0) set_port(bound.address, next_port++);
    return bound;
  }
  Result<std::shared_ptr<CmListener>> listen(BoundPort, const BindOptions&,
                                             std::weak_ptr<CmId> owner) override {
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
  CmQueuePair wanted;  ///< by the last connect or accept
  std::function<void(FakeConnection&)> inside_connect;
  Source* waiting = nullptr;  ///< for its time, wait_ms
  uint64_t wait_ms = 0;
};

}  // namespace uwarp
