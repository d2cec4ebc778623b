// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Leaving TCP for shared memory, where the peer is a uwarp of the same user on this host. The side
// that has dialled opens a mailbox and names it by TCP, once the stream is busy and the peer has
// shown what it is: a target of Writes may do so long after the stream has become busy. The other
// side answers with a letter from a mailbox of its own, and gets the memory there. It switches
// first. TCP stays for the end of the connection, and carries on if anything fails.
// docs/wire.md, "Shared memory".
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/random.h"
#include "base/settings.h"
#include "connect/connect_context.h"
#include "connect/connection.h"
#include "connect/endpoint.h"
#include "os/collapsed_log.h"
#include "os/pull_cost.h"
#include "os/same_user.h"
#include "protocol/wire/carrier_mark.h"

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
  if (!dialed_) return;  // this end has switched already
  socket_.ring()->take_answer();
  endpoint_->qp().say_to_peer(StreamState::kSwitchDue);
  turn.pump = true;
}

void Connection::offer_carrier(Turn& turn) {
  if (mailbox_ != nullptr || !is_local_address(remote_)) return;
  if (!endpoint_->qp().peer_is_uwarp()) {
    if (endpoint_->qp().peer_has_spoken()) log_reason(remote_, "it is no uwarp");
    return;
  }
  if (!open_mailbox(random_word() & CarrierMark::kValueMask)) return;
  endpoint_->qp().offer_mailbox(mailbox_->name(), mailbox_->number());
  turn.pump = true;
}

void Connection::take_offer() {
  if (dialed_ || mailbox_ != nullptr || !is_local_address(remote_)) return;
  if (!open_mailbox(endpoint_->qp().peer_letter_number())) return;
  if (int error = mailbox_->send(endpoint_->qp().peer_mailbox(), peer_memory_->place(), {}))
    log_refusal(remote_, error);
}

// Once per connection. A mailbox is closed by an errand.
bool Connection::open_mailbox(uint64_t number) {
  if (context_.errands.crowded()) return false;
  peer_memory_ = std::make_unique<PeerMemory>(pulls_pay());
  auto mailbox = Mailbox::open({context_.progress, context_.errands}, number, shared());
  if (mailbox)
    mailbox_ = std::move(*mailbox);
  else
    log_refusal(remote_, mailbox.error());
  return mailbox_ != nullptr;
}

void Connection::mail_arrived(Mailbox& mailbox, Mail& mail) {
  Turn turn(*this);
  const bool brings = dialed_;
  auto peer = std::move(peer_memory_);
  turn.lock.unlock();
  if (peer == nullptr) return;
  if (!is_own_user(mail.uid)) return log_refusal(remote_, EPERM);
  auto made = brings ? make_carrier(context_.errands, mail, std::move(peer))
                     : adopt_carrier(context_.errands, mail, std::move(peer));
  if (!made) return log_refusal(remote_, made.error());
  turn.lock.lock();
  RingCarrier* const ring = join_carrier(std::move(made->ring));
  if (ring != nullptr && brings) {
    const int fds[] = {ring->memory_fd(), made->peer_bell.fd()};
    if (int error = mailbox.send(mail.letter.reply_to, made->secret, fds))
      log_refusal(remote_, error);
  } else if (ring != nullptr) {
    endpoint_->qp().say_to_peer(StreamState::kSwitchDue);
    turn.pump = true;
  }
  if (ring != nullptr) ring->close_memory_fd();
  finish(turn, Calls::kLater);
}

Result<Connection::Carrier> Connection::make_carrier(Errands& errands, const Mail& mail,
                                                     std::unique_ptr<PeerMemory> peer) {
  auto memory = SharedMemory::create(RingCarrier::kSharedBytes);
  if (!memory) return Error{memory.error()};
  auto bells = RingBell::pair();
  if (!bells) return Error{bells.error()};
  const PeerMemory::Place secret = peer->place();
  auto ring = std::make_unique<RingCarrier>(std::move(*memory), true, std::move(bells->first),
                                            std::move(peer), errands);
  if (pulls_pay()) ring->ask_peer(mail.pid, mail.letter.secret);
  return Carrier{std::move(ring), std::move(bells->second), secret};
}

// A peer that has not shown that it may read our memory might make this thread wait.
Result<Connection::Carrier> Connection::adopt_carrier(Errands& errands, Mail& mail,
                                                      std::unique_ptr<PeerMemory> peer) {
  if (mail.fds.size() != 2) return Error{EPROTO};
  auto memory = SharedMemory::adopt(mail.fds[0], RingCarrier::kSharedBytes);
  if (!memory) return Error{memory.error()};
  auto bell = RingBell::adopt(mail.fds[1], errands);
  if (!bell) return Error{EPROTO};
  auto ring = std::make_unique<RingCarrier>(std::move(*memory), false, std::move(*bell),
                                            std::move(peer), errands);
  if (pulls_pay() && ring->take_answer()) {
    ring->ask_peer(mail.pid, mail.letter.secret);
    ring->take_answer();
  }
  return Carrier{std::move(ring), RingBell(), {}};
}

// Null: the connection has left the stream meanwhile, or cannot wait for the bell.
RingCarrier* Connection::join_carrier(std::unique_ptr<RingCarrier> carrier) {
  if (life() == nullptr || endpoint_ == nullptr || socket_.ring() != nullptr) return nullptr;
  RingCarrier& ring = *carrier;
  if (int error = socket_.watch_ring(*this, std::move(carrier))) {
    log_refusal(remote_, error);
    return nullptr;
  }
  if (!endpoint_->stream().join_ring(ring)) return nullptr;
  life()->on_busy_ring(now_ns());
  return &ring;
}

}  // namespace uwarp
