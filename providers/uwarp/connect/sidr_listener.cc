// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "connect/sidr_listener.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "base/mutex.h"
#include "base/settings.h"
#include "carrier/tls_keys.h"
#include "connect/connect_context.h"
#include "os/clock.h"
#include "os/output_file.h"

namespace uwarp {

namespace {

/// Datagrams looked at per turn, so that a flood does not keep other sources waiting.
constexpr int kRequestsPerPass = 16;
/// Pause after there was no memory for a request.
constexpr uint64_t kSidrRetryNs = 100 * kNsPerMs;

}  // namespace

bool SidrPort::enter(const SidrTransactions::Key& key, const UdpPath& path) {
  const Lock guard(mutex_);
  const auto [outcome, reply] = transactions_.enter(key);
  if (outcome == SidrTransactions::Outcome::kAnswered) (void)socket_.send(*reply, path);
  return outcome == SidrTransactions::Outcome::kNew;
}

void SidrPort::forget(const SidrTransactions::Key& key) {
  const Lock guard(mutex_);
  transactions_.forget(key);
}

// A reply that is lost, here or on the way, is asked for again.
void SidrPort::answer(const SidrTransactions::Key& key, const UdpPath& path,
                      const SidrReply& reply) {
  std::vector<std::byte> bytes = reply.encode();
  const Lock guard(mutex_);
  (void)socket_.send(bytes, path);
  transactions_.answered(key, std::move(bytes));
}

void SidrPort::refuse(uint64_t transaction, const UdpPath& path, SidrStatus status) {
  SidrReply reply;
  reply.transaction = transaction;
  reply.status = status;
  (void)socket_.send(reply.encode(), path);
}

sockaddr_storage SidrCall::local_of(const SidrPort& port, const UdpPath& path) {
  sockaddr_storage address = path.local;
  set_port(address, port_of(port.local_address()));
  return address;
}

SidrCall::~SidrCall() {
  try {
    SidrReply reply;
    reply.status = SidrStatus::kRejected;
    (void)answer(std::move(reply));
  } catch (const std::bad_alloc&) {
    // The peer's next repetitions find it waiting, and its time-out ends it.
  }
}

int SidrCall::answer(SidrReply reply) {
  reply.transaction = key_.transaction;
  const Lock guard(mutex_);
  if (port_ == nullptr) return EINVAL;
  port_->answer(key_, path_, reply);
  port_.reset();
  return 0;
}

int SidrCall::accept(std::shared_ptr<Endpoint> /*endpoint*/, const ConnectParameters& parameters,
                     std::weak_ptr<ConnectionOwner> /*owner*/) {
  return answer(
      {0, SidrStatus::kSuccess, parameters.qp_number, parameters.qkey, parameters.private_data});
}

int SidrCall::reject(std::span<const std::byte> private_data) {
  return answer({0, SidrStatus::kRejected, 0, 0, {private_data.begin(), private_data.end()}});
}

SidrListener::SidrListener(ConnectContext& context, UdpSocket bound, uint16_t port_space,
                           std::weak_ptr<SidrListenerOwner> owner)
    : context_(context),
      port_space_(port_space),
      port_(std::make_shared<SidrPort>(std::move(bound))),
      owner_(std::move(owner)) {}

SidrListener::~SidrListener() { close(); }

Result<std::shared_ptr<SidrListener>> SidrListener::start(ConnectContext& context, UdpSocket bound,
                                                          uint16_t port_space,
                                                          std::weak_ptr<SidrListenerOwner> owner) {
  if (int error = refuse_unprotected("listening for questions by UDP (RDMA_PS_UDP)"))
    return Error{error};
  // An application that waits for a request may make no calls until there is one.
  if (int error = context.progress.start_helper()) return Error{error};
  bound.report_local_address();
  std::shared_ptr<SidrListener> listener(
      new SidrListener(context, std::move(bound), port_space, std::move(owner)));
  const Lock guard(listener->mutex_);
  auto registration = context.progress.add(*listener, listener->port_->fd(), EPOLLIN | EPOLLET);
  if (!registration) return Error{registration.error()};
  listener->registration_ = *registration;
  return listener;
}

void SidrListener::close() {
  const Lock guard(mutex_);
  context_.progress.remove(std::exchange(registration_, 0));
  owner_.reset();
  port_.reset();
}

void SidrListener::deadline_passed() { context_.progress.revisit(*this); }

void SidrListener::out_of_memory() {
  context_.progress.set_deadline(*this, now_ns() + kSidrRetryNs);
}

bool SidrListener::ready(uint32_t /*events*/) {
  for (int i = 0; i < kRequestsPerPass; ++i) {
    std::shared_ptr<SidrPort> port;
    {
      const Lock guard(mutex_);
      port = port_;
    }
    if (port == nullptr) return false;
    std::byte bytes[SidrRequest::kWireSize];
    UdpPath path;
    const ssize_t length = port->receive(bytes, path);
    if (length < 0) return false;
    received(port, {bytes, std::min(static_cast<size_t>(length), sizeof bytes)}, path);
  }
  return true;
}

void SidrListener::received(const std::shared_ptr<SidrPort>& port, std::span<const std::byte> bytes,
                            const UdpPath& path) {
  const IpAddress from = ip_of(path.peer);
  if (!settings().allow.allows(from.bytes())) {
    static CollapsedLog log;
    log.event("rdma_cm: %s is not in UWARP_ALLOW", from.to_string().c_str());
    return;
  }
  // What came to more than this host is not answered: all of them would.
  if (path.local.ss_family == AF_UNSPEC) return;
  if (const auto transaction = SidrRequest::of_other_version(bytes))
    return port->refuse(*transaction, path, SidrStatus::kUnknownVersion);
  auto request = SidrRequest::decode(bytes);
  if (!request) return;
  if (request->port_space != port_space_)
    return port->refuse(request->transaction, path, SidrStatus::kUnsupported);
  const SidrTransactions::Key key{from, port_of(path.peer), request->transaction};
  if (!port->enter(key, path)) return;
  std::shared_ptr<SidrCall> call;
  try {
    call = std::make_shared<SidrCall>(port, key, path, std::move(request->private_data));
  } catch (const std::bad_alloc&) {
    port->forget(key);
    throw;
  }
  std::shared_ptr<SidrListenerOwner> owner;
  {
    const Lock guard(mutex_);
    owner = owner_.lock();
  }
  if (owner != nullptr) (void)owner->sidr_requested(std::move(call));
}

}  // namespace uwarp
