// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A connection before FPDU mode: TCP, then Request and Reply, in both roles.
// RFC 5044 7.1, RFC 6581 6 to 10.
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <string>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "base/settings.h"
#include "connect/bound_port.h"
#include "connect/connect_context.h"
#include "connect/connection.h"
#include "connect/endpoint.h"
#include "connect/listener.h"
#include "inject/process_faults.h"
#include "os/clock.h"
#include "os/collapsed_log.h"

namespace uwarp {
namespace {

/// One read of start-up octets: never more than the frame needs, so that nothing behind it is
/// taken out of the socket.
using FrameBuffer = std::array<std::byte, MpaStartFrame::kSizeMax>;

uint16_t without_reserve(uint16_t depth) {
  return settings().acknowledged() && depth > 0 ? depth - 1 : depth;
}

/// Depth as rdma_cm can carry it, when the peer has named none or more than we have.
uint16_t offered_depth(bool on_wire, uint16_t depth) {
  constexpr uint16_t kMost = kMaxRdAtom;
  return on_wire ? std::min(without_reserve(depth), kMost) : kMost;
}

/// What is said to the peer: one more than the application uses, for acknowledgements.
uint16_t with_reserve(uint16_t depth) {
  return settings().acknowledged() && depth < kDepthNotNegotiated ? depth + 1 : depth;
}

/// A refused connection is tried again for a fifth of a second.
constexpr uint32_t kMostRedials = 20;
constexpr uint64_t kRedialWaitNs = 10 * kNsPerMs;

/// Private data that every known peer takes in revision 2 (docs/siw.md).
constexpr size_t kPrivateDataEverywhere = 252;

std::string name_of(const sockaddr_storage& address) {
  return ip_of(address).to_string() + " port " + std::to_string(port_of(address));
}

bool is_refusal(int error) { return error == ECONNREFUSED || error == ECONNRESET; }

}  // namespace

// --- Active
// ---------------------------------------------------------------------------------------

Result<std::shared_ptr<Connection>> Connection::connect(ConnectContext& context,
                                                        std::shared_ptr<Endpoint> endpoint,
                                                        ConnectOptions options,
                                                        ConnectParameters parameters,
                                                        std::weak_ptr<ConnectionOwner> owner) {
  if (endpoint == nullptr || address_length(options.remote) == 0 ||
      parameters.private_data.size() > kPrivateDataEnhancedMax)
    return Error{EINVAL};
  if (int error = context.progress.start_helper()) return Error{error};
  std::shared_ptr<Connection> connection(new Connection(context, std::move(owner)));
  if (int error = endpoint->claim(connection, options.rendezvous)) return Error{error};
  Lock lock(connection->mutex_);
  std::optional<TcpSocket> bound = std::move(options.bound);
  options.bound.reset();
  // The modes after the first need the same port again.
  if (bound) options.local = bound->local_address();
  connection->active_ = true;
  connection->rendezvous_ = options.rendezvous;
  connection->local_ = options.local;
  connection->remote_ = options.remote;
  connection->parameters_ = std::move(parameters);
  connection->options_ = std::move(options);
  connection->endpoint_ = std::move(endpoint);
  const int error = connection->start_or_leave_locked([&, self = connection.get()] {
    self->choose_startup_mode_locked();
    const uint32_t timeout_ms =
        self->options_.timeout_ms != 0 ? self->options_.timeout_ms : settings().connect_timeout_ms;
    self->deadlines_[Deadline::kStartup] = now_ns() + timeout_ms * kNsPerMs;
    const int failed = self->start_attempt_locked(std::move(bound));
    if (failed == 0) self->update_deadline_locked();
    return failed;
  });
  if (error != 0) return Error{error};
  connection->finish_later(lock);
  return connection;
}

Result<TcpSocket> Connection::make_socket_locked(std::optional<TcpSocket> bound) const {
  if (bound) {
    use_port(*bound);
    return std::move(*bound);
  }
  auto opened = TcpSocket::open(remote_.ss_family);
  if (!opened || address_length(options_.local) == 0) return opened;
  opened->set_reuse_address(true);
  opened->set_late_port();
  if (int error = opened->bind(options_.local)) return Error{error};
  return opened;
}

// Opens the TCP connection of one start-up mode. Returns an errno for faults of our own; what the
// network says goes to the owner.
int Connection::start_attempt_locked(std::optional<TcpSocket> bound) {
  auto made = make_socket_locked(std::move(bound));
  if (!made) return made.error();
  socket_ = std::move(*made);
  socket_.set_tos(options_.tos);
  MpaInitiator::Config config;
  config.revision = startup_mode_ == StartupMode::kRevision1 ? 1 : 2;
  config.peer_to_peer = startup_mode_ == StartupMode::kPeerToPeer;
  config.crc = asks_for_crc();
  config.ird = with_reserve(parameters_.responder_resources);
  config.ord = with_reserve(parameters_.initiator_depth);
  config.ird_limit = kMaxReadDepth;
  config.private_data = parameters_.private_data;
  initiator_ = std::make_unique<MpaInitiator>(config);
  request_bytes_sent_ = 0;
  phase_ = Phase::kConnecting;
  const int error = socket_.connect(remote_);
  if (error != 0 && error != EINPROGRESS) {
    connect_failed_locked(error);
    return 0;
  }
  auto ticket = context_.progress.add(*this, socket_.fd());
  if (!ticket) return ticket.error();
  ticket_ = *ticket;
  // On the own host it stands already. Then its Request goes out before those of later connections:
  // programs with several (perftest -R -q) take the order in which they arrive for that in which
  // they were begun.
  if (!rendezvous_ && address_length(socket_.remote_address()) != 0) continue_connect_locked();
  return 0;
}

void Connection::continue_connect_locked() {
  if (int error = socket_.take_error()) return connect_failed_locked(error);
  // Writability before the connection stands is reported as EPOLLHUP, never as a peer address.
  if (address_length(socket_.remote_address()) == 0) return;
  local_ = socket_.local_address();
  socket_.settle_congestion_control(local_, remote_);
  begin_capture_locked();
  phase_ = Phase::kAwaitingReply;
  send_request_locked();
}

void Connection::send_request_locked() {
  const auto request = initiator_->request().subspan(request_bytes_sent_);
  if (request.empty()) return;
  const ssize_t sent = send_frame_locked(request);
  if (sent > 0) {
    request_bytes_sent_ += static_cast<size_t>(sent);
  } else if (sent != -EAGAIN) {
    judge_reply_locked(initiator_->on_end_of_stream());
  }
}

void Connection::read_reply_locked() {
  FrameBuffer buffer;
  while (phase_ == Phase::kAwaitingReply) {
    const size_t wanted = std::min(initiator_->bytes_wanted(), buffer.size());
    const ssize_t count = receive_frame_locked(std::span(buffer).first(wanted));
    if (count == -EAGAIN) return;
    if (count > 0) {
      const auto bytes = std::span<const std::byte>(buffer).first(static_cast<size_t>(count));
      judge_reply_locked(initiator_->on_bytes(bytes));
    } else if (count == 0 || count == -ECONNRESET) {
      judge_reply_locked(initiator_->on_end_of_stream());
    } else {
      connect_failed_locked(static_cast<int>(-count));
    }
  }
}

void Connection::judge_reply_locked(const MpaInitiator::Verdict& verdict) {
  switch (verdict.state) {
    case MpaInitiator::State::kNeedMore:
      return;
    case MpaInitiator::State::kAccepted:
      remember_startup_mode_locked();
      if (int error = open_stream_locked(initiator_->negotiated(), true)) {
        connect_failed_locked(error);
        return;
      }
      return established_locked();
    case MpaInitiator::State::kRejected: {
      remember_startup_mode_locked();
      const auto octets = initiator_->private_data();
      ConnectParameters peer;
      peer.private_data.assign(octets.begin(), octets.end());
      tell_locked(OwnerCall::kRejected, -ECONNREFUSED, std::move(peer));
      leave_endpoint_locked();
      return close_locked(CloseMode::kGentle);
    }
    case MpaInitiator::State::kFailed:
      break;
  }
  log_event("connection: start-up failed: %s", describe(verdict.failure));
  if (fall_back_locked(verdict)) return;
  if (verdict.failure == MpaFailure::kPeerClosed) return connect_failed_locked(ECONNRESET);
  if (verdict.terminate) {
    std::array<std::byte, kBareTerminateFpduSize> fpdu;
    const size_t size = write_bare_terminate_fpdu(fpdu.data(), *verdict.terminate,
                                                  initiator_->reply().crc || asks_for_crc());
    (void)send_frame_locked(std::span(fpdu).first(size));
  }
  forget_startup_mode_locked();
  tell_locked(OwnerCall::kFailed, -EPROTO);
  leave_endpoint_locked();
  close_locked(CloseMode::kGentle);
}

// --- The ladder

void Connection::choose_startup_mode_locked() {
  if (settings().mpa_revision < 2) {
    startup_mode_ = StartupMode::kRevision1;
  } else if (!rendezvous_) {
    startup_mode_ = context_.startup_modes.first_for(remote_, now_ns());
    startup_mode_remembered_ = startup_mode_ != StartupMode::kPeerToPeer;
  }
  if (!log_enabled()) return;
  log_event("connection: to %s in %s%s", name_of(remote_).c_str(), describe(startup_mode_),
            startup_mode_remembered_ ? ", as remembered" : "");
}

// An old peer closes on what it does not know (RFC 6581 10), so the next mode is tried. Where the
// memory was wrong the whole ladder is, once.
bool Connection::fall_back_locked(const MpaInitiator::Verdict& verdict) {
  const bool closed = verdict.failure == MpaFailure::kPeerClosed;
  if (rendezvous_ || (!closed && verdict.failure != MpaFailure::kRevisionMismatch)) return false;
  if (std::exchange(startup_mode_remembered_, false)) {
    context_.startup_modes.forget(remote_);
    startup_mode_ = StartupMode::kPeerToPeer;
  } else if (!verdict.retry_revision1 || startup_mode_ == StartupMode::kRevision1) {
    return false;
  } else if (startup_mode_ == StartupMode::kPeerToPeer && closed) {
    startup_mode_ = StartupMode::kPlain;
  } else {
    startup_mode_ = StartupMode::kRevision1;  // also when the Reply says so
  }
  log_event("connection: trying %s", describe(startup_mode_));
  unregister_locked();
  if (captured_ != nullptr) captured_->end(true);
  socket_.reset();  // frees the local port at once
  if (int failed = start_attempt_locked(std::nullopt)) connect_failed_locked(failed);
  return true;
}

void Connection::remember_startup_mode_locked() {
  startup_mode_remembered_ = false;
  if (rendezvous_ || settings().mpa_revision < 2) return;
  // What was too long for revision 2 at the peer may be all that kept it from the modes above.
  if (startup_mode_ != StartupMode::kPeerToPeer &&
      parameters_.private_data.size() > kPrivateDataEverywhere)
    return;
  context_.startup_modes.remember(remote_, startup_mode_, now_ns());
  if (startup_mode_ != StartupMode::kPeerToPeer && log_enabled())
    log_event("connection: %s has replied in %s, which is remembered", name_of(remote_).c_str(),
              describe(startup_mode_));
}

void Connection::forget_startup_mode_locked() {
  if (active_ && !rendezvous_) context_.startup_modes.forget(remote_);
}

// Routes are found in no time here, so a client may come too early, which on an adapter it hardly
// can: qperf's server names its port before it listens, and with acknowledgements one that listens
// anew after its last Send (perftest's -R) does so a round trip later than its client has that.
bool Connection::redial_later_locked(int error) {
  if (error != ECONNREFUSED || rendezvous_ || phase_ != Phase::kConnecting) return false;
  if (redials_ == kMostRedials) return false;
  ++redials_;
  unregister_locked();
  socket_.reset();
  deadlines_[Deadline::kRedial] = now_ns() + kRedialWaitNs;
  update_deadline_locked();
  return true;
}

void Connection::redial_locked() {
  if (phase_ != Phase::kConnecting) return;
  if (int failed = start_attempt_locked(std::nullopt)) connect_failed_locked(failed);
}

void Connection::connect_failed_locked(int error) {
  if (redial_later_locked(error)) return;
  forget_startup_mode_locked();
  tell_locked(is_refusal(error) ? OwnerCall::kRejected : OwnerCall::kFailed, -error);
  leave_endpoint_locked();
  close_locked(CloseMode::kReset);
}

bool Connection::abandon_before_request() {
  const Lock lock(mutex_);
  if (phase_ != Phase::kConnecting && phase_ != Phase::kClosed) return false;
  owner_.reset();
  calls_.clear();
  calls_due_.store(false);
  leave_endpoint_locked();
  close_locked(CloseMode::kReset);
  return true;
}

// --- Passive
// --------------------------------------------------------------------------------------

std::shared_ptr<Connection> Connection::incoming(ConnectContext& context, TcpSocket socket,
                                                 const sockaddr_storage& remote,
                                                 std::weak_ptr<Listener> listener) {
  std::shared_ptr<Connection> connection(new Connection(context, {}));
  const Lock lock(connection->mutex_);
  connection->local_ = socket.local_address();
  connection->remote_ = remote;
  connection->listener_ = std::move(listener);
  connection->responder_ =
      std::make_unique<MpaResponder>(MpaResponder::Config{.crc = asks_for_crc()});
  connection->socket_ = std::move(socket);
  connection->begin_capture_locked();
  connection->socket_.settle_congestion_control(connection->local_, connection->remote_);
  connection->phase_ = Phase::kReadingRequest;
  connection->deadlines_[Deadline::kStartup] = now_ns() + settings().mpa_timeout_ms * kNsPerMs;
  auto ticket = context.progress.add(*connection, connection->socket_.fd());
  if (!ticket) return nullptr;
  connection->ticket_ = *ticket;
  connection->update_deadline_locked();
  return connection;
}

void Connection::read_request_locked() {
  FrameBuffer buffer;
  while (phase_ == Phase::kReadingRequest) {
    const size_t wanted = std::min(responder_->bytes_wanted(), buffer.size());
    const ssize_t count = receive_frame_locked(std::span(buffer).first(wanted));
    if (count == -EAGAIN) return;
    if (count <= 0) {
      (void)responder_->on_end_of_stream();
      static CollapsedLog log;
      log.event("connection: %s ended it before its request was complete",
                name_of(remote_).c_str());
      return close_locked(CloseMode::kReset);
    }
    const auto bytes = std::span<const std::byte>(buffer).first(static_cast<size_t>(count));
    const MpaResponder::Verdict verdict = responder_->on_bytes(bytes);
    if (verdict.state == MpaResponder::State::kRequest) return request_complete_locked();
    if (verdict.state == MpaResponder::State::kRefused) {
      static CollapsedLog log;
      log.event("connection: refused a request of %s: %s", name_of(remote_).c_str(),
                describe(verdict.failure));
      const auto refusal = responder_->refusal();
      if (!refusal.empty()) (void)send_frame_locked(refusal);
      return close_locked(CloseMode::kGentle);
    }
  }
}

void Connection::request_complete_locked() {
  phase_ = Phase::kRequested;
  deadlines_[Deadline::kStartup] = 0;
  update_deadline_locked();
  const MpaStartFrame& request = responder_->request();
  request_parameters_.initiator_depth = offered_depth(request.enhanced, request.ird);
  request_parameters_.responder_resources = offered_depth(request.enhanced, request.ord);
  const auto octets = responder_->private_data();
  request_parameters_.private_data.assign(octets.begin(), octets.end());
  watch_requested_locked();
}

// What waits in the socket may complete the Request of a peer that came just before a crowd.
void Connection::drop_half_open() {
  Lock lock(mutex_);
  if (phase_ == Phase::kReadingRequest) read_request_locked();
  if (phase_ == Phase::kReadingRequest) {
    static CollapsedLog log;
    log.event("listener: too many connections without a request: one of %s is reset",
              name_of(remote_).c_str());
    close_locked(CloseMode::kReset);
  }
  finish(lock);
}

// Between Request and Reply the peer must be silent: octets now are a protocol error, and its end
// makes accept() fail.
void Connection::watch_requested_locked() {
  if (peer_left_) return;
  const ssize_t count = socket_.peek();
  if (count == -EAGAIN) return;
  peer_left_ = true;
  peer_left_error_ = count > 0 ? EPROTO : ECONNRESET;
  static CollapsedLog log;
  log.event("connection: %s %s before the reply", name_of(remote_).c_str(),
            count > 0 ? "went on sending" : "left");
}

int Connection::send_reply_locked(std::span<const std::byte> reply) {
  const ssize_t sent = send_frame_locked(reply);
  // The send buffer is empty and larger than any frame.
  return sent == static_cast<ssize_t>(reply.size()) ? 0 : ECONNRESET;
}

int Connection::accept(std::shared_ptr<Endpoint> endpoint, ConnectParameters parameters,
                       std::weak_ptr<ConnectionOwner> owner, bool rendezvous) {
  Lock lock(mutex_);
  if (phase_ == Phase::kClosed && peer_left_) return ECONNRESET;
  if (endpoint == nullptr || phase_ != Phase::kRequested) return EINVAL;
  if (parameters.private_data.size() > responder_->private_data_max()) return EINVAL;
  watch_requested_locked();
  if (peer_left_) {
    close_locked(CloseMode::kReset);
    return ECONNRESET;
  }
  if (int error = endpoint->claim(shared(), rendezvous)) return error;
  endpoint_ = std::move(endpoint);
  owner_ = std::move(owner);
  rendezvous_ = rendezvous;
  parameters_ = std::move(parameters);
  if (int error = start_or_leave_locked([&] { return answer_and_open_locked(); })) return error;
  if (peer_to_peer_) {
    deadlines_[Deadline::kStartup] = now_ns() + settings().mpa_timeout_ms * kNsPerMs;
    update_deadline_locked();
  } else {
    established_locked();
  }
  finish_later(lock);
  return 0;
}

int Connection::answer_and_open_locked() {
  const MpaResponder::Reply reply =
      responder_->accept(with_reserve(parameters_.responder_resources),
                         with_reserve(parameters_.initiator_depth), parameters_.private_data);
  peer_to_peer_ = reply.negotiated.peer_to_peer;
  if (int error = send_reply_locked(reply.bytes)) return error;
  return open_stream_locked(reply.negotiated, false);
}

int Connection::reject(std::span<const std::byte> private_data) {
  const Lock lock(mutex_);
  if (phase_ != Phase::kRequested || private_data.size() > responder_->private_data_max())
    return EINVAL;
  (void)send_reply_locked(responder_->reject(private_data).bytes);
  close_locked(CloseMode::kGentle);
  return 0;
}

// --- Both
// -----------------------------------------------------------------------------------------

void Connection::begin_capture_locked() {
  if (Capture* capture = context_.capture)
    captured_ = std::make_unique<CapturedConnection>(*capture, local_, remote_, active_);
}

ssize_t Connection::send_frame_locked(std::span<const std::byte> octets) {
  const ssize_t sent = socket_.send(octets.data(), octets.size());
  if (captured_ != nullptr && sent > 0) {
    const iovec piece = {const_cast<std::byte*>(octets.data()), octets.size()};
    captured_->sent({&piece, 1}, static_cast<size_t>(sent));
  }
  return sent;
}

ssize_t Connection::receive_frame_locked(std::span<std::byte> room) {
  const ssize_t count = socket_.receive(room.data(), room.size());
  if (captured_ != nullptr && count > 0) {
    const iovec piece = {room.data(), room.size()};
    captured_->received({&piece, 1}, static_cast<size_t>(count));
  } else if (captured_ != nullptr && count != -EAGAIN) {
    captured_->peer_ended(count < 0);
  }
  return count;
}

void Connection::start_up_locked(uint32_t events) {
  if (!socket_) return;  // a late edge of a socket that was refused: another try is under way
  if (phase_ == Phase::kConnecting && (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0)
    continue_connect_locked();
  if (phase_ == Phase::kAwaitingReply) {
    send_request_locked();
    if (phase_ == Phase::kAwaitingReply) read_reply_locked();
  }
  if (phase_ == Phase::kReadingRequest) read_request_locked();
  if (phase_ == Phase::kRequested) watch_requested_locked();
}

}  // namespace uwarp
