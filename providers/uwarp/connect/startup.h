// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How a connection starts: which mode a peer has understood, and the two sides of a start-up, both
// without IO. RFC 5044 7.1, RFC 6581.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <cerrno>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "base/settings.h"
#include "connect/connection_events.h"
#include "connect/connection_socket.h"
#include "net/ip_address.h"
#include "protocol/mpa/handshake.h"

namespace uwarp {

// Which mode of start-up a peer has understood. An initiator begins with the most capable mode and
// takes the next one when the peer closes without a Reply. If the peer has replied in a later mode,
// the next connections begin there for a while. RFC 6581 10. Owned by the Engine; any thread.
enum class StartupMode : uint8_t {
  kPeerToPeer,  // revision 2, peer to peer, a Write or a Read as ready-to-receive message
  kPlain,       // revision 2 without
  kRevision1,
};

const char* describe(StartupMode mode);
/// Address and port of a peer, for the log.
std::string name_of(const sockaddr_storage& peer);

class StartupModeCache {
 public:
  /// A newer peer may take this one's place at any time, or the peer may have been restarting when
  /// it did not reply.
  static constexpr uint64_t kKeepNs = uint64_t{5} * 60 * 1'000'000'000;
  static constexpr size_t kMaxPeers = 256;

  /// Where to begin with the peer at this address and port: at the top, unless another mode is
  /// remembered.
  StartupMode first_for(const sockaddr_storage& peer, uint64_t now_ns);
  /// The peer has replied on this mode. The top one needs no memory.
  void remember(const sockaddr_storage& peer, StartupMode mode, uint64_t now_ns);
  /// An attempt has failed: the next one begins at the top.
  void forget(const sockaddr_storage& peer);

  size_t size();

 private:
  struct Peer {
    IpAddress address;
    uint16_t port;
    friend auto operator<=>(const Peer&, const Peer&) = default;
  };
  struct Entry {
    StartupMode mode;
    uint64_t end_ns;
  };

  static Peer peer_of(const sockaddr_storage& address);
  void make_space_locked(uint64_t now_ns) REQUIRES(mutex_);

  Mutex mutex_;  // a leaf
  std::map<Peer, Entry> entries_ GUARDED_BY(mutex_);
};

// The active side of a start-up: dials, has its Request sent, reads the Reply, and tries the next
// mode, or the same one a moment later, where that may help. Without IO: results of the socket and
// the time go in, the next step comes out. RFC 5044 7.1, RFC 6581 6 to 10.
class ActiveStartup {
 public:
  /// A refused connection is tried again for a fifth of a second.
  static constexpr uint32_t kMostRedials = 20;
  static constexpr uint64_t kRedialWaitNs = 10'000'000;

  struct Options {
    TcpSocket bound{};         // of an earlier bind, for the first attempt; may be empty
    sockaddr_storage local{};  // without it; family AF_UNSPEC: kernel's choice
    sockaddr_storage remote{};
    int tos = -1;
    uint32_t timeout_ms = 0;    // 0: settings
    bool rendezvous = false;    // made without rdma_cm: neither falls back nor dials again
    bool falls_back = true;     // to modes in which the answerer may not send the first message
    bool acknowledged = false;  // QpConfig::acknowledged of its queue pair
  };
  enum class Next : uint8_t {
    kWait,
    kPause,  // close the socket with a reset, and wait
    kDial,   // the same, and open a new one
    kOpen,   // the peer has accepted: see initiator()
    kOver,   // see end()
  };
  /// How it ended without a stream.
  struct End {
    bool rejected = false;  // by the peer, with these private data, or by its TCP
    int status = 0;         // negative errno
    CloseMode close = CloseMode::kReset;
    std::vector<std::byte> private_data{};
    std::array<std::byte, kBareTerminateFpduSize> terminate{};
    size_t terminate_size = 0;  // bytes to send before the close
  };

  /// The first socket is to be dialled. `modes` outlives this object. Time in nanoseconds.
  ActiveStartup(Options options, ConnectParameters parameters, StartupModeCache& modes,
                uint64_t now_ns);

  Options& options() { return options_; }
  const ConnectParameters& parameters() const { return parameters_; }
  bool dialling() const { return std::holds_alternative<Dialling>(state_); }
  /// Our Request is being sent, or waits for the Reply.
  bool requesting() const { return std::holds_alternative<Requesting>(state_); }
  Deadline deadline() const;

  /// TCP is connected: the caller sends unsent(), and asks for it again whenever there is room.
  void on_connected();
  std::span<const std::byte> unsent() const;
  /// While requesting(): counts as of the socket, negative errno for errors.
  Next on_sent(ssize_t count, uint64_t now_ns);
  size_t bytes_wanted() const { return initiator().bytes_wanted(); }
  Next on_received(ssize_t count, std::span<const std::byte> bytes, uint64_t now_ns);
  /// A positive errno, of the network or our own.
  Next on_failed(int error, uint64_t now_ns);
  Next on_deadline(uint64_t now_ns);

