// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/connector.h"

#include <netdb.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

namespace rpcrdma::verbs {

namespace {

using Clock = std::chrono::steady_clock;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList look_up(const std::string& host, const std::string& service) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), service.empty() ? nullptr : service.c_str(), &hints, &list) != 0)
    list = nullptr;
  return {list, &freeaddrinfo};
}

struct DestroyId {
  void operator()(rdma_cm_id* id) const { rdma_destroy_id(id); }
};
using Id = std::unique_ptr<rdma_cm_id, DestroyId>;

int error_of(const CmEvent& event) {
  switch (event.type) {
    case RDMA_CM_EVENT_REJECTED:
      return -ECONNREFUSED;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
      return event.status < 0 ? event.status : -EHOSTUNREACH;
    case RDMA_CM_EVENT_CONNECT_ERROR:
      return event.status < 0 ? event.status : -ECONNREFUSED;
    default:
      return -ECONNRESET;
  }
}

}  // namespace

struct Connector::Attempt {
  const Prepare& prepare;
  const Announce& announce;
  const WakeUp& stop;
  Clock::time_point end;

  int remaining_ms() const {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, INT32_MAX));
  }
};

Connector::Outcome Connector::connect(uint32_t limit_ms, const Prepare& prepare,
                                      const Announce& announce, const WakeUp& stop) {
  Outcome outcome;
  outcome.error = -EADDRNOTAVAIL;
  if (channel_.get() == nullptr) {
    outcome.error = -ENODEV;
    return outcome;
  }
  const AddressList addresses = look_up(host_, service_);
  const AddressList source =
      source_.empty() ? AddressList(nullptr, &freeaddrinfo) : look_up(source_, "");
  if (!source_.empty() && source == nullptr) return outcome;
  Attempt attempt{prepare, announce, stop, Clock::now() + std::chrono::milliseconds(limit_ms)};
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    outcome = connect_to(*address, source.get(), attempt);
    if (outcome.error == 0 || outcome.error == -ECANCELED) break;
  }
  return outcome;
}

Connector::Outcome Connector::connect_to(const addrinfo& address, const addrinfo* source,
                                         Attempt& attempt) {
  Outcome outcome;
  rdma_cm_id* made = nullptr;
  if (rdma_create_id(channel_.get(), &made, nullptr, RDMA_PS_TCP) != 0) {
    outcome.error = -errno;
    return outcome;
  }
  Id id(made);
  CmEvent event{};
  const int limit = std::max(1, attempt.remaining_ms());
  if (rdma_resolve_addr(made, source != nullptr ? source->ai_addr : nullptr, address.ai_addr,
                        limit) != 0) {
    outcome.error = -errno;
    return outcome;
  }
  outcome.error = expect(made, RDMA_CM_EVENT_ADDR_RESOLVED, attempt, event);
  if (outcome.error != 0) return outcome;
  if (made->verbs == nullptr) {
    outcome.error = -ENODEV;
    return outcome;
  }
  if (rdma_resolve_route(made, std::max(1, attempt.remaining_ms())) != 0) {
    outcome.error = -errno;
    return outcome;
  }
  outcome.error = expect(made, RDMA_CM_EVENT_ROUTE_RESOLVED, attempt, event);
  if (outcome.error != 0) return outcome;

  // The receives are there before the server is sent their size. RFC 8797-4.2-f.
  outcome.error = attempt.prepare(made, outcome.connection);
  if (outcome.error != 0) return outcome;
  (void)id.release();  // the connection's from here on
  const std::vector<std::byte> announcement = attempt.announce();
  rdma_conn_param parameters{};
  parameters.private_data = announcement.empty() ? nullptr : announcement.data();
  parameters.private_data_len = static_cast<uint8_t>(announcement.size());
  // The server reads, the client does not.
  const auto& limits = outcome.connection->domain()->attributes();
  parameters.responder_resources = static_cast<uint8_t>(std::clamp(limits.max_qp_rd_atom, 1, 128));
  parameters.retry_count = parameters.rnr_retry_count = 7;
  if (rdma_connect(made, &parameters) != 0)
    outcome.error = -errno;
  else
    outcome.error = expect(made, RDMA_CM_EVENT_ESTABLISHED, attempt, event);
  if (outcome.error != 0) outcome.connection.reset();
  outcome.private_data = std::move(event.private_data);
  return outcome;
}

int Connector::expect(rdma_cm_id* id, rdma_cm_event_type type, Attempt& attempt, CmEvent& event) {
  for (;;) {
    while (auto next = channel_.next()) {
      if (next->id != id) continue;  // of a connection that has gone
      event = std::move(*next);
      return event.type == type ? 0 : error_of(event);
    }
    std::array fds{readable(channel_.fd()), readable(attempt.stop.fd())};
    const int ready = ::poll(fds.data(), fds.size(), attempt.remaining_ms());
    if (ready < 0 && errno != EINTR) return -errno;
    if (ready > 0 && fds[1].revents != 0) return -ECANCELED;
    if (ready == 0 && attempt.remaining_ms() == 0) return -ETIMEDOUT;
  }
}

}  // namespace rpcrdma::verbs
