// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A connection in FPDU mode and at its end, and the turns in between: edges, deadlines, calls.
#include "connect/connection.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/settings.h"
#include "connect/connect_context.h"
#include "connect/endpoint.h"
#include "connect/listener.h"
#include "inject/process_faults.h"
#include "os/clock.h"
#include "os/output_file.h"
#include "os/pull_cost.h"
#include "os/same_user.h"
#include "protocol/mpa/fpdu.h"
#include "protocol/wire/control_writes.h"

namespace uwarp {

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
  Connected* const open = connected();
  if (open == nullptr) return calls_.was_established() ? 0 : EINVAL;
  Connected::Next next;
  if (int error = open->on_disconnect(next, now_ns())) return error;
  follow(turn, next);
  finish(turn, Calls::kLater);
  return 0;
}

void Connection::endpoint_gone() {
  Turn turn(*this);
  if (const Connected* const open = connected()) {
    calls_.notify_end();
    // Where ERR is how applications disconnect, the rest of what they sent must still arrive: a
    // close with unread bytes would reset the connection.
    if (settings().persona == Persona::kRoce && !open->rendezvous())
      drain(turn);
    else
      close(turn, CloseMode::kGentle);
  } else if (endpoint_ != nullptr) {
    calls_.notify(OwnerCalls::kFailed, -ECONNABORTED);
    close(turn, CloseMode::kReset);
  }
  finish(turn, Calls::kLater);
}

