// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "rdma_cm/cm_transport.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <optional>
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

/// The active side's question, as rdma_cm ids know it.
class QueryConnection : public CmConnection {
 public:
  /// For query_by_sidr(), which has memory for this before the question is asked.
  void take(std::shared_ptr<SidrQuery> query) { query_ = std::move(query); }

  const ConnectParameters& request_parameters() const override { return none_; }
  sockaddr_storage local_address() const override { return query_->local_address(); }
  sockaddr_storage remote_address() const override { return {}; }
  int accept(const CmQueuePair&, ConnectParameters, std::weak_ptr<ConnectionOwner>) override {
    return EINVAL;
  }
  int reject(std::span<const std::byte>) override { return EINVAL; }
  int disconnect() override {
    query_->end();
    return 0;
  }
  void abort() override { query_->end(); }

 private:
  const ConnectParameters none_{};
  std::shared_ptr<SidrQuery> query_;
};

/// A peer's question. Letting go of it rejects.
class CalledConnection : public CmConnection {
 public:
  explicit CalledConnection(std::shared_ptr<SidrCall> call) : call_(std::move(call)) {
    request_.private_data = call_->private_data();
  }

  const ConnectParameters& request_parameters() const override { return request_; }
  sockaddr_storage local_address() const override { return call_->local_address(); }
  sockaddr_storage remote_address() const override { return call_->remote_address(); }
  int accept(const CmQueuePair& queue_pair, ConnectParameters parameters,
             std::weak_ptr<ConnectionOwner>) override {
    return call_->answer({0, SidrStatus::kSuccess, queue_pair.number, parameters.qkey,
                          std::move(parameters.private_data)});
  }
  int reject(std::span<const std::byte> private_data) override {
    return call_->answer(
        {0, SidrStatus::kRejected, 0, 0, {private_data.begin(), private_data.end()}});
  }
  int disconnect() override { return 0; }
  void abort() override { (void)reject({}); }

 private:
  const std::shared_ptr<SidrCall> call_;
  ConnectParameters request_;
};

/// A listener of the engine, as rdma_cm ids know it: open from attach() to close().
template <typename Real>
class AttachedListener : public CmListener {
 public:
  explicit AttachedListener(std::weak_ptr<CmListenerOwner> owner) : owner_(std::move(owner)) {}

  void attach(std::shared_ptr<Real> listener) {
    listener_ = std::move(listener);
    open_.emplace();
  }
  void close() override {
    listener_->close();
    open_.reset();
  }

 protected:
  /// False: refused, as by the owner, or because there is none any more.
  template <typename Adapter, typename Request>
  bool hand_up(std::shared_ptr<Request> request) {
    const auto owner = owner_.lock();
    return owner != nullptr &&
           owner->connection_requested(std::make_shared<Adapter>(std::move(request)));
  }

 private:
  std::shared_ptr<Real> listener_;
  const std::weak_ptr<CmListenerOwner> owner_;
  std::optional<OpenListener> open_;
};

class CallListener : public AttachedListener<SidrListener>, public SidrListenerOwner {
 public:
  using AttachedListener::AttachedListener;

  bool sidr_requested(std::shared_ptr<SidrCall> call) override {
    return hand_up<CalledConnection>(std::move(call));
  }
};

}  // namespace

Result<std::shared_ptr<CmListener>> listen_for_sidr(TcpSocket bound, uint16_t port_space,
                                                    std::weak_ptr<CmListenerOwner> owner) {
  auto adapter = std::make_shared<CallListener>(std::move(owner));
  auto listener = SidrListener::start(Engine::instance().context(), UdpSocket(std::move(bound)),
                                      port_space, adapter);
  if (!listener) return Error{listener.error()};
  adapter->attach(std::move(*listener));
  return std::shared_ptr<CmListener>(std::move(adapter));
}

Result<std::shared_ptr<CmConnection>> query_by_sidr(TcpSocket bound,
                                                    CmTransport::ConnectRequest request,
                                                    std::weak_ptr<ConnectionOwner> owner) {
  if (!bound) {  // the application has the port, or none was free
    set_port(request.local, 0);
    auto late = bind_port(request.local, request.options);
    if (!late) return Error{late.error()};
    bound = std::move(*late);
  }
  auto made = std::make_shared<QueryConnection>();
  auto query =
      SidrQuery::start(Engine::instance().context(), UdpSocket(std::move(bound)), request.remote,
                       {0, request.options.port_space, std::move(request.parameters.private_data)},
                       std::move(owner));
  if (!query) return Error{query.error()};
  made->take(std::move(*query));
  return std::shared_ptr<CmConnection>(std::move(made));
}

// CmTransport on top of the engine's listeners and connections.

namespace {

class TcpBoundPort : public BoundPort {
 public:
  TcpBoundPort(TcpSocket bound, const BindOptions& options)
      : socket(std::move(bound)), options(options), address_(socket.local_address()) {}
  /// A UDP port that the application itself holds.
  TcpBoundPort(const sockaddr_storage& address, const BindOptions& options)
      : options(options), address_(address) {}
  void share() override { share_port(socket); }
  sockaddr_storage local_address() const override { return address_; }

  TcpSocket socket;  // empty: nothing can listen on the port
  const BindOptions options;

