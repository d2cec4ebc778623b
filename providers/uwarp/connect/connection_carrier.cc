// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Leaving TCP for shared memory, where the peer is a uwarp of the same user on this host. The side
// that has dialled offers it once the stream is busy and the peer has shown what it is: a target of
// Writes may do so long after the stream has become busy. The other side brings the memory. The
// first one switches, then the other. TCP stays for the end of the connection, and carries on if
// anything fails. docs/wire.md, "Shared memory".
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/settings.h"
#include "connect/connect_context.h"
#include "connect/connection.h"
#include "connect/endpoint.h"
#include "os/collapsed_log.h"
#include "os/pull_cost.h"

namespace uwarp {
namespace {

void log_reason(const sockaddr_storage& peer, const char* why) {
  static CollapsedLog log;
  log.event("connection: to %s by TCP, not by shared memory: %s", ip_of(peer).to_string().c_str(),
            why);
}

void log_refusal(const sockaddr_storage& peer, int error) {
  log_reason(peer, error == ECONNREFUSED ? "it is in another network namespace"
                   : error == EPERM      ? "it is of another user"
                                         : std::strerror(error));
}

}  // namespace

// Only for peers on this host: with all others users expect TCP.
void Connection::log_carrier() const {
  const char* const why = settings().why_only_tcp();
  if (why != nullptr && is_local_address(remote_)) log_reason(remote_, why);
}

void Connection::follow_carrier(Turn& turn, const StreamEvents& notice) {
  if (life() == nullptr || endpoint_ == nullptr) return;
  was_busy_ |= notice.busy;
  const bool shown = (notice.outcome & kRxMagic) != 0;
  if (socket_.ring() != nullptr) {
    if (notice.busy) life()->on_busy_ring(now_ns());
  } else if (notice.busy || (shown && was_busy_)) {
    offer_carrier(turn);
  }
  if ((notice.outcome & kRxOffer) != 0) take_offer();
  if ((notice.outcome & kRxSwitch) == 0 || !endpoint_->stream().on_ring()) return;
  endpoint_->describe_carrier(true);
  log_event("qp %#x: shared memory carries what comes from here on", endpoint_->number().value);
  if (dialed_) return;  // this end has switched already
  endpoint_->qp().say_to_peer(StreamState::kSwitchDue);
  turn.pump = true;
}

void Connection::offer_carrier(Turn& turn) {
  if (ticket_ != 0 || !is_local_address(remote_)) return;
  if (!endpoint_->qp().peer_is_uwarp()) {
    if (endpoint_->qp().peer_has_spoken()) log_reason(remote_, "it is no uwarp");
    return;
  }
  const auto ticket = context_.door->expect(std::weak_ptr<Connection>(shared()));
  if (!ticket) return log_refusal(remote_, ticket.error());
  ticket_ = ticket->number;
  endpoint_->qp().offer_memory(ticket->door, ticket->number);
  turn.pump = true;
}

void Connection::take_offer() {
  if (dialed_ || socket_.ring() != nullptr || !is_local_address(remote_)) return;
  auto delivery = LocalDoor::bring({endpoint_->qp().peer_door(), endpoint_->qp().peer_ticket()});
  if (!delivery) return log_refusal(remote_, delivery.error());
  if (!join_carrier(std::move(delivery->carrier))) return;
  if (int error = LocalDoor::hand_over(*delivery, *socket_.ring())) log_refusal(remote_, error);
}

bool Connection::join_carrier(std::unique_ptr<RingCarrier> carrier) {
  if (pulls_pay()) carrier->look_whether_it_can_pull();
  carrier->show_wake_fd(context_.progress.wake_fd());
  RingCarrier& ring = *carrier;
  if (int error = socket_.watch_ring(*this, std::move(carrier))) {
    log_refusal(remote_, error);
    return false;
  }
  if (!endpoint_->stream().join_ring(ring)) return false;
  life()->on_busy_ring(now_ns());
  return true;
}

void Connection::carrier_arrived(std::unique_ptr<RingCarrier> carrier) {
  Turn turn(*this);
  if (life() != nullptr && endpoint_ != nullptr && socket_.ring() == nullptr &&
      join_carrier(std::move(carrier))) {
    endpoint_->qp().say_to_peer(StreamState::kSwitchDue);
    turn.pump = true;
  }
  finish(turn);
}

}  // namespace uwarp
