// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "connect/sidr_query.h"

#include <sys/epoll.h>

#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/settings.h"
#include "carrier/tls_keys.h"
#include "connect/connect_context.h"
#include "net/ip_address.h"
#include "os/clock.h"

namespace uwarp {

SidrQuery::SidrQuery(ConnectContext& context, UdpSocket bound, const SidrRequest& request,
                     std::weak_ptr<ConnectionOwner> owner)
    : context_(context),
      transaction_(request.transaction),
      request_(request.encode()),
      socket_(std::move(bound)),
      repetition_(now_ns(), settings().connect_timeout_ms * kNsPerMs),
      owner_(std::move(owner)) {}

SidrQuery::~SidrQuery() { abort(); }

Result<std::shared_ptr<SidrQuery>> SidrQuery::start(ConnectContext& context, UdpSocket bound,
                                                    const sockaddr_storage& remote,
                                                    SidrRequest request,
                                                    std::weak_ptr<ConnectionOwner> owner) {
  if (int error = refuse_unprotected("asking for a queue pair by UDP (RDMA_PS_UDP)"))
    return Error{error};
  if (int error = context.progress.start_helper()) return Error{error};
  if (int error = bound.connect(remote)) return Error{error};
  request.transaction = random_word();
  std::shared_ptr<SidrQuery> query(
      new SidrQuery(context, std::move(bound), request, std::move(owner)));
  const Lock guard(query->mutex_);
  auto registration = context.progress.add(*query, query->socket_.fd(), EPOLLIN | EPOLLET);
  if (!registration) return Error{registration.error()};
  query->registration_ = *registration;
  (void)query->socket_.send(query->request_);  // counts as lost if it cannot be sent
  context.progress.set_deadline(*query, query->repetition_.deadline_ns());
  return query;
}

sockaddr_storage SidrQuery::local_address() const {
  const Lock guard(mutex_);
  return socket_.local_address();
}

void SidrQuery::abort() {
  const Lock guard(mutex_);
  (void)finish_locked();
  socket_.close();
}

std::shared_ptr<ConnectionOwner> SidrQuery::finish_locked() {
  over_ = true;
  context_.progress.remove(std::exchange(registration_, 0));
  context_.progress.set_deadline(*this, 0);
  return std::exchange(owner_, {}).lock();
}

void SidrQuery::deadline_passed() {
  Lock guard(mutex_);
  if (over_) return;
  const auto step = repetition_.next(now_ns());
  if (step != SidrRepetition::Step::kGiveUp) {
    if (step == SidrRepetition::Step::kSend) (void)socket_.send(request_);
    context_.progress.set_deadline(*this, repetition_.deadline_ns());
    return;
  }
  const auto owner = finish_locked();
  const sockaddr_storage peer = socket_.remote_address();
  guard.unlock();
  log_event("rdma_cm: %s UDP port %u: no reply within UWARP_CONNECT_TIMEOUT_MS",
            ip_of(peer).to_string().c_str(), port_of(peer));
  if (owner != nullptr) owner->connection_failed({}, -ETIMEDOUT);
}

bool SidrQuery::ready(uint32_t /*events*/) {
  // A peer that answers more than once is not listened to for long.
  constexpr int kRepliesPerPass = 16;
  for (int i = 0; i < kRepliesPerPass; ++i)
    if (!receive_one()) return false;
  return true;
}

bool SidrQuery::receive_one() {
  std::byte bytes[SidrReply::kMostWireSize];
  UdpPath path;
  Lock guard(mutex_);
  if (over_) return false;
  const ssize_t length = socket_.receive(bytes, path);
  if (length == -ECONNREFUSED) {  // ICMP's "port unreachable"
    const bool again = repetition_.again_after_refusal(now_ns());
    if (again)
      context_.progress.set_deadline(*this, repetition_.deadline_ns());
    else
      fail_as(guard, SidrStatus::kUnsupported);
    return again;
  }
  if (length == -EAGAIN) return false;
  if (length < 0) return true;
  auto reply = SidrReply::decode({bytes, std::min(static_cast<size_t>(length), sizeof bytes)});
  if (!reply || reply->transaction != transaction_) return true;
  replied(guard, std::move(*reply));
  return false;
}

void SidrQuery::replied(Lock<Mutex>& guard, SidrReply reply) {
  if (reply.status != SidrStatus::kSuccess && reply.private_data.empty())
    return fail_as(guard, reply.status);
  const auto owner = finish_locked();
  guard.unlock();
  if (owner == nullptr) return;
  if (reply.status != SidrStatus::kSuccess)
    return owner->connection_rejected({}, static_cast<int>(reply.status), reply.private_data);
  ConnectParameters peer;
  peer.qp_number = reply.qp_number;
  peer.qkey = reply.qkey;
  peer.private_data = std::move(reply.private_data);
  owner->connection_established({}, {}, peer);
}

void SidrQuery::fail_as(Lock<Mutex>& guard, SidrStatus status) {
  const auto owner = finish_locked();
  const sockaddr_storage peer = socket_.remote_address();
  guard.unlock();
  log_event("rdma_cm: %s UDP port %u: %s", ip_of(peer).to_string().c_str(), port_of(peer),
            describe(status));
  if (owner != nullptr) owner->connection_rejected({}, static_cast<int>(status), {});
}

}  // namespace uwarp