 private:
  const sockaddr_storage address_;
};

TcpSocket socket_of(std::unique_ptr<BoundPort> bound) {
  return std::move(static_cast<TcpBoundPort&>(*bound).socket);
}

/// The queue pair of an rdma_cm id, and what keeps it if it is a silent one.
struct UsedQueuePair {
  std::shared_ptr<Endpoint> endpoint;
  std::unique_ptr<SilentQueuePair> silent;
};

/// EINVAL: there is none of that number, and there must be one.
Result<UsedQueuePair> find_queue_pair(const CmQueuePair& wanted) {
  Engine& engine = Engine::instance();
  UsedQueuePair used;
  used.endpoint = engine.endpoints().find(Qpn{wanted.number});
  if (used.endpoint == nullptr) {
    if (wanted.device == nullptr) {
      log_event(
          "rdma_cm: there is no queue pair of number %u; iWARP connects queue pairs only, "
          "UWARP_PERSONA=roce also ids without one",
          wanted.number);
      return Error{EINVAL};
    }
    auto silent = SilentQueuePair::create(engine, *wanted.device);
    if (!silent) return Error{silent.error()};
    used.silent = std::move(*silent);
    used.endpoint = used.silent->endpoint();
  }
  used.endpoint->set_retries(wanted.retries);
  return used;
}

/// A Connection, as rdma_cm ids know it.
class EngineConnection : public CmConnection {
 public:
  explicit EngineConnection(std::shared_ptr<Connection> connection)
      : connection_(std::move(connection)) {}
  /// For connect(), which has memory for this before the connection begins.
  EngineConnection() = default;
  void take(std::shared_ptr<Connection> connection) { connection_ = std::move(connection); }
  void keep(std::unique_ptr<SilentQueuePair> silent) { silent_ = std::move(silent); }

  const ConnectParameters& request_parameters() const override {
    return connection_->request_parameters();
  }
  sockaddr_storage local_address() const override { return connection_->local_address(); }
  sockaddr_storage remote_address() const override { return connection_->remote_address(); }

  int accept(const CmQueuePair& queue_pair, ConnectParameters parameters,
             std::weak_ptr<ConnectionOwner> owner) override {
    auto used = find_queue_pair(queue_pair);
    if (!used) return used.error();
    keep(std::move(used->silent));
    return connection_->accept(std::move(used->endpoint), parameters, std::move(owner));
  }

  int reject(std::span<const std::byte> private_data) override {
    return connection_->reject(private_data);
  }
  int disconnect() override { return connection_->disconnect(); }
  void abort() override { connection_->abort(); }

 private:
  std::shared_ptr<Connection> connection_;   // set before it is shared
  std::unique_ptr<SilentQueuePair> silent_;  // that it runs on, or null; set by one call
};

class EngineListener : public AttachedListener<Listener>, public ListenerOwner {
 public:
  using AttachedListener::AttachedListener;

  bool connection_requested(std::shared_ptr<Connection> request) override {
    return hand_up<EngineConnection>(std::move(request));
  }
};

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

  Result<std::unique_ptr<BoundPort>> bind(const sockaddr_storage& address,
                                          const BindOptions& options) override {
    auto bound = bind_port(address, options);
    if (!bound && bound.error() == EADDRINUSE && options.datagram &&
        application_has_udp_port(port_of(address)))
      return std::unique_ptr<BoundPort>(new TcpBoundPort(address, options));
    if (!bound) return Error{bound.error()};
    return std::unique_ptr<BoundPort>(new TcpBoundPort(std::move(*bound), options));
  }

  Result<std::shared_ptr<CmListener>> listen(std::unique_ptr<BoundPort> bound,
                                             std::weak_ptr<CmListenerOwner> owner) override {
    const BindOptions options = static_cast<TcpBoundPort&>(*bound).options;
    TcpSocket socket = socket_of(std::move(bound));
    if (!socket) return Error{EADDRINUSE};
    if (options.datagram)
      return listen_for_sidr(std::move(socket), options.port_space, std::move(owner));
    auto adapter = std::make_shared<EngineListener>(std::move(owner));
    Engine& engine = Engine::instance();
    auto listener = Listener::start(engine.context(), socket, adapter);
    if (!listener) return Error{listener.error()};
    adapter->attach(std::move(*listener));
    return std::shared_ptr<CmListener>(std::move(adapter));
  }

  Result<std::shared_ptr<CmConnection>> connect(ConnectRequest request,
                                                std::weak_ptr<ConnectionOwner> owner) override {
    TcpSocket bound;
    if (request.bound) bound = socket_of(std::move(request.bound));
    if (request.options.datagram)
      return query_by_sidr(std::move(bound), std::move(request), std::move(owner));
    Engine& engine = Engine::instance();
    auto used = find_queue_pair(request.queue_pair);
    if (!used) return Error{used.error()};
    Connection::ConnectOptions options;
    options.bound = std::move(bound);
    options.local = request.local;
    options.remote = request.remote;
    options.tos = request.options.tos;
    auto made = std::make_shared<EngineConnection>();
    made->keep(std::move(used->silent));
    auto connection =
        Connection::connect(engine.context(), std::move(used->endpoint), std::move(options),
                            std::move(request.parameters), std::move(owner));
    if (!connection) return Error{connection.error()};
    made->take(std::move(*connection));
    return std::shared_ptr<CmConnection>(std::move(made));
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
