// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A connection before FPDU mode: TCP, then Request and Reply, in both roles, and the hand-over.
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/settings.h"
#include "connect/connect_context.h"
#include "connect/connection.h"
#include "connect/endpoint.h"
#include "connect/listener.h"
#include "inject/process_faults.h"
#include "os/clock.h"
#include "os/output_file.h"

namespace uwarp {
namespace {

/// One read of start-up bytes: never more than the frame needs, so that nothing behind it is
/// taken out of the socket.
using FrameBuffer = std::array<std::byte, MpaStartFrame::kSizeMax>;

Result<TcpSocket> socket_for(ActiveStartup::Options& options) {
  if (options.bound) {
    use_port(options.bound);
    return std::move(options.bound);
  }
  auto opened = TcpSocket::open(options.remote.ss_family);
  if (!opened || address_length(options.local) == 0) return opened;
  opened->set_reuse_address(true);
  opened->set_late_port();
  if (int error = opened->bind(options.local)) return Error{error};
  return opened;
}

/// Ports that are tried if the kernel finds none: each takes some microseconds.
constexpr int kDrawnPorts = 256;

/// Connects the socket. If the kernel is to choose the port, it takes none that a socket was bound
/// to, although only connections to other peers may have it, which have ended a minute ago at most.
/// If it finds no other, ports are tried until TCP can share one.
int connect_from_any_port(TcpSocket& socket, const ActiveStartup::Options& options) {
  socket.set_tos(options.tos);
  int error = socket.connect(options.remote);
  if (error != EADDRNOTAVAIL) return error;
  const PortRange range = any_ports();
  sockaddr_storage local = options.local;
  if (address_length(local) == 0 || port_of(local) != 0 || range.empty()) return error;
  for (int i = 0; i < kDrawnPorts && error == EADDRNOTAVAIL; ++i) {
    set_port(local, drawn_port(range));
    auto drawn = TcpSocket::open(options.remote.ss_family);
    if (!drawn) return drawn.error();
    drawn->set_reuse_address(true);
    if (drawn->bind(local) != 0) continue;
    drawn->set_tos(options.tos);
    error = drawn->connect(options.remote);
    socket = std::move(*drawn);
  }
  return error;
}

}  // namespace

// --- Active

Result<std::shared_ptr<Connection>> Connection::connect(ConnectContext& context,
                                                        std::shared_ptr<Endpoint> endpoint,
                                                        ConnectOptions options,
                                                        ConnectParameters parameters,
                                                        std::weak_ptr<ConnectionOwner> owner) {
  if (endpoint == nullptr || address_length(options.remote) == 0 ||
      parameters.private_data.size() > kPrivateDataEnhancedMax)
    return Error{EINVAL};
  if (!context.tls.error().empty()) return Error{EACCES};
  if (int error = context.progress.start_helper()) return Error{error};
  std::shared_ptr<Connection> connection(new Connection(context, std::move(owner)));
  if (int error = endpoint->claim(connection, options.rendezvous)) return Error{error};
  Turn turn(*connection);
  connection->endpoint_ = std::move(endpoint);
  connection->remote_ = options.remote;
  options.acknowledged = connection->acknowledged();
  const int error =
      connection->start_or_close(turn, [&, self = connection.get()]() NO_THREAD_SAFETY_ANALYSIS {
        auto startup = std::make_unique<ActiveStartup>(std::move(options), std::move(parameters),
                                                       context.startup_modes, now_ns());
        self->local_ = startup->options().local;
        self->state_ = std::move(startup);
        return self->dial(turn, *self->active());
      });
  if (error != 0) return Error{error};
  connection->finish(turn, Calls::kLater);
  return connection;
}

// One attempt. Returns an errno for faults of our own; what the network says goes to the start-up,
// which may have been destroyed then.
int Connection::dial(Turn& turn, ActiveStartup& startup) {
  auto made = socket_for(startup.options());
  if (!made) return made.error();
  const int error = connect_from_any_port(*made, startup.options());
  socket_.take(std::move(*made));
  if (error != 0 && error != EINPROGRESS) {
    follow(turn, startup, startup.on_failed(error, now_ns()));
    return 0;
  }
  if (int failed = socket_.watch(*this)) return failed;
  // On the own host it stands already. Then its Request goes out before those of later connections:
  // programs with several (perftest -R -q) take the order in which they arrive for that in which
  // they were begun.
  const bool stands = address_length(socket_.tcp().remote_address()) != 0;
  if (stands && !startup.options().rendezvous) check_tcp(turn, startup);
  return 0;
}

void Connection::check_tcp(Turn& turn, ActiveStartup& startup) {
  if (int error = socket_.tcp().take_error())
    return follow(turn, startup, startup.on_failed(error, now_ns()));
  // Writability before the connection stands is reported as EPOLLHUP, never as a peer address.
  if (address_length(socket_.tcp().remote_address()) == 0) return;
  local_ = socket_.tcp().local_address();
  socket_.tcp().settle(socket_.tcp().distance(local_, remote_));
  socket_.begin_capture(context_.capture, local_, remote_, true);
  if (int error = begin_tls(true)) return follow(turn, startup, startup.on_failed(error, now_ns()));
  shake_hands(turn, startup);
}

// A peer that is refused is not asked again in another mode.
void Connection::shake_hands(Turn& turn, ActiveStartup& startup) {
  const int error = secure();
  if (error == EAGAIN) return;
  if (error != 0) return follow(turn, startup, startup.on_failed(error, now_ns()));
  startup.on_connected();
  send_request(turn, startup);
}

void Connection::send_request(Turn& turn, ActiveStartup& startup) {
  const auto request = startup.unsent();
  if (!request.empty()) follow(turn, startup, startup.on_sent(socket_.send(request), now_ns()));
}

void Connection::read_reply(Turn& turn) {
  FrameBuffer buffer;
  while (active() != nullptr && active()->requesting()) {
    ActiveStartup& startup = *active();
    const size_t wanted = std::min(startup.bytes_wanted(), buffer.size());
    const ssize_t count = socket_.receive(std::span(buffer).first(wanted));
    if (count == -EAGAIN) return;
    if (count < 0 && socket_.tls_failed()) {
      log_tls_failure();
      return follow(turn, startup, startup.on_failed(ECONNRESET, now_ns()));
    }
    const auto bytes = std::span(buffer).first(static_cast<size_t>(std::max<ssize_t>(count, 0)));
    follow(turn, startup, startup.on_received(count, bytes, now_ns()));
  }
}

void Connection::follow(Turn& turn, ActiveStartup& startup, ActiveStartup::Next next) {
  switch (next) {
    case ActiveStartup::Next::kWait:
      return;
    case ActiveStartup::Next::kPause:
      return socket_.close(CloseMode::kReset);
    case ActiveStartup::Next::kDial:
      socket_.close(CloseMode::kReset);  // frees the local port at once
      if (int error = dial(turn, startup))
        follow(turn, startup, startup.on_failed(error, now_ns()));
      return;
    case ActiveStartup::Next::kOpen:
      return reply_accepted(turn, startup);
    case ActiveStartup::Next::kOver:
      break;
  }
  const ActiveStartup::End& end = startup.end();
  if (end.terminate_size != 0)
    (void)socket_.send(std::span(end.terminate).first(end.terminate_size));
  ConnectParameters peer;
  peer.private_data = end.private_data;
  calls_.notify(end.rejected ? OwnerCalls::kRejected : OwnerCalls::kFailed, end.status,
                std::move(peer));
  close(turn, end.close);
}

void Connection::edge(Turn& turn, ActiveStartup& startup, uint32_t events) {
  // A late edge of a socket that was refused finds a start-up that pauses.
  if (startup.dialling() && socket_.securing())
    shake_hands(turn, startup);
  else if (startup.dialling() && (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0)
    check_tcp(turn, startup);
  if (active() != nullptr && active()->requesting()) send_request(turn, *active());
  read_reply(turn);
}

// --- TLS

int Connection::begin_tls(bool active) {
  if (!context_.tls.wanted()) return 0;
  if (!context_.tls.error().empty()) return EACCES;
  return socket_.secure(context_.tls, active);
}

int Connection::secure() {
  if (!socket_.securing()) return 0;
  const int error = socket_.shake_hands();
  if (error != 0) {
    if (error != EAGAIN) log_tls_failure();
    return error;
  }
  const std::string identity = socket_.peer_identity();
  if (passive() != nullptr && !settings().allow.allows(identity)) {
    static CollapsedLog log;
    log.event("connection: %s of %s is not in UWARP_ALLOW", identity.c_str(),
              name_of(remote_).c_str());
    return EACCES;
  }
  if (log_enabled())
    log_event("connection: %s is %s, proved by TLS", name_of(remote_).c_str(), identity.c_str());
  return 0;
}

void Connection::log_tls_failure() {
  if (!socket_.tls_failed()) return;
  static CollapsedLog log;
  log.event("connection: TLS with %s has failed: %s", name_of(remote_).c_str(),
            socket_.tls()->failure().c_str());
}

// --- Passive

std::shared_ptr<Connection> Connection::incoming(ConnectContext& context, TcpSocket socket,
                                                 const sockaddr_storage& remote,
                                                 std::weak_ptr<Listener> listener) {
  std::shared_ptr<Connection> connection(new Connection(context, {}));
  Turn turn(*connection);
  connection->local_ = socket.local_address();
  connection->remote_ = remote;
  connection->socket_.take(std::move(socket));
  connection->state_ = std::make_unique<PassiveStartup>(
      std::move(listener), asks_for_crc(), Deadline::after_ms(settings().mpa_timeout_ms));
  connection->socket_.begin_capture(context.capture, connection->local_, remote, false);
  TcpSocket& tcp = connection->socket_.tcp();
  tcp.settle(tcp.distance(connection->local_, remote));
  if (connection->begin_tls(false) != 0) return nullptr;
  if (connection->socket_.watch(*connection) != 0) return nullptr;
  connection->update_deadline(turn);
  return connection;
}

void Connection::read_request(Turn& turn) {
  FrameBuffer buffer;
  const int refused = passive() != nullptr ? secure() : 0;
  if (refused == EAGAIN) return;
  if (refused != 0) return close(turn, CloseMode::kGentle);  // an alert says why
  while (passive() != nullptr && passive()->reading()) {
    PassiveStartup& startup = *passive();
    const size_t wanted = std::min(startup.bytes_wanted(), buffer.size());
    const ssize_t count = socket_.receive(std::span(buffer).first(wanted));
    if (count == -EAGAIN) return;
    if (count < 0) log_tls_failure();
    const auto bytes = std::span(buffer).first(static_cast<size_t>(std::max<ssize_t>(count, 0)));
    const MpaResponder::Verdict verdict = startup.on_received(count, bytes);
    if (verdict.state == MpaResponder::State::kRefused)
      return refuse_request(turn, startup, verdict.failure);
    if (verdict.state == MpaResponder::State::kNeedMore) continue;
    request_parameters_ = startup.take_parameters();
    turn.listener = startup.listener();
    watch_requested(startup);
  }
}

void Connection::refuse_request(Turn& turn, PassiveStartup& startup, MpaFailure why) {
  static CollapsedLog ended, refused;
  if (why == MpaFailure::kPeerClosed) {
    ended.event("connection: %s ended it before its request was complete",
                name_of(remote_).c_str());
    return close(turn, CloseMode::kReset);
  }
  refused.event("connection: refused a request of %s: %s", name_of(remote_).c_str(), describe(why));
  const auto refusal = startup.responder().refusal();
  if (!refusal.empty()) (void)socket_.send(refusal);
  close(turn, CloseMode::kGentle);
}

// What waits in the socket may complete the Request of a peer that came just before a crowd.
void Connection::drop_half_open() {
  Turn turn(*this);
  read_request(turn);
  if (passive() != nullptr && passive()->reading()) {
    static CollapsedLog log;
    log.event("listener: too many connections without a request: one of %s is reset",
              name_of(remote_).c_str());
    close(turn, CloseMode::kReset);
  }
  finish(turn);
}

void Connection::watch_requested(PassiveStartup& startup) {
  if (!startup.requested()) return;
  const ssize_t count = socket_.peek();
  if (!startup.on_peeked(count)) return;
  static CollapsedLog log;
  log.event("connection: %s %s before the reply", name_of(remote_).c_str(),
            count > 0 ? "went on sending" : "left");
}

int Connection::send_reply(std::span<const std::byte> reply) {
  // The send buffer is empty and larger than any frame.
  return socket_.send(reply) == static_cast<ssize_t>(reply.size()) ? 0 : ECONNRESET;
}

int Connection::accept(std::shared_ptr<Endpoint> endpoint, const ConnectParameters& parameters,
                       std::weak_ptr<ConnectionOwner> owner, bool rendezvous) {
  Turn turn(*this);
  const auto* const closed = std::get_if<Closed>(&state_);
  if (closed != nullptr && closed->peer_left) return ECONNRESET;
  PassiveStartup* const startup = passive();
  if (endpoint == nullptr || startup == nullptr || startup->reading()) return EINVAL;
  if (parameters.private_data.size() > startup->responder().private_data_max()) return EINVAL;
  watch_requested(*startup);
  if (startup->peer_left()) {
    close(turn, CloseMode::kReset);
    return ECONNRESET;
  }
  if (int error = endpoint->claim(shared(), rendezvous)) return error;
  endpoint_ = std::move(endpoint);
  calls_.set_owner(std::move(owner));
  const auto start = [&]() NO_THREAD_SAFETY_ANALYSIS {
    return answer_and_open(turn, *startup, parameters, rendezvous);
  };
  if (int error = start_or_close(turn, start)) return error;
  finish(turn, Calls::kLater);
  return 0;
}

int Connection::answer_and_open(Turn& turn, PassiveStartup& startup,
                                const ConnectParameters& parameters, bool rendezvous) {
  MpaResponder& responder = startup.responder();
  const MpaResponder::Reply reply = responder.accept(
      with_reserve(parameters.responder_resources, acknowledged()),
      with_reserve(parameters.initiator_depth, acknowledged()), parameters.private_data);
  if (int error = send_reply(reply.bytes)) return error;
  const bool peer_opens = reply.negotiated.peer_to_peer;
  const Agreed agreed{reply.negotiated, responder.request().crc, parameters.initiator_depth,
                      rendezvous, false};
  if (int error = open_stream(turn, agreed)) return error;
  if (!peer_opens) established({});
  return 0;
}

int Connection::reject(std::span<const std::byte> private_data) {
  Turn turn(*this);
  PassiveStartup* const startup = passive();
  if (startup == nullptr || startup->reading() ||
      private_data.size() > startup->responder().private_data_max())
    return EINVAL;
  (void)send_reply(startup->responder().reject(private_data).bytes);
  close(turn, CloseMode::kGentle);
  return 0;
}

}  // namespace uwarp
