// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The active side of a start-up: dials, has its Request sent, reads the Reply, and tries the next
// mode, or the same one a moment later, where that may help. Without IO: results of the socket and
// the time go in, the next step comes out. RFC 5044 7.1, RFC 6581 6 to 10.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "connect/connection_events.h"
#include "connect/connection_socket.h"
#include "connect/deadline.h"
#include "connect/startup_mode_cache.h"
#include "protocol/mpa/handshake.h"

namespace uwarp {

class ActiveStartup {
 public:
  /// A refused connection is tried again for a fifth of a second.
  static constexpr uint32_t kMostRedials = 20;
  static constexpr uint64_t kRedialWaitNs = 10'000'000;

  struct Options {
    std::optional<TcpSocket> bound{};  // socket of an earlier bind, for the first attempt
    sockaddr_storage local{};          // without it; family AF_UNSPEC: kernel's choice
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

  void choose_mode(uint64_t now_ns);
  Next judge(const MpaInitiator::Verdict& verdict, uint64_t now_ns);
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

}  // namespace uwarp