  /// While requesting(), and after kOpen.
  const MpaInitiator& initiator() const { return std::get<Requesting>(state_).initiator; }
  /// After kOver.
  const End& end() const { return std::get<End>(state_); }

 private:
  struct Dialling {};
  struct Pausing {
    Deadline redial;
  };
  struct Requesting {
    explicit Requesting(const MpaInitiator::Config& config) : initiator(config) {}
    MpaInitiator initiator;
    size_t sent = 0;
  };

  Next judge(const MpaInitiator::Verdict& verdict, uint64_t now_ns);
  void log_failure(int error) const;
  bool fall_back(const MpaInitiator::Verdict& verdict);
  void remember_mode(uint64_t now_ns);
  Next over(End end);

  Options options_;
  const ConnectParameters parameters_;
  StartupModeCache& modes_;
  StartupMode mode_ = StartupMode::kPeerToPeer;
  bool remembered_ = false;  // mode_ comes from memory and has not been tried out yet
  uint32_t redials_ = 0;
  Deadline end_;
  std::variant<Dialling, Pausing, Requesting, End> state_;
};

// The passive side of a start-up: the Request is read, then waits for accept() or reject().
// Nothing is sent before. Without IO: bytes go in, the next step comes out. RFC 5044-7.1.2-b.
class Listener;

class PassiveStartup {
 public:
  /// `listener` is to be told when reading() is over, which it is at `end` at the latest.
  PassiveStartup(std::weak_ptr<Listener> listener, bool crc, Deadline end)
      : listener_(std::move(listener)),
        responder_(MpaResponder::Config{.crc = crc}),
        state_(Reading{end}) {}

  bool reading() const { return std::holds_alternative<Reading>(state_); }
  bool requested() const { return std::holds_alternative<Requested>(state_); }
  bool peer_left() const { return std::holds_alternative<PeerLeft>(state_); }
  std::shared_ptr<Listener> listener() const { return listener_.lock(); }
  MpaResponder& responder() { return responder_; }
  size_t bytes_wanted() const { return responder_.bytes_wanted(); }
  Deadline deadline() const {
    if (reading()) return std::get<Reading>(state_).end;
    return requested() ? std::get<Requested>(state_).end : Deadline();
  }

  /// requested(): it is answered until `end`, or not at all.
  void answer_until(Deadline end) {
    if (requested()) std::get<Requested>(state_).end = end;
  }
  /// While reading(): `count` as of the socket, not -EAGAIN, with the bytes if it is positive. If
  /// kRefused comes out, the responder's refusal() is to be sent, unless the peer has closed.
  MpaResponder::Verdict on_received(ssize_t count, std::span<const std::byte> bytes) {
    MpaResponder::Verdict verdict =
        count > 0 ? responder_.on_bytes(bytes) : responder_.on_end_of_stream();
    if (verdict.state != MpaResponder::State::kRequest) return verdict;
    const MpaStartFrame& request = responder_.request();
    const auto data = responder_.private_data();
    // What may fail comes first.
    const AdapterProfile& most = settings().adapter;
    parameters_ = {
        .responder_resources = offered_depth(request.enhanced, request.ord, most.max_qp_rd_atom),
        .initiator_depth = offered_depth(request.enhanced, request.ird, most.max_qp_init_rd_atom),
        .private_data = {data.begin(), data.end()}};
    state_ = Requested{};
    return verdict;
  }
  /// `count` as peeked, while the Request waits: the peer must be silent then. Bytes now are a
  /// protocol error, and its end makes accept() fail. True: this is news.
  bool on_peeked(ssize_t count) {
    if (!requested() || count == -EAGAIN) return false;
    state_ = PeerLeft{};
    return true;
  }
  /// True: the Request, or what answers it, has not come in time.
  bool on_deadline(uint64_t now_ns) {
    if (!deadline().take_passed(now_ns)) return false;
    if (reading()) log_event("connection: a peer has connected and sent no whole MPA Request");
    return true;
  }

  /// What the peer asks for, depths swapped for direct use in accept(). Once. RFC 6581-9.1-d/g.
  ConnectParameters take_parameters() { return std::move(parameters_); }

 private:
  struct Reading {
    Deadline end;
  };
  struct Requested {
    Deadline end;
  };
  struct PeerLeft {};

  std::weak_ptr<Listener> listener_;
  MpaResponder responder_;
  ConnectParameters parameters_;
  std::variant<Reading, Requested, PeerLeft> state_;
};

}  // namespace uwarp
