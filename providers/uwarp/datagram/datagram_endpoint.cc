// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "datagram/datagram_endpoint.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "base/mutex.h"
#include "connect/connect_context.h"
#include "connect/rendezvous_port.h"
#include "datagram/trunk.h"
#include "datagram/trunks.h"
#include "os/clock.h"
#include "stream/poller.h"

namespace uwarp {

DatagramEndpoint::DatagramEndpoint(Trunks& trunks, std::shared_ptr<const NetDevice> device,
                                   QpNumberLease place, const QpConfig& config)
    : AnyEndpoint(std::move(place)),
      trunks_(trunks),
      device_(std::move(device)),
      qp_(place_.complete(config)) {
  place_.show(config, *device_);
  trunks_.endpoint_made();
}

DatagramEndpoint::~DatagramEndpoint() { destroy(); }

Result<std::shared_ptr<DatagramEndpoint>> DatagramEndpoint::create(
    Trunks& trunks, std::shared_ptr<const NetDevice> device, const QpConfig& config) {
  auto place = QpNumberLease::reserve(trunks.context(), *device);
  if (!place) return Error{place.error()};
  std::shared_ptr<DatagramEndpoint> endpoint(
      new DatagramEndpoint(trunks, std::move(device), std::move(*place), config));
  for (CompletionQueue* queue : {config.recv_cq, config.send_cq})
    PollGroup::of(*queue).share(trunks.group());
  trunks.endpoints().enter(endpoint->number(), endpoint);
  return endpoint;
}

// --- States

int DatagramEndpoint::modify(const ibv_qp_attr& attributes, int mask) {
  if (!trunks_.context().alive()) return EINVAL;
  const Lock lock(mutex_);
  if (destroyed_) return EINVAL;
  const QpState from = qp_.state();
  const QpState to = (mask & IBV_QP_STATE) != 0 ? static_cast<QpState>(attributes.qp_state) : from;
  if (change_of({.transport = Transport::kUd, .state = from}, attributes, mask) != QpChange::kMake)
    return EINVAL;
  if (to == QpState::kReset) {
    attributes_ = initial_attributes();
    qp_.to_reset();
    return 0;
  }
  if (to == QpState::kErr) {
    qp_.to_error();
    return 0;
  }
  if (to == QpState::kInit && from == QpState::kReset) {
    if (int error = place_.become_callable()) return error;
  }
  merge_attributes(attributes_, attributes, mask);
  qp_.set_qkey(attributes_.qkey);
  if (from == to) return 0;
  qp_.move_to(to);
  if (to == QpState::kRts) go_on();
  // All requests that were begun have been sent: there is nothing to wait for.
  if (to == QpState::kSqd && attributes_.en_sqd_async_notify != 0 &&
      qp_.config().listener != nullptr)
    qp_.config().listener->qp_event(QpEvent::kSqDrained);
  return 0;
}

void DatagramEndpoint::destroy() {
  if (!trunks_.context().alive()) return;
  {
    const Lock guard(mutex_);
    if (std::exchange(destroyed_, true)) return;
  }
  trunks_.groups().leave_all(*this);
  qp_.to_reset();
  trunks_.endpoints().leave(number());
  place_.give_back();
  trunks_.endpoint_gone();
}

// --- Sending

DatagramEndpoint::Poster::Poster(DatagramEndpoint& endpoint)
    : endpoint_(endpoint), lock_(endpoint.qp_.post_lock()) {}

void DatagramEndpoint::Poster::note(const std::shared_ptr<DatagramPath>& path) {
  for (size_t i = count_; i-- > 0;)
    if (paths_[i] == path) return;
  if (count_ == kCapacity) return path->flush_soon();  // a flush now would be under the lock
  paths_[count_++] = path;
}

int DatagramEndpoint::Poster::post(const SendRequest& request, Destination& to, Qpn number,
                                   uint32_t qkey) {
  DatagramTarget target;
  try {
    target.path = to.group != nullptr ? to.group : endpoint_.trunks_.path_to(to, number, endpoint_);
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
  target.number = number;
  target.qkey = qkey;
  target.traffic_class = to.traffic_class;
  target.hop_limit = to.hop_limit;
  if (int error = endpoint_.qp_.post_send_locked(request, target)) return error;
  note(target.path);
  return 0;
}

DatagramEndpoint::Poster::~Poster() noexcept(false) {
  const bool blocked = !settled_ && endpoint_.qp_.blocked_on() != nullptr;
  lock_.unlock();
  for (size_t i = 0; i < count_; ++i) paths_[i]->flush();
  if (blocked) endpoint_.go_on();
}

void DatagramEndpoint::space_came() {
  {
    const Lock lock(qp().post_lock());
    waiting_ = false;
  }
  go_on();
}

// Sends what waits as far as there is room, and gets in line for the rest.
void DatagramEndpoint::go_on() {
  for (;;) {
    std::shared_ptr<DatagramPath> blocked;
    {
      Poster poster(*this);
      poster.settled_ = true;
      if (waiting_) return;
      qp().send_waiting_locked([&](const auto& path) { poster.note(path); });
      blocked = qp().blocked_on();
      waiting_ = blocked != nullptr;
    }
    if (blocked == nullptr) return;
    if (blocked->wait_for_space(shared_from_this())) return;
    const Lock lock(qp().post_lock());
    waiting_ = false;
  }
}

}  // namespace uwarp
