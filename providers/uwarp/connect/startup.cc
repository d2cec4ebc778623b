// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "connect/startup.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/settings.h"
#include "inject/process_faults.h"

namespace uwarp {

const char* describe(StartupMode mode) {
  switch (mode) {
    case StartupMode::kPeerToPeer:
      return "revision 2, peer to peer, RTR Write or Read";
    case StartupMode::kPlain:
      return "revision 2 without peer-to-peer";
    case StartupMode::kRevision1:
      return "revision 1";
  }
  return "?";
}

std::string name_of(const sockaddr_storage& peer) {
  return ip_of(peer).to_string() + " port " + std::to_string(port_of(peer));
}

StartupModeCache::Peer StartupModeCache::peer_of(const sockaddr_storage& address) {
  return {ip_of(address), port_of(address)};
}

StartupMode StartupModeCache::first_for(const sockaddr_storage& peer, uint64_t now_ns) {
  const Lock guard(mutex_);
  const auto found = entries_.find(peer_of(peer));
  if (found == entries_.end()) return StartupMode::kPeerToPeer;
  if (found->second.end_ns > now_ns) return found->second.mode;
  entries_.erase(found);
  return StartupMode::kPeerToPeer;
}

void StartupModeCache::remember(const sockaddr_storage& peer, StartupMode mode, uint64_t now_ns) {
  if (mode == StartupMode::kPeerToPeer) return forget(peer);
  const Lock guard(mutex_);
  const Peer key = peer_of(peer);
  const auto found = entries_.find(key);
  // Not prolonged by use: otherwise a busy client would never look for better.
  if (found != entries_.end() && found->second.mode == mode && found->second.end_ns > now_ns)
    return;
  if (found == entries_.end() && entries_.size() >= kMaxPeers) make_space_locked(now_ns);
  try {
    entries_[key] = {mode, now_ns + kKeepNs};
  } catch (const std::bad_alloc&) {
    // The ladder is climbed down again next time.
  }
}

void StartupModeCache::forget(const sockaddr_storage& peer) {
  const Lock guard(mutex_);
  entries_.erase(peer_of(peer));
}

size_t StartupModeCache::size() {
  const Lock guard(mutex_);
  return entries_.size();
}

void StartupModeCache::make_space_locked(uint64_t now_ns) {
  std::erase_if(entries_, [&](const auto& entry) { return entry.second.end_ns <= now_ns; });
  if (entries_.size() < kMaxPeers) return;
  const auto oldest = std::min_element(
      entries_.begin(), entries_.end(),
      [](const auto& a, const auto& b) { return a.second.end_ns < b.second.end_ns; });
  entries_.erase(oldest);
}

namespace {

/// Private data that every known peer takes in revision 2 (docs/siw.md).
constexpr size_t kPrivateDataEverywhere = 252;

}  // namespace

ActiveStartup::ActiveStartup(Options options, ConnectParameters parameters, StartupModeCache& modes,
                             uint64_t now_ns)
    : options_(std::move(options)), parameters_(std::move(parameters)), modes_(modes) {
  // The modes after the first need the same port again.
  if (options_.bound) options_.local = options_.bound.local_address();
  const uint32_t own_ms = options_.timeout_ms;  // limits the start-up: RFC 5044-7.1.2-e
  end_ = {now_ns + (own_ms != 0 ? own_ms : settings().connect_timeout_ms) * kNsPerMs};
  if (settings().mpa_revision < 2) {
    mode_ = StartupMode::kRevision1;
  } else if (!options_.rendezvous && options_.falls_back) {
    mode_ = modes_.first_for(options_.remote, now_ns);
    remembered_ = mode_ != StartupMode::kPeerToPeer;
  }
  if (log_enabled())
    log_event("connection: to %s in %s%s", name_of(options_.remote).c_str(), describe(mode_),
              remembered_ ? ", as remembered" : "");
}

Deadline ActiveStartup::deadline() const {
  const auto* const pausing = std::get_if<Pausing>(&state_);
  return pausing == nullptr ? end_ : earliest({end_, pausing->redial});
}

void ActiveStartup::on_connected() {
  MpaInitiator::Config config;
  config.revision = mode_ == StartupMode::kRevision1 ? 1 : 2;
  config.peer_to_peer = mode_ == StartupMode::kPeerToPeer;
  config.crc = asks_for_crc();
  config.ird = with_reserve(parameters_.responder_resources, options_.acknowledged);
  config.ord = with_reserve(parameters_.initiator_depth, options_.acknowledged);
  config.ird_limit = settings().adapter.max_read_depth();
  config.private_data = parameters_.private_data;
  state_.emplace<Requesting>(config);
}

std::span<const std::byte> ActiveStartup::unsent() const {
  const auto& requesting = std::get<Requesting>(state_);
  return requesting.initiator.request().subspan(requesting.sent);
}

ActiveStartup::Next ActiveStartup::on_sent(ssize_t count, uint64_t now_ns) {
  auto& requesting = std::get<Requesting>(state_);
  if (count > 0) requesting.sent += static_cast<size_t>(count);
  if (count > 0 || count == -EAGAIN) return Next::kWait;
  return judge(requesting.initiator.on_end_of_stream(), now_ns);
}

ActiveStartup::Next ActiveStartup::on_received(ssize_t count, std::span<const std::byte> bytes,
                                               uint64_t now_ns) {
  if (count == -EAGAIN) return Next::kWait;
  MpaInitiator& initiator = std::get<Requesting>(state_).initiator;
  if (count > 0) return judge(initiator.on_bytes(bytes), now_ns);
  if (count == 0 || count == -ECONNRESET) return judge(initiator.on_end_of_stream(), now_ns);
  return on_failed(static_cast<int>(-count), now_ns);
}

ActiveStartup::Next ActiveStartup::judge(const MpaInitiator::Verdict& verdict, uint64_t now_ns) {
  switch (verdict.state) {
    case MpaInitiator::State::kNeedMore:
      return Next::kWait;
    case MpaInitiator::State::kAccepted:
      remember_mode(now_ns);
      return Next::kOpen;
    case MpaInitiator::State::kRejected: {
      remember_mode(now_ns);
      End end{.rejected = true, .status = -ECONNREFUSED, .close = CloseMode::kGentle};
      const auto bytes = initiator().private_data();
      end.private_data.assign(bytes.begin(), bytes.end());
      return over(std::move(end));
    }
    case MpaInitiator::State::kFailed:
      break;
  }
  log_event("connection: start-up failed: %s", describe(verdict.failure));
  if (fall_back(verdict)) return Next::kDial;
  if (verdict.failure == MpaFailure::kPeerClosed) return on_failed(ECONNRESET, now_ns);
  if (!options_.rendezvous) modes_.forget(options_.remote);
  End end{.status = -EPROTO, .close = CloseMode::kGentle};
  if (verdict.terminate)
    end.terminate_size = write_bare_terminate_fpdu(end.terminate.data(), *verdict.terminate,
                                                   initiator().reply().crc || asks_for_crc());
  return over(std::move(end));
}

ActiveStartup::Next ActiveStartup::over(End end) {
  state_ = std::move(end);
  return Next::kOver;
}

// What the user may look at, for faults that the network reports.
void ActiveStartup::log_failure(int error) const {
  if (!log_enabled()) return;
  const std::string peer = name_of(options_.remote);
  if (error == ECONNREFUSED)
    return log_event("connection: %s is reached, but no program listens on this port",
                     peer.c_str());
  if (error != ETIMEDOUT)
    return log_event("connection: to %s: %s", peer.c_str(), std::strerror(error));
  if (requesting())
    return log_event(
        "connection: %s takes the connection and sends no MPA Reply: another program "
        "listens there, or the server has not called rdma_accept in time",
        peer.c_str());
  log_event(
      "connection: %s does not answer TCP in time: compare the address, and let no firewall "
      "drop this port",
      peer.c_str());
}

// Routes are found in no time here, so a client may come too early, which on an adapter it hardly
// can: qperf's server names its port before it listens, and with acknowledgements one that listens
// anew after its last Send (perftest's -R) does so a round trip later than its client has that.
ActiveStartup::Next ActiveStartup::on_failed(int error, uint64_t now_ns) {
  if (error == ECONNREFUSED && !options_.rendezvous && !requesting() && redials_ < kMostRedials) {
    ++redials_;
    state_ = Pausing{{now_ns + kRedialWaitNs}};
    return Next::kPause;
  }
  if (!options_.rendezvous) {
    log_failure(error);
    modes_.forget(options_.remote);
  }
  return over({.rejected = error == ECONNREFUSED || error == ECONNRESET, .status = -error});
}

ActiveStartup::Next ActiveStartup::on_deadline(uint64_t now_ns) {
  if (end_.take_passed(now_ns)) return on_failed(ETIMEDOUT, now_ns);
  auto* const pausing = std::get_if<Pausing>(&state_);
  if (pausing == nullptr || !pausing->redial.take_passed(now_ns)) return Next::kWait;
  state_ = Dialling{};
  return Next::kDial;
}

// --- Modes

// An old peer closes on what it does not know, so the next mode is tried. RFC 6581-10-a. Where the
// memory was wrong all modes are, once.
bool ActiveStartup::fall_back(const MpaInitiator::Verdict& verdict) {
  const bool closed = verdict.failure == MpaFailure::kPeerClosed;
  if (options_.rendezvous || !options_.falls_back ||
      (!closed && verdict.failure != MpaFailure::kRevisionMismatch))
    return false;
  if (std::exchange(remembered_, false)) {
    modes_.forget(options_.remote);
    mode_ = StartupMode::kPeerToPeer;
  } else if (!verdict.retry_revision1 || mode_ == StartupMode::kRevision1) {
    return false;
  } else if (mode_ == StartupMode::kPeerToPeer && closed) {
    mode_ = StartupMode::kPlain;
  } else {
    mode_ = StartupMode::kRevision1;  // also when the Reply says so
  }
  log_event("connection: trying %s", describe(mode_));
  state_ = Dialling{};
  return true;
}

void ActiveStartup::remember_mode(uint64_t now_ns) {
  remembered_ = false;
  if (options_.rendezvous || !options_.falls_back || settings().mpa_revision < 2) return;
  // What was too long for revision 2 at the peer may be all that kept it from the modes above.
  const bool first = mode_ == StartupMode::kPeerToPeer;
  if (!first && parameters_.private_data.size() > kPrivateDataEverywhere) return;
  modes_.remember(options_.remote, mode_, now_ns);
  if (!first && log_enabled())
    log_event("connection: %s has replied in %s, which is remembered",
              name_of(options_.remote).c_str(), describe(mode_));
}

}  // namespace uwarp
