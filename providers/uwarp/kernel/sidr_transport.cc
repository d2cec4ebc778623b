// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "kernel/sidr_transport.h"

#include <cerrno>
#include <optional>
#include <utility>

#include "connect/sidr_listener.h"
#include "connect/sidr_query.h"
#include "engine/engine.h"
#include "kernel/cm_address.h"
#include "kernel/open_listeners.h"

namespace uwarp {
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

class CallListener : public CmListener, public SidrListenerOwner {
 public:
  explicit CallListener(std::weak_ptr<CmListenerOwner> owner) : owner_(std::move(owner)) {}

  void attach(std::shared_ptr<SidrListener> listener) {
    listener_ = std::move(listener);
    open_.emplace();
  }
  void close() override {
    listener_->close();
    open_.reset();
  }
  bool sidr_requested(std::shared_ptr<SidrCall> call) override {
    const auto owner = owner_.lock();
    return owner != nullptr &&
           owner->connection_requested(std::make_shared<CalledConnection>(std::move(call)));
  }

 private:
  std::shared_ptr<SidrListener> listener_;
  const std::weak_ptr<CmListenerOwner> owner_;
  std::optional<OpenListener> open_;
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

}  // namespace uwarp
