// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "rdma_cm/cm_transport.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string>
#include <utility>

#include "base/fork.h"
#include "base/log.h"
#include "base/process_own.h"
#include "connect/connection.h"
#include "connect/endpoint.h"
#include "connect/listener.h"
#include "connect/sidr_listener.h"
#include "connect/sidr_query.h"
#include "datagram/multicast.h"
#include "engine/engine.h"
#include "events/raw_fds.h"
#include "net/neighbour.h"
#include "os/clock.h"
#include "rdma_cm/cm_address.h"
#include "rdma_cm/cm_id.h"

namespace uwarp {

namespace {

std::atomic<int> own{0};
std::atomic<int> of_parent{0};  // and of those before it
// Added up, because daemons fork twice.
const InForkedChild leave_listeners([] { of_parent.fetch_add(own.exchange(0)); });

void say(int count, const char* who, bool on_stderr) {
  constexpr char kRemedy[] =
      "call rdma_listen() after daemon() or fork(), or keep the program in the foreground";
  char line[300];
  const int length = snprintf(line, sizeof line, "%d rdma_cm listener%s %s; %s", count,
                              count == 1 ? "" : "s", who, kRemedy);
  log_event("%s", line);
  if (!on_stderr || length <= 0) return;
  char said[340];
  const int whole = snprintf(said, sizeof said, "uwarp: %s\n", line);
  raw_write(STDERR_FILENO, said, static_cast<size_t>(whole));
}

}  // namespace

OpenListener::OpenListener() { own.fetch_add(1, std::memory_order_relaxed); }
OpenListener::~OpenListener() { own.fetch_sub(1, std::memory_order_relaxed); }

void say_daemon_loses_listeners() {
  if (const int count = own.load())
    say(count, "will end with this process, not go on in the daemon", true);
}

void say_session_without_listeners() {
  if (const int count = of_parent.load()) say(count, "stayed in the parent of this process", false);
}

void say_channel_without_listeners() {
  if (const int count = of_parent.exchange(0))
    say(count, "stayed in the parent of this process", true);
}

namespace {

/// The interface of what was made, which rdma_cm ids know.
template <typename Interface, typename Made>
Result<std::shared_ptr<Interface>> as(Result<std::shared_ptr<Made>> made) {
  if (!made) return Error{made.error()};
  return std::move(*made);
}

/// On top of the engine's listeners and connections.
class EngineTransport : public CmTransport {
 public:
  bool wait_for_neighbour(const IpAddress& destination, const Route& route, uint32_t timeout_ms,
                          std::weak_ptr<NeighbourListener> listener) override {
    const uint64_t deadline_ns = now_ns() + timeout_ms * kNsPerMs;
    return Engine::instance().neighbour_watch().wait(destination, route, deadline_ns,
                                                     std::move(listener));
  }

  int check_group(const NetDevice& device, const IpAddress& own, const IpAddress& group) override {
    if (!is_multicast(group)) return EINVAL;
    return Engine::instance().trunks().groups().check(device, {own, group, 1, 0});
  }

  Result<CmEndpoint> find_queue_pair(const CmQueuePair& wanted) override {
    Engine& engine = Engine::instance();
    CmEndpoint found{engine.endpoints().find(Qpn{wanted.number}), nullptr};
    if (found.endpoint == nullptr) {
      if (wanted.device == nullptr) {
        advise("rdma_cm: there is no queue pair of number " + std::to_string(wanted.number) +
               ", and the iwarp persona connects no id without one. " + kAskForRoce);
        return Error{EINVAL};
      }
      auto silent = SilentQueuePair::create(engine, *wanted.device);
      if (!silent) return Error{silent.error()};
      found.silent = std::move(*silent);
      found.endpoint = found.silent->endpoint();
    }
    found.endpoint->set_retries(wanted.retries);
    return found;
  }

  Result<BoundPort> bind(const sockaddr_storage& address, const BindOptions& options) override {
    auto bound = bind_port(address, options);
    if (bound) {
      const sockaddr_storage local = bound->local_address();
      return BoundPort{std::move(*bound), local};
    }
    if (bound.error() == EADDRINUSE && options.datagram &&
        application_has_udp_port(port_of(address)))
      return BoundPort{{}, address};
    return Error{bound.error()};
  }

  Result<std::shared_ptr<CmListener>> listen(BoundPort bound, const BindOptions& options,
                                             std::weak_ptr<CmId> owner) override {
    if (!bound.socket) return Error{EADDRINUSE};
    ConnectContext& context = Engine::instance().context();
    if (!options.datagram)
      return as<CmListener>(Listener::start(context, bound.socket, std::move(owner)));
    return as<CmListener>(SidrListener::start(context, UdpSocket(std::move(bound.socket)),
                                              options.port_space, std::move(owner)));
  }

  Result<std::shared_ptr<CmConnection>> connect(ConnectRequest request,
                                                std::weak_ptr<ConnectionOwner> owner) override {
    ConnectContext& context = Engine::instance().context();
    TcpSocket bound;
    if (request.bound) bound = std::move(request.bound->socket);
    if (!request.options.datagram) {
      Connection::ConnectOptions options;
      options.bound = std::move(bound);
      options.local = request.local;
      options.remote = request.remote;
      options.tos = request.options.tos;
      return as<CmConnection>(Connection::connect(context, std::move(request.endpoint),
                                                  std::move(options), std::move(request.parameters),
                                                  std::move(owner)));
    }
    if (!bound) {  // the application has the port, or none was free
      set_port(request.local, 0);
      auto late = bind_port(request.local, request.options);
      if (!late) return Error{late.error()};
      bound = std::move(*late);
    }
    return as<CmConnection>(SidrQuery::start(
        context, UdpSocket(std::move(bound)), request.remote,
        {0, request.options.port_space, std::move(request.parameters.private_data)},
        std::move(owner)));
  }

  void call_after(Source& source, uint64_t delay_ms) override {
    Engine::instance().progress().set_deadline(source, now_ns() + delay_ms * kNsPerMs);
  }
};

}  // namespace

CmTransport& engine_transport() {
  static constinit ProcessOwn<EngineTransport> transport;
  return transport.get();
}

}  // namespace uwarp