void Connection::abort() {
  Turn turn(*this);
  calls_.drop_owner();
  const std::shared_ptr<Endpoint> failed =
      connected() != nullptr && !connected()->rendezvous() ? endpoint_ : nullptr;
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

void Connection::answer_within_ms(uint32_t wait_ms) {
  Turn turn(*this);
  if (PassiveStartup* const startup = passive()) startup->answer_until(Deadline::after_ms(wait_ms));
  finish(turn);
}

bool Connection::has_reached_peer() {
  const Lock lock(mutex_);
  return active() != nullptr && socket_.tcp().is_established();
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
  calls_.notify(OwnerCalls::kEstablished, 0, std::move(peer));
}

void Connection::on_events(const StreamEvents& notice) {
  const bool deferred = (notice.outcome & kRxDeferred) != 0;
  if (deferred) [[unlikely]]
    context_.xrc_senders.take_acknowledgements();
  Turn turn(*this);
  if ((notice.outcome & kRxPersona) != 0) [[unlikely]]
    compare_personas();
  if (Connected* const open = connected()) {
    if (deferred && !endpoint_->complete_deferred()) [[unlikely]]
      schedule();
    if ((notice.outcome & kRxNewQueue) != 0) [[unlikely]]
      endpoint_->follow_receives();
    if (notice.ended) log_tls_failure();
    follow(turn, open->on_events(notice, now_ns()));
  }
  if (notice.busy || (notice.outcome & (kRxMagic | kRxOffer | kRxSwitch)) != 0)
    follow_carrier(turn, notice);
  finish(turn);
}

void Connection::follow(Turn& turn, const Connected::Next& next) {
  turn.pump |= next.pump;
  if (next.turn) schedule();
  if (next.established) established({});
  if (next.notify_end || next.leave != Connected::Leave::kStay) calls_.notify_end();
  if (next.leave == Connected::Leave::kDrain) drain(turn);
  if (next.leave == Connected::Leave::kGentle) close(turn, CloseMode::kGentle);
  if (next.leave == Connected::Leave::kReset) close(turn, CloseMode::kReset);
}

void Connection::transmit_before_long() {
  Turn turn(*this);
  if (Connected* const open = connected()) open->on_post_waits(now_ns());
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
  const Lock guard(endpoint_lock_);
  open_ = false;
  left.swap(endpoint_);
}

// Sends our FIN. What the peer still sends is read and dropped until its FIN, for some time: a
// reset would overtake our Terminate. RFC 5040-6.2.1-d, 5041-3-10, 5041-6.2.1-e.
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
  constexpr size_t kBytesPerTurn = size_t{1} << 20;
  const ssize_t count = socket_.tcp().discard(kBytesPerTurn);
  if (count > 0) return schedule();
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

void Connection::update_deadline(Turn& /*turn*/) {
  const auto of = [](const auto& state) {
    if constexpr (requires { state->deadline(); })
      return state->deadline();
    else
      return state.deadline();
  };
  const uint64_t before_ns = std::exchange(deadline_ns_, std::visit(of, state_).at_ns);
  if (deadline_ns_ != before_ns) context_.progress.set_deadline(*this, deadline_ns_);
}

void Connection::finish(Turn& turn, Calls when) NO_THREAD_SAFETY_ANALYSIS {
  update_deadline(turn);
  const bool later = when == Calls::kLater && context_.progress.helper_running();
  const bool turn_due = later && (turn.pump || calls_.due());
  const auto pumped = turn.pump && !later && open_ ? endpoint_ : nullptr;
  const bool requested = passive() != nullptr;
  if (calls_.due() && !later) calls_.make(turn.lock, shared(), local_);
  turn.lock.unlock();
  if (turn.displaced != nullptr) turn.displaced->stop_draining();
  if (turn.listener != nullptr) turn.listener->half_open_done(shared(), requested);
  if (turn_due) schedule();
  if (pumped != nullptr) pumped->stream().on_edge(0);
}

void Connection::deadline_passed() {
  Turn turn(*this);
  deadline_ns_ = ~uint64_t{0};  // Progress has dropped it, or another one was set meanwhile
  const uint64_t now = now_ns();
  Connected::Next next;
  const std::shared_ptr<Endpoint> endpoint = open_ ? endpoint_ : nullptr;
  if (ActiveStartup* const startup = active()) {
    const ActiveStartup::Next then = startup->on_deadline(now);
    if (then == ActiveStartup::Next::kOver && socket_.securing()) {
      socket_.tls()->note_stall();
      log_tls_failure();
    }
    follow(turn, *startup, then);
  } else if (PassiveStartup* const listening = passive()) {
    if (listening->on_deadline(now)) close(turn, CloseMode::kReset);
  } else if (Connected* const open = connected()) {
    next = open->on_deadline(now);
    follow(turn, next);
  } else if (auto* const draining = std::get_if<Draining>(&state_)) {
    if (draining->on_deadline(socket_.tcp(), now)) close(turn, CloseMode::kReset);
  }
  finish(turn);
  if (next.transmit_overdue) endpoint->stream().transmit_overdue();
  if (next.release) endpoint->script_deadline_passed();
  if (next.expire) endpoint->stream().expire();
  if (next.wire) endpoint->stream().on_wire_deadline();
}

bool Connection::acknowledged() const { return endpoint_->qp().config().acknowledged; }

void Connection::schedule() { context_.progress.revisit(*this); }

std::shared_ptr<Endpoint> Connection::open_endpoint() const NO_THREAD_SAFETY_ANALYSIS {
  const Lock guard(endpoint_lock_);
  return open_ ? endpoint_ : nullptr;
}

bool Connection::poll() {
  const auto endpoint = open_endpoint();
  return endpoint != nullptr && endpoint->stream().poll();
}

int Connection::waker_core() {
  const auto endpoint = open_endpoint();
  return endpoint != nullptr ? endpoint->stream().waker_core() : -1;
}

// Not before unmute() finds the stream.
bool Connection::request_mute() {
  return open_endpoint() != nullptr && context_.progress.mute(*this);
}

void Connection::unmute() {
  if (const auto endpoint = open_endpoint()) endpoint->stream().unmute();
}

bool Connection::polled_since() {
  const auto endpoint = open_endpoint();
  return endpoint != nullptr && endpoint->stream().polled_since();
}

bool Connection::ready(uint32_t events) {
  if (const auto endpoint = open_endpoint()) {
    endpoint->stream().on_edge(events);
    if (!calls_due()) return false;
  }
  Turn turn(*this);
  if (ActiveStartup* const startup = active()) {
    edge(turn, *startup, events);
  } else if (passive() != nullptr) {
    read_request(turn);
    if (passive() != nullptr) watch_requested(*passive());
  } else if (std::holds_alternative<Draining>(state_)) {
    read_away(turn);
  } else if (connected() != nullptr && events != 0) {
    turn.pump = true;  // it became open while this edge waited for the mutex
  }
  finish(turn);
  return false;
}

void Connection::out_of_memory() {
  Turn turn(*this);
  if (ActiveStartup* const startup = active())
    follow(turn, *startup, startup->on_failed(ENOMEM, now_ns()));
  else if (Connected* const open = connected())
    follow(turn, open->on_out_of_memory(now_ns()));
  else if (!std::holds_alternative<Closed>(state_))
    close(turn, CloseMode::kReset);
  finish(turn);
}

// The hand-over from the start-up to FPDU mode: what the stream begins with.

namespace {

/// If neither the queue pair nor UWARP_PEER_TIMEOUT_MS says anything (rdma_cm sets no timeout on
/// iWARP).
constexpr uint32_t kDefaultPeerTimeoutMs = 30'000;
/// What a queue pair's own timeout is raised to. It is meant for a network that never loses
/// packets; TCP needs some retransmissions of up to a second each before silence means anything.
constexpr uint32_t kLeastPeerTimeoutMs = 5'000;

/// Null: UWARP_FAULT orders none.
std::shared_ptr<WireLink> wire_between(const sockaddr_storage& own, const sockaddr_storage& peer) {
  ProcessFaults* const faults = ProcessFaults::instance();
  if (faults == nullptr || !faults->wires().any()) return nullptr;
  return faults->wires().between(ip_of(own).bytes(), ip_of(peer).bytes());
}

void log_wire(Qpn number, const Wire& wire) {
  const WireTerms& terms = wire.terms();
  std::string rate = "no limit of the rate";
  if (terms.bits_per_second != 0)
    rate = "rate " + std::to_string(terms.bits_per_second) + " bit/s, queue " +
           std::to_string(wire.queue_bytes()) + " bytes";
  log_event("qp %#x: over a wire: latency %llu us, jitter %llu us, %s", number.value,
            static_cast<unsigned long long>(terms.latency_ns / 1000),
            static_cast<unsigned long long>(terms.jitter_ns / 1000), rate.c_str());
}

}  // namespace

StreamConfig Connection::stream_config(const Agreed& agreed) {
  const MpaNegotiated& negotiated = agreed.negotiated;
  StreamConfig config;
  config.crc = negotiated.crc;
  config.ord = config.read_depth = negotiated.ord;
  config.ird = negotiated.ird;
  // The peer may have granted the one that is kept for acknowledgements.
  if (acknowledged()) config.ord = std::min(config.ord, agreed.initiator_depth);
  config.wait_for_first_fpdu = !agreed.initiator;
  config.silent_fin = agreed.rendezvous;
  // The private data of a rendezvous says that the peer is a uwarp. An answer to a control Write
  // could reach a peer that has sent its one message and gone, which would answer by RST.
  config.peer_is_uwarp = agreed.rendezvous;
  config.answer_magic = !agreed.initiator && !agreed.rendezvous;
  config.magic_stag = kPeerMagicStag;
  config.magic_offset = kPeerMagicOffset;
  if (!agreed.rendezvous) config.persona = PersonaWrite::of(settings().persona);
  config.may_leave_tcp = settings().why_only_tcp() == nullptr;
  if (agreed.initiator) {
    if (negotiated.rtr == RtrKind::kWrite) config.rtr = StreamConfig::Rtr::kWrite;
    if (negotiated.rtr == RtrKind::kRead) config.rtr = StreamConfig::Rtr::kRead;
    config.rtr_stag = kPeerMagicStag;
    config.rtr_offset = kPeerMagicOffset;
    config.nudge_first_fpdu = !agreed.rendezvous;
  }
  // Peers that ask for CRCs look like adapters, which want one FPDU per segment.
  if (settings().fpdu_bytes != 0) {
    config.mulpdu = static_cast<uint16_t>(settings().fpdu_bytes);
  } else if (agreed.peer_wants_crc && !agreed.rendezvous) {
    config.mulpdu = static_cast<uint16_t>(mulpdu_for(socket_.tcp().segment_bytes()));
  }
  return config;
}

void Connection::reply_accepted(Turn& turn, ActiveStartup& startup) {
  const MpaInitiator& initiator = startup.initiator();
  const auto bytes = initiator.private_data();
  ConnectParameters peer;
  peer.private_data.assign(bytes.begin(), bytes.end());
  const Agreed agreed{initiator.negotiated(), initiator.reply().crc,
                      startup.parameters().initiator_depth, startup.options().rendezvous, true};
  if (int error = open_stream(turn, agreed))
    return follow(turn, startup, startup.on_failed(error, now_ns()));
  established(std::move(peer));
}

// If it succeeds, the start-up has been destroyed. 0 or an errno.
int Connection::open_stream(Turn& turn, const Agreed& agreed) {
  dialed_ = agreed.initiator;
  const uint32_t own_ms = settings().peer_timeout_ms != 0 ? 0 : endpoint_->peer_timeout_ms();
  Connected::Terms terms;
  terms.rendezvous = agreed.rendezvous;
  terms.acknowledged = acknowledged();
  terms.unreliable = is_unreliable(endpoint_->qp().config().transport);
  terms.nudges = agreed.initiator && !agreed.rendezvous;
  terms.peer_timeout_ms =
      own_ms == 0 ? usual_peer_timeout_ms() : std::max(own_ms, kLeastPeerTimeoutMs);
  if (!agreed.initiator && agreed.negotiated.peer_to_peer)
    terms.first_fpdu = Deadline::after_ms(settings().mpa_timeout_ms);
  // RFC 1122 keepalive finds a peer that vanished while nothing was under way, ConnectedState one
  // that owes an acknowledgement.
  socket_.tcp().set_keepalive(terms.peer_timeout_ms);
  // Killed: a peer that holds messages back would never see a FIN behind them.
  if (terms.rendezvous || terms.acknowledged) socket_.tcp().set_reset_on_close(true);
  return enter_fpdu_mode(turn, stream_config(agreed), terms);
}

int Connection::enter_fpdu_mode(Turn& turn, const StreamConfig& config,
                                const Connected::Terms& terms) {
  Stream::Ends ends = socket_.ends(*this);
  ends.link = wire_between(local_, remote_);
  StreamConfig wired = config;
  wired.over_wire = ends.link != nullptr;
  if (!endpoint_->open_stream(*this, wired, ends)) return ECONNABORTED;
  if (wired.over_wire) log_wire(endpoint_->number(), *ends.link->out);
  if (config.may_leave_tcp && dialed_) endpoint_->stream().notify_when_busy();
  if (log_enabled()) [[unlikely]]
    log_carrier();
  state_.emplace<Connected>(*endpoint_, socket_.tcp(), terms, now_ns());
  turn.pump = true;
  const Lock guard(endpoint_lock_);
  open_ = true;
  return 0;
}

Result<std::shared_ptr<Connection>> Connection::connect_to_itself(
    ConnectContext& context, std::shared_ptr<Endpoint> endpoint, uint16_t depth,
    std::weak_ptr<ConnectionOwner> owner) {
  if (int error = context.progress.start_helper()) return Error{error};
  auto pair = TcpSocket::open_pair();
  if (!pair) return Error{pair.error()};
  std::shared_ptr<Connection> connection(new Connection(context, std::move(owner)));
  if (int error = endpoint->claim(connection, true)) return Error{error};
  Turn turn(*connection);
  connection->endpoint_ = std::move(endpoint);
  connection->socket_.take(std::move(pair->first), std::move(pair->second));
  StreamConfig config;
  config.ord = depth;
  config.read_depth = config.ird = with_reserve(depth, connection->acknowledged());
  config.silent_fin = config.peer_is_uwarp = true;
  const int error =
      connection->start_or_close(turn, [&, self = connection.get()]() NO_THREAD_SAFETY_ANALYSIS {
        if (int failed = self->socket_.watch(*self)) return failed;
        return self->enter_fpdu_mode(
            turn, config,
            {.rendezvous = true,
             .acknowledged = self->acknowledged(),
             .unreliable = is_unreliable(self->endpoint_->qp().config().transport)});
      });
  if (error != 0) return Error{error};
  connection->established({});
  connection->finish(turn, Calls::kLater);
  return connection;
}

uint32_t Connection::usual_peer_timeout_ms() {
  return settings().peer_timeout_ms != 0 ? settings().peer_timeout_ms : kDefaultPeerTimeoutMs;
}

// Leaving TCP for shared memory, where the peer is a uwarp of the same user on this host. The side
// that has dialled opens a mailbox and names it by TCP, once the stream is busy and the peer has
// shown what it is: a target of Writes may do so long after the stream has become busy. The other
// side answers with a letter from a mailbox of its own, and gets the memory there. It switches
// first. TCP stays for the end of the connection, and carries on if anything fails.
// docs/wire.md, "Shared memory".

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

void Connection::compare_personas() {
  if (endpoint_ == nullptr || !log_enabled()) return;
  const auto peer = endpoint_->qp().peer_persona();
  const auto own = PersonaWrite::of(settings().persona);
  if (peer == own) return;
  log_event(
      "qp %#x: the peer has the %s persona and this process the %s persona, so programs that "
      "ask what kind of adapter they have may disagree. Start both with uwarp-run --roce "
      "(UWARP_PERSONA=roce), or neither",
      endpoint_->number().value, PersonaWrite::name(peer), PersonaWrite::name(own));
}

void Connection::follow_carrier(Turn& turn, const StreamEvents& notice) {
  if (connected() == nullptr || endpoint_ == nullptr) return;
  was_busy_ |= notice.busy;
  const bool shown = (notice.outcome & kRxMagic) != 0;
  if (socket_.ring() != nullptr) {
    if (notice.busy) connected()->on_busy_ring(now_ns());
  } else if (notice.busy || (shown && was_busy_)) {
    offer_carrier(turn);
  }
  if ((notice.outcome & kRxOffer) != 0) take_offer();
  if ((notice.outcome & kRxSwitch) == 0 || !endpoint_->stream().on_ring()) return;
  endpoint_->describe_carrier(true);
  log_event("qp %#x: shared memory carries what comes from here on", endpoint_->number().value);
  if (!dialed_) return;  // this end has switched already
  socket_.ring()->take_answer(pulls_pay());
  endpoint_->qp().say_to_peer(StreamState::kSwitchDue);
  turn.pump = true;
}

void Connection::offer_carrier(Turn& turn) {
  if (mailbox_ != nullptr || !is_local_address(remote_)) return;
  if (!endpoint_->qp().peer_is_uwarp()) {
    if (endpoint_->qp().peer_has_spoken()) log_reason(remote_, "it is no uwarp");
    return;
  }
  if (!open_mailbox(random_word() & CarrierWrite::kValueMask)) return;
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
  const bool shows = pulls_work();
  const int regions = shows ? context_.published.fd(*endpoint_->qp().config().regions) : -1;
  peer_memory_ = std::make_shared<PeerMemory>(shows, regions);
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
  turn.give_up();
  if (peer == nullptr) return;
  if (!is_own_user(mail.uid)) return log_refusal(remote_, EPERM);
  auto made = brings ? make_carrier(context_.errands, mail, std::move(peer))
                     : adopt_carrier(context_.errands, mail, std::move(peer));
  if (!made) return log_refusal(remote_, made.error());
  turn.take_again();
  RingCarrier* const ring = join_carrier(std::move(made->ring));
  if (ring != nullptr && brings) {
    const int fds[] = {ring->memory_fd(), made->peer_wakeup.fd(), made->peer_wakeup.rung_fd()};
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
                                                     std::shared_ptr<PeerMemory> peer) {
  auto memory = SharedMemory::create(RingCarrier::kSharedBytes);
  if (!memory) return Error{memory.error()};
  auto wakeups = WakeupSocket::pair();
  if (!wakeups) return Error{wakeups.error()};
  const PeerMemory::Place secret = peer->place();
  auto ring = std::make_unique<RingCarrier>(std::move(*memory), true, std::move(wakeups->first),
                                            std::move(peer), errands);
  if (pulls_work()) ring->ask_peer(mail.pid, mail.letter.secret);
  return Carrier{std::move(ring), std::move(wakeups->second), secret};
}

// A peer that has not shown that it may read our memory might make this thread wait.
Result<Connection::Carrier> Connection::adopt_carrier(Errands& errands, Mail& mail,
                                                      std::shared_ptr<PeerMemory> peer) {
  if (mail.fds.size() != 3) return Error{EPROTO};
  auto memory = SharedMemory::adopt(mail.fds[0], RingCarrier::kSharedBytes);
  if (!memory) return Error{memory.error()};
  auto wakeup = WakeupSocket::adopt(mail.fds[1], mail.fds[2], errands);
  if (!wakeup) return Error{EPROTO};
  auto ring = std::make_unique<RingCarrier>(std::move(*memory), false, std::move(*wakeup),
                                            std::move(peer), errands);
  if (pulls_work() && ring->take_answer(pulls_pay())) {
    ring->ask_peer(mail.pid, mail.letter.secret);
    ring->take_answer(pulls_pay());
  }
  return Carrier{std::move(ring), WakeupSocket(), {}};
}

// Null: the connection has left the stream meanwhile, or cannot wait for the bell.
RingCarrier* Connection::join_carrier(std::unique_ptr<RingCarrier> carrier) {
  if (connected() == nullptr || endpoint_ == nullptr || socket_.ring() != nullptr) return nullptr;
  RingCarrier& ring = *carrier;
  if (int error = socket_.watch_ring(*this, std::move(carrier))) {
    log_refusal(remote_, error);
    return nullptr;
  }
  ring.join(context_.gates);
  if (!endpoint_->stream().join_ring(ring)) return nullptr;
  connected()->on_busy_ring(now_ns());
  return &ring;
}

}  // namespace uwarp
