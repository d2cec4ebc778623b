// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The hand-over from the start-up to FPDU mode: what the stream begins with.
#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "base/settings.h"
#include "connect/connect_context.h"
#include "connect/connection.h"
#include "connect/endpoint.h"
#include "connect/peer_magic.h"
#include "os/clock.h"
#include "protocol/mpa/fpdu.h"

namespace uwarp {
namespace {

/// If neither the queue pair nor UWARP_PEER_TIMEOUT_MS says anything (rdma_cm sets no timeout on
/// iWARP).
constexpr uint32_t kDefaultPeerTimeoutMs = 30'000;
/// What a queue pair's own timeout is raised to. It is meant for a network that never loses
/// packets; TCP needs some retransmissions of up to a second each before silence means anything.
constexpr uint32_t kLeastPeerTimeoutMs = 5'000;

StreamConfig::Rtr rtr_of(RtrKind kind) {
  switch (kind) {
    case RtrKind::kWrite:
      return StreamConfig::Rtr::kWrite;
    case RtrKind::kRead:
      return StreamConfig::Rtr::kRead;
    case RtrKind::kNone:
      break;
  }
  return StreamConfig::Rtr::kNone;
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
  // The private data of a rendezvous says that the peer is a uwarp. An answer to the mark could
  // reach a peer that has sent its one message and gone, which would answer by RST.
  config.peer_is_uwarp = agreed.rendezvous;
  config.answer_magic = !agreed.initiator && !agreed.rendezvous;
  config.magic_stag = kPeerMagicStag;
  config.magic_offset = kPeerMagicOffset;
  config.may_leave_tcp = settings().why_only_tcp() == nullptr;
  if (agreed.initiator) {
    config.rtr = rtr_of(negotiated.rtr);
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
  Life::Terms terms;
  terms.rendezvous = agreed.rendezvous;
  terms.acknowledged = acknowledged();
  terms.unreliable = is_unreliable(endpoint_->qp().config().transport);
  terms.nudges = agreed.initiator && !agreed.rendezvous;
  terms.peer_timeout_ms =
      own_ms == 0 ? usual_peer_timeout_ms() : std::max(own_ms, kLeastPeerTimeoutMs);
  if (!agreed.initiator && agreed.negotiated.peer_to_peer)
    terms.first_fpdu = Deadline::after_ms(settings().mpa_timeout_ms);
  // RFC 1122 keepalive finds a peer that vanished while nothing was under way, FpduLife one that
  // owes an acknowledgement.
  socket_.tcp().set_keepalive(terms.peer_timeout_ms);
  // Killed: a peer that holds messages back would never see a FIN behind them.
  if (terms.rendezvous || terms.acknowledged) socket_.tcp().set_reset_on_close(true);
  return enter_life(turn, stream_config(agreed), terms);
}

int Connection::enter_life(Turn& turn, const StreamConfig& config, const Life::Terms& terms) {
  if (!endpoint_->open_stream(*this, config, socket_.ends(*this))) return ECONNABORTED;
  if (config.may_leave_tcp && dialed_) endpoint_->stream().tell_when_busy();
  if (log_enabled()) [[unlikely]]
    log_carrier();
  state_.emplace<Life>(*endpoint_, socket_.tcp(), terms, now_ns());
  turn.pump = true;
  const std::lock_guard guard(endpoint_lock_);
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
  const int error = connection->start_or_close(turn, [&, self = connection.get()] {
    if (int failed = self->socket_.watch(*self)) return failed;
    return self->enter_life(
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

}  // namespace uwarp
