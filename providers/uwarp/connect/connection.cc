// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A connection in FPDU mode and at its end, and the turns in between: edges, deadlines, calls.
#include "connect/connection.h"

#include <sys/resource.h>

#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/settings.h"
#include "connect/connect_context.h"
#include "connect/endpoint.h"
#include "connect/listener.h"
#include "os/clock.h"
#include "os/collapsed_log.h"

namespace uwarp {
namespace {

/// Bytes read and dropped per turn.
constexpr size_t kReadAwayBytes = size_t{1} << 20;

}  // namespace

Connection::Connection(ConnectContext& context, std::weak_ptr<ConnectionOwner> owner)
    : context_(context), socket_(context.progress), calls_(std::move(owner)) {}

Connection::~Connection() {
  // A request that the owner has not answered is rejected. No other thread can be here any more.
  PassiveStartup* const startup = passive();
  if (startup == nullptr || !startup->requested()) return;
  try {
    (void)send_reply(startup->responder().reject({}).bytes);
  } catch (const std::bad_alloc&) {  // then the end says it
  }
}

// --- Calls

int Connection::disconnect() {
  Turn turn(*this);
  Life* const open = life();
  if (open == nullptr) return calls_.was_established() ? 0 : EINVAL;
  Life::Next next;
  if (int error = open->on_disconnect(next, now_ns())) return error;
  follow(turn, next);
  finish(turn, Calls::kLater);
  return 0;
}

void Connection::endpoint_gone() {
  Turn turn(*this);
  if (const Life* const open = life()) {
    calls_.tell_end();
    // Where ERR is how applications disconnect, the rest of what they sent must still arrive: a
    // close with unread bytes would reset the connection.
    if (settings().persona == Persona::kRoce && !open->rendezvous())
      drain(turn);
    else
      close(turn, CloseMode::kGentle);
  } else if (endpoint_ != nullptr) {
    calls_.tell(OwnerCalls::kFailed, -ECONNABORTED);
    close(turn, CloseMode::kReset);
  }
  finish(turn, Calls::kLater);
}

void Connection::abort() {
  Turn turn(*this);
  calls_.drop_owner();
  const std::shared_ptr<Endpoint> failed =
      life() != nullptr && !life()->rendezvous() ? endpoint_ : nullptr;
  leave_endpoint(turn);
  if (failed != nullptr) {
    log_event("qp %#x: in ERR, as its connection is given up", failed->number().value);
    failed->qp().to_error();
  }
  if (!std::holds_alternative<Draining>(state_)) close(turn, CloseMode::kReset);
}

bool Connection::abandon_before_request() {
  Turn turn(*this);
  const bool closed = std::holds_alternative<Closed>(state_);
  if (!closed && (active() == nullptr || active()->requesting())) return false;
  calls_.drop_owner();
  close(turn, CloseMode::kReset);
  return true;
}

void Connection::drop_owner() {
  const Turn turn(*this);
  calls_.drop_owner();
}

// --- FPDU mode

void Connection::established(ConnectParameters peer) {
  const StreamConfig& config = endpoint_->qp().stream();
  peer.initiator_depth = without_reserve(config.ird, acknowledged());
  peer.responder_resources = config.ord;
  calls_.tell(OwnerCalls::kEstablished, 0, std::move(peer));
}

void Connection::on_events(const StreamEvents& notice) {
  const bool kept = (notice.outcome & kRxKept) != 0;
  if (kept) [[unlikely]]
    context_.xrc_senders.take_acknowledgements();
  Turn turn(*this);
  if (Life* const open = life()) {
    if (kept && !endpoint_->complete_kept()) [[unlikely]]
      request_turn();
    if ((notice.outcome & kRxNewQueue) != 0) [[unlikely]]
      endpoint_->follow_receives();
    follow(turn, open->on_events(notice, now_ns()));
  }
  if (notice.busy || (notice.outcome & (kRxMagic | kRxOffer | kRxSwitch)) != 0)
    follow_carrier(turn, notice);
  finish(turn);
}

void Connection::follow(Turn& turn, const Life::Next& next) {
  turn.pump |= next.pump;
  if (next.turn) request_turn();
  if (next.established) established({});
  if (next.tell_end || next.leave != Life::Leave::kStay) calls_.tell_end();
  if (next.leave == Life::Leave::kDrain) drain(turn);
  if (next.leave == Life::Leave::kGentle) close(turn, CloseMode::kGentle);
  if (next.leave == Life::Leave::kReset) close(turn, CloseMode::kReset);
}

void Connection::transmit_before_long() {
  Turn turn(*this);
  if (Life* const open = life()) open->on_post_waits(now_ns());
  update_deadline(turn);
}

// --- The end

// Frees the queue pair. On return no thread moves bytes for it any more on our behalf, and the next
// state is to be entered.
void Connection::leave_endpoint(Turn& /*turn*/) {
  if (endpoint_ == nullptr) return;
  if (open_) endpoint_->close_stream();
  if (mailbox_ != nullptr) mailbox_->close();
  endpoint_->release(*this);
  std::shared_ptr<Endpoint> left;
  const std::lock_guard guard(endpoint_lock_);
  open_ = false;
  left.swap(endpoint_);
}

// Sends our FIN. What the peer still sends is read and dropped until its FIN, for some time.
void Connection::drain(Turn& turn) {
  const bool due = acknowledged();
  leave_endpoint(turn);
  state_ = Draining(due, now_ns());
  if (!due) socket_.tcp().set_reset_on_close(false);
  socket_.shutdown();
  read_away(turn);
  if (!std::holds_alternative<Draining>(state_)) return;
  rlimit open_files{};
  (void)getrlimit(RLIMIT_NOFILE, &open_files);
  turn.displaced =
      context_.draining.enter(shared(), draining_places(open_files.rlim_cur)).value_or(nullptr);
}

void Connection::read_away(Turn& turn) {
  const ssize_t count = socket_.tcp().discard(kReadAwayBytes);
  if (count > 0) return request_turn();
  if (count != -EAGAIN) close(turn, std::get<Draining>(state_).on_end(count));
}

void Connection::stop_draining() {
  Turn turn(*this);
  if (!std::holds_alternative<Draining>(state_)) return;
  static CollapsedLog log;
  log.event(
      "connection: the peer %s has not closed its end, and too many others have not either: reset "
      "(a quarter of the files that may be open, ulimit -n)",
      ip_of(remote_).to_string().c_str());
  close(turn, CloseMode::kReset);
}

void Connection::close(Turn& turn, CloseMode mode) {
  leave_endpoint(turn);
  if (std::holds_alternative<Draining>(state_)) (void)context_.draining.leave(shared());
  if (PassiveStartup* const startup = passive()) {
    if (startup->reading()) turn.listener = startup->listener();
    state_ = Closed{startup->peer_left()};
  } else if (!std::holds_alternative<Closed>(state_)) {
    state_ = Closed{};
  }
  update_deadline(turn);
  socket_.close(mode);
}

// --- Turns

Deadline Connection::deadline() const {
  const auto of = [](const auto& state) {
    if constexpr (requires { state->deadline(); })
      return state->deadline();
    else
      return state.deadline();
  };
  return std::visit(of, state_);
}

void Connection::update_deadline(Turn& /*turn*/) {
  const uint64_t before_ns = std::exchange(deadline_ns_, deadline().at_ns);
  if (deadline_ns_ != before_ns) context_.progress.set_deadline(*this, deadline_ns_);
}

void Connection::finish(Turn& turn, Calls when) {
  update_deadline(turn);
  const bool later = when == Calls::kLater && context_.progress.helper_running();
  const bool turn_due = later && (turn.pump || calls_.due());
  const auto pumped = turn.pump && !later && open_ ? endpoint_ : nullptr;
  const bool requested = passive() != nullptr;
  if (calls_.due() && !later) calls_.make(turn.lock, shared(), local_);
  turn.lock.unlock();
  if (turn.displaced != nullptr) turn.displaced->stop_draining();
  if (turn.listener != nullptr) turn.listener->half_open_done(shared(), requested);
  if (turn_due) request_turn();
  if (pumped != nullptr) pumped->stream().on_edge(0);
}

void Connection::deadline_passed() {
  Turn turn(*this);
  deadline_ns_ = ~uint64_t{0};  // Progress has dropped it, or another one was set meanwhile
  const uint64_t now = now_ns();
  Life::Next next;
  const std::shared_ptr<Endpoint> endpoint = open_ ? endpoint_ : nullptr;
  if (ActiveStartup* const startup = active()) {
    follow(turn, *startup, startup->on_deadline(now));
  } else if (PassiveStartup* const listening = passive()) {
    if (listening->on_deadline(now)) close(turn, CloseMode::kReset);
  } else if (Life* const open = life()) {
    next = open->on_deadline(now);
    follow(turn, next);
  } else if (auto* const draining = std::get_if<Draining>(&state_)) {
    if (draining->on_deadline(socket_.tcp(), now)) close(turn, CloseMode::kReset);
  }
  finish(turn);
  if (next.transmit_overdue) endpoint->stream().transmit_overdue();
  if (next.release) endpoint->script_deadline_passed();
  if (next.expire) endpoint->stream().expire();
}

bool Connection::acknowledged() const { return endpoint_->qp().config().acknowledged; }

void Connection::request_turn() { context_.progress.revisit(*this); }

std::shared_ptr<Endpoint> Connection::open_endpoint() const {
  const std::lock_guard guard(endpoint_lock_);
  return open_ ? endpoint_ : nullptr;
}

bool Connection::look() {
  const auto endpoint = open_endpoint();
  return endpoint != nullptr && endpoint->stream().look();
}

int Connection::waker_core() {
  const auto endpoint = open_endpoint();
  return endpoint != nullptr ? endpoint->stream().waker_core() : -1;
}

// Not before end_quiet() finds the stream.
bool Connection::request_quiet() {
  return open_endpoint() != nullptr && context_.progress.quieten(*this);
}

void Connection::end_quiet() {
  if (const auto endpoint = open_endpoint()) endpoint->stream().end_quiet();
}

bool Connection::looked_at() {
  const auto endpoint = open_endpoint();
  return endpoint != nullptr && endpoint->stream().looked_at();
}

bool Connection::ready(uint32_t events) {
  if (const auto endpoint = open_endpoint()) {
    endpoint->stream().on_edge(events);
    if (!calls_.due()) return false;
  }
  Turn turn(*this);
  if (ActiveStartup* const startup = active()) {
    edge(turn, *startup, events);
  } else if (passive() != nullptr) {
    read_request(turn);
    if (passive() != nullptr) watch_requested(*passive());
  } else if (std::holds_alternative<Draining>(state_)) {
    read_away(turn);
  } else if (life() != nullptr && events != 0) {
    turn.pump = true;  // it became open while this edge waited for the mutex
  }
  finish(turn);
  return false;
}

void Connection::out_of_memory() {
  Turn turn(*this);
  if (ActiveStartup* const startup = active())
    follow(turn, *startup, startup->on_failed(ENOMEM, now_ns()));
  else if (Life* const open = life())
    follow(turn, open->on_out_of_memory(now_ns()));
  else if (!std::holds_alternative<Closed>(state_))
    close(turn, CloseMode::kReset);
  finish(turn);
}

}  // namespace uwarp
