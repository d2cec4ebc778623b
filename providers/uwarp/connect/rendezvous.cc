// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Who dials, who answers, and what happens when both do.
#include "connect/rendezvous.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "connect/connect_context.h"
#include "connect/endpoint.h"
#include "connect/rendezvous_port.h"
#include "os/clock.h"
#include "os/output_file.h"
#include "protocol/wire/mpa_start_frame.h"

namespace uwarp {

void refuse(Connection& request, RendezvousVerdict verdict) try {
  // One for each verdict, so that a flood of one kind does not hide the others.
  static std::array<CollapsedLog, kRendezvousVerdicts> logs;
  if (verdict != RendezvousVerdict::kCallsBack && verdict != RendezvousVerdict::kHeld)
    logs[static_cast<size_t>(verdict)].event("rendezvous: refused a call of %s: %s",
                                             ip_of(request.remote_address()).to_string().c_str(),
                                             describe(verdict));
  (void)request.reject(RendezvousAnswer{.verdict = verdict}.encode());
} catch (const std::bad_alloc&) {
  request.abort();
}

namespace {

/// ASCII "uWRV": tells a rendezvous from anything else that dials the port.
constexpr uint32_t kMagic = 0x75575256;

}  // namespace

std::vector<std::byte> RendezvousCall::encode() const {
  std::vector<std::byte> bytes(kWireSize);
  store_be32(&bytes[0], kMagic);
  bytes[4] = std::byte{kRendezvousVersion};
  bytes[5] = static_cast<std::byte>(transport);
  store_be32(&bytes[8], source.value);
  store_be32(&bytes[12], target.value);
  store_be32(&bytes[16], psn);
  store_be32(&bytes[20], capabilities);
  return bytes;
}

std::optional<RendezvousCall> RendezvousCall::decode(std::span<const std::byte> bytes) {
  // Later versions may be longer; they say by their number whether this one understands them.
  if (bytes.size() < kWireSize || load_be32(&bytes[0]) != kMagic ||
      bytes[4] != std::byte{kRendezvousVersion})
    return std::nullopt;
  RendezvousCall call;
  call.transport = static_cast<Transport>(bytes[5]);
  call.source.value = load_be32(&bytes[8]);
  call.target.value = load_be32(&bytes[12]);
  call.psn = load_be32(&bytes[16]);
  call.capabilities = load_be32(&bytes[20]);
  return call;
}

std::vector<std::byte> RendezvousAnswer::encode() const {
  std::vector<std::byte> bytes(kWireSize);
  store_be32(&bytes[0], kMagic);
  bytes[4] = std::byte{kRendezvousVersion};
  bytes[5] = static_cast<std::byte>(verdict);
  store_be32(&bytes[8], capabilities);
  return bytes;
}

std::optional<RendezvousAnswer> RendezvousAnswer::decode(std::span<const std::byte> bytes) {
  if (bytes.size() < kWireSize || load_be32(&bytes[0]) != kMagic) return std::nullopt;
  RendezvousAnswer answer;
  answer.verdict = static_cast<RendezvousVerdict>(bytes[5]);
  answer.capabilities = load_be32(&bytes[8]);
  return answer;
}

const char* describe(RendezvousVerdict verdict) {
  // By their numbers.
  static constexpr auto kTexts = std::to_array<const char*>({
      "accepted",
      "unknown version of the rendezvous",
      "no such queue pair",
      "not the expected peer",
      "connected already",
      "the other call is kept",
      "too many calls wait",
      "the caller is called back",
      "the trunk is there",
  });
  static_assert(kTexts.size() == kRendezvousVerdicts);
  const auto index = static_cast<size_t>(verdict);
  return index < kTexts.size() ? kTexts[index] : "unknown verdict";
}

namespace {

/// First and longest pause between two calls: the peer usually lags by a message between the two
/// applications, and when it is ready it dials itself.
constexpr uint64_t kFirstPauseNs = kNsPerMs;
constexpr uint64_t kLongestPauseNs = 250 * kNsPerMs;

/// A waiting request fails no sooner: TCP repeats a lost SYN after one second and again after two
/// more, and the peer's application may be starved for as long. Being refused does not shorten it:
/// a queue pair listens from INIT on, and applications may exchange numbers before that.
constexpr uint64_t kLeastTimeoutNs = 5 * kNsPerSecond;

}  // namespace

Rendezvous::Rendezvous(ConnectContext& context, std::weak_ptr<Endpoint> endpoint,
                       const RendezvousTerms& terms)
    : context_(context), endpoint_(std::move(endpoint)), terms_(terms) {}

// --- Answering

RendezvousVerdict Rendezvous::judge_locked(const RendezvousCall& call) const {
  if (stopped_) return RendezvousVerdict::kNoSuchQp;
  if (call.source != terms_.peer || call.psn != terms_.rq_psn ||
      call.transport != peer_of(terms_.transport))
    return RendezvousVerdict::kNotExpected;
  if (kept_ != nullptr) return RendezvousVerdict::kBusy;
  // The peer does the same comparison with the same numbers and keeps our call, once it has seen
  // it.
  const bool own_is_kept = std::tuple(terms_.own_address.bytes(), terms_.own.value) <
                           std::tuple(terms_.peer_address.bytes(), terms_.peer.value);
  if (dial_ != nullptr && own_is_kept && !dial_->abandon_before_request())
    return RendezvousVerdict::kCollision;
  return RendezvousVerdict::kAccepted;
}

// Our own call is being placed, and whether it may be given up is known in a moment; or the peer's
// address has made too many wrong calls.
bool Rendezvous::must_wait_locked() const { return starting_ || !wrong_calls_.allows(now_ns()); }

void Rendezvous::answer(std::shared_ptr<Connection> request, const RendezvousCall& call) {
  Lock lock(mutex_);
  // From elsewhere no call can be right: it neither counts nor waits.
  if (ip_of(request->remote_address()).bytes() != terms_.peer_address.bytes()) {
    lock.unlock();
    return refuse(*request, RendezvousVerdict::kNotExpected);
  }
  if (!must_wait_locked()) return take_call(lock, {std::move(request), call});
  if (add_pending_locked({request, call})) return update_deadline_locked();
  lock.unlock();
  refuse(*request, RendezvousVerdict::kTooMany);
}

bool Rendezvous::add_pending_locked(PendingCall call) {
  if (held_.size() >= kMaxPendingCalls) return false;
  try {
    held_.push_back(std::move(call));
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// Gives the lock up for each, and has it in the end.
void Rendezvous::take_pending_calls(Lock<Mutex>& lock) {
  if (held_.empty()) return;
  while (!held_.empty() && !must_wait_locked()) {
    const PendingCall oldest = std::move(held_.front());
    held_.erase(held_.begin());
    take_call(lock, oldest);
    lock.lock();
  }
  update_deadline_locked();
}

// Gives the lock up.
void Rendezvous::take_call(Lock<Mutex>& lock, const PendingCall& held) {
  const RendezvousVerdict verdict = judge_locked(held.call);
  if (verdict == RendezvousVerdict::kNotExpected) wrong_calls_.use(now_ns());
  const auto endpoint = endpoint_.lock();
  if (verdict != RendezvousVerdict::kAccepted || endpoint == nullptr) {
    lock.unlock();
    return refuse(*held.request, endpoint != nullptr ? verdict : RendezvousVerdict::kNoSuchQp);
  }
  ConnectParameters parameters;
  parameters.responder_resources = terms_.ird;
  parameters.initiator_depth = dialing_ ? terms_.ord : kDepthNotNegotiated;
  try {
    parameters.private_data = RendezvousAnswer{}.encode();
  } catch (const std::bad_alloc&) {
    lock.unlock();
    return held.request->abort();  // the peer dials again
  }
  const std::shared_ptr<Connection> abandoned = std::exchange(dial_, nullptr);
  kept_ = held.request;
  retry_ns_ = 0;
  update_deadline_locked();
  lock.unlock();
  if (abandoned != nullptr) abandoned->abort();
  const int error = held.request->accept(endpoint, parameters, as_owner(), true);
  if (error == 0) return;
  log_event("rendezvous: cannot accept, errno %d", error);
  lock.lock();
  if (kept_ != held.request) return lock.unlock();
  kept_ = nullptr;
  retry_locked();
  lock.unlock();
}

// --- Dialing

void Rendezvous::dial(const RendezvousTerms& terms) {
  Lock lock(mutex_);
  terms_ = terms;
  if (std::exchange(dialing_, true) || stopped_ || kept_ != nullptr) return;
  start_dial(lock);
}

Result<std::shared_ptr<Connection>> Rendezvous::place_call(
    const RendezvousTerms& terms, const std::shared_ptr<Endpoint>& endpoint) {
  if (terms.peer == terms.own && terms.peer_address == terms.own_address)
    return Connection::connect_to_itself(context_, endpoint, std::max(terms.ord, terms.ird),
                                         as_owner());
  Connection::ConnectOptions options;
  (void)terms.own_address.to_sockaddr(options.local, 0);
  (void)terms.peer_address.to_sockaddr(options.remote, port_of_number(terms.peer));
  options.tos = terms.traffic_class;
  options.rendezvous = true;
  ConnectParameters parameters;
  parameters.initiator_depth = terms.ord;
  parameters.responder_resources = terms.ird;
  RendezvousCall call;
  call.source = terms.own;
  call.target = terms.peer;
  call.transport = terms.transport;
  call.psn = terms.sq_psn;
  parameters.private_data = call.encode();
  return Connection::connect(context_, endpoint, std::move(options), std::move(parameters),
                             as_owner());
}

void Rendezvous::start_dial(Lock<Mutex>& lock) {
  const auto endpoint = endpoint_.lock();
  if (endpoint == nullptr || starting_) return;
  retry_ns_ = 0;
  starting_ = true;
  const RendezvousTerms terms = terms_;
  lock.unlock();
  auto placed = [&]() -> Result<std::shared_ptr<Connection>> {
    try {
      return place_call(terms, endpoint);
    } catch (const std::bad_alloc&) {
      return Error{ENOMEM};  // tried again like any other call that fails
    }
  }();
  lock.lock();
  starting_ = false;
  const Connection* const settled = std::exchange(settled_, nullptr);
  if (!placed) {
    log_event("rendezvous: cannot dial, errno %d", placed.error());
    retry_locked();
  } else if (stopped_) {
    const auto late = std::move(*placed);
    lock.unlock();
    late->abort();
    lock.lock();
  } else if (placed->get() != settled) {
    dial_ = std::move(*placed);
  }
  take_pending_calls(lock);
}

void Rendezvous::retry_locked() {
  if (stopped_ || kept_ != nullptr) return;
  if (std::exchange(outstayed_, false)) give_up_ns_ = now_ns();
  if (dialing_) {
    pause_ns_ = std::clamp(pause_ns_ * 2, kFirstPauseNs, kLongestPauseNs);
    retry_ns_ = now_ns() + pause_ns_;
  }
  update_deadline_locked();
}

void Rendezvous::update_deadline_locked() {
  Deadline next;
  if (!stopped_ && !connected_) next = earliest({Deadline{retry_ns_}, Deadline{give_up_ns_}});
  if (!held_.empty() && !starting_)
    next = earliest({next, Deadline{std::max<uint64_t>(wrong_calls_.next_ns(), 1)}});
  context_.progress.set_deadline(*this, next.at_ns);
}

void Rendezvous::work_waiting() {
  const Lock lock(mutex_);
  work_waiting_locked();
}

uint64_t Rendezvous::patience_ns_locked() const {
  return std::max(terms_.timeout_ns, kLeastTimeoutNs);
}

void Rendezvous::work_waiting_locked() {
  if (stopped_ || connected_ || outstayed_ || give_up_ns_ != 0) return;
  if (terms_.timeout_ns == 0 && !is_unreliable(terms_.transport)) return;
  give_up_ns_ = now_ns() + (gave_up_ ? 0 : patience_ns_locked());
  update_deadline_locked();
}

void Rendezvous::deadline_passed() {
  Lock lock(mutex_);
  take_pending_calls(lock);
  if (stopped_ || connected_) return;
  const uint64_t now = now_ns();
  // First a last call, in case that both are late.
  if (retry_ns_ != 0 && retry_ns_ <= now && kept_ == nullptr && dial_ == nullptr) {
    start_dial(lock);
    return update_deadline_locked();
  }
  if (give_up_ns_ != 0 && give_up_ns_ <= now) {
    if (!call_stands_locked()) return give_up(lock);
    outstayed_ = true;
    give_up_ns_ = 0;
  }
  update_deadline_locked();
}

// A peer that TCP has reached is alive. It may have no processor to answer with, where an adapter's
// own would have: its time is that of the call, UWARP_CONNECT_TIMEOUT_MS.
bool Rendezvous::call_stands_locked() const {
  return starting_ || kept_ != nullptr || (dial_ != nullptr && dial_->has_reached_peer());
}

// Gives the lock up. An unreliable queue pair goes on: its peer may still come.
void Rendezvous::give_up(Lock<Mutex>& lock) {
  give_up_ns_ = 0;
  const bool first = !std::exchange(gave_up_, true);
  if (is_unreliable(terms_.transport)) update_deadline_locked();
  const uint64_t waited_ms = patience_ns_locked() / kNsPerMs;
  const auto endpoint = endpoint_.lock();
  lock.unlock();
  if (first)
    log_event("rendezvous: qp %#x has waited %llu ms for qp %#x at %s", terms_.own.value,
              static_cast<unsigned long long>(waited_ms), terms_.peer.value,
              terms_.peer_address.to_string().c_str());
  if (endpoint != nullptr) endpoint->rendezvous_failed();
}

bool Rendezvous::ready(uint32_t /*events*/) { return false; }

void Rendezvous::stop() {
  std::vector<PendingCall> held;
  std::shared_ptr<Connection> dial;
  {
    const Lock lock(mutex_);
    stopped_ = true;
    dial.swap(dial_);
    held.swap(held_);
    update_deadline_locked();
  }
  if (dial != nullptr) dial->abort();
  for (const PendingCall& one : held) refuse(*one.request, RendezvousVerdict::kNoSuchQp);
}

// --- What became of a call

void Rendezvous::connection_established(const std::shared_ptr<Connection>& connection,
                                        const sockaddr_storage&, const ConnectParameters&) {
  const Lock lock(mutex_);
  if (connection == dial_) {
    kept_ = std::exchange(dial_, nullptr);
  } else if (starting_ && kept_ == nullptr) {
    kept_ = connection;
    settled_ = connection.get();
  } else if (connection != kept_) {
    return;
  }
  connected_ = true;
  retry_ns_ = give_up_ns_ = 0;
  update_deadline_locked();
}

void Rendezvous::dial_over_locked(const std::shared_ptr<Connection>& connection) {
  if (connection == dial_) {
    dial_ = nullptr;
  } else if (connection == kept_) {
    if (connected_) return;
    kept_ = nullptr;
  } else if (starting_) {
    settled_ = connection.get();
  } else {
    return;
  }
  // Requests may have been posted to a stream that has come to nothing.
  const auto endpoint = endpoint_.lock();
  if (endpoint != nullptr && endpoint->qp().transmitter().wanted()) work_waiting_locked();
  retry_locked();
}

void Rendezvous::connection_rejected(const std::shared_ptr<Connection>& connection, int /*status*/,
                                     std::span<const std::byte> private_data) {
  const auto answer = RendezvousAnswer::decode(private_data);
  if (answer) log_event("rendezvous: call refused: %s", describe(answer->verdict));
  const Lock lock(mutex_);
  dial_over_locked(connection);
  if (answer && answer->verdict == RendezvousVerdict::kCollision && give_up_ns_ != 0)
    give_up_ns_ = now_ns() + patience_ns_locked();  // its own call is on its way to us
  if (answer && answer->verdict == RendezvousVerdict::kUnknownVersion) {
    retry_ns_ = 0;  // it will not understand the next call either
    update_deadline_locked();
  }
}

void Rendezvous::connection_failed(const std::shared_ptr<Connection>& connection, int status) {
  log_event("rendezvous: cannot connect to the peer, status %d", status);
  const Lock lock(mutex_);
  dial_over_locked(connection);
}

void Rendezvous::connection_ended(const std::shared_ptr<Connection>& connection) {
  const Lock lock(mutex_);
  if (connection != kept_) return;
  // What was connected stays what it was: a queue pair connects once between two RESETs.
  stopped_ = true;
  update_deadline_locked();
}

}  // namespace uwarp
