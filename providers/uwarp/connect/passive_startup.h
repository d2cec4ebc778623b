// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The passive side of a start-up: the Request is read, then waits for accept() or reject().
// Without IO: what was read goes in, the next step comes out. RFC 5044 7.1, RFC 6581.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <variant>

#include "base/log.h"
#include "connect/connection_events.h"
#include "connect/deadline.h"
#include "protocol/mpa/handshake.h"

namespace uwarp {

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
  Deadline deadline() const { return reading() ? std::get<Reading>(state_).end : Deadline(); }

  /// While reading(): `count` as of the socket, not -EAGAIN, with the bytes if it is positive. If
  /// kRefused comes out, the responder's refusal() is to be sent, unless the peer has closed.
  MpaResponder::Verdict on_received(ssize_t count, std::span<const std::byte> bytes) {
    MpaResponder::Verdict verdict =
        count > 0 ? responder_.on_bytes(bytes) : responder_.on_end_of_stream();
    if (verdict.state != MpaResponder::State::kRequest) return verdict;
    parameters_ = asked_for();  // what may fail comes first
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
  /// True: the Request has not come in time.
  bool on_deadline(uint64_t now_ns) {
    auto* const reading = std::get_if<Reading>(&state_);
    if (reading == nullptr || !reading->end.take_passed(now_ns)) return false;
    log_event("connection: start-up timed out");
    return true;
  }

  /// What the peer asks for, depths swapped for direct use in accept(). Once.
  ConnectParameters take_parameters() { return std::move(parameters_); }

 private:
  ConnectParameters asked_for() const {
    const MpaStartFrame& request = responder_.request();
    const auto bytes = responder_.private_data();
    return {.responder_resources = offered_depth(request.enhanced, request.ord),
            .initiator_depth = offered_depth(request.enhanced, request.ird),
            .private_data = {bytes.begin(), bytes.end()}};
  }

  struct Reading {
    Deadline end;
  };
  struct Requested {};
  struct PeerLeft {};

  std::weak_ptr<Listener> listener_;
  MpaResponder responder_;
  ConnectParameters parameters_;
  std::variant<Reading, Requested, PeerLeft> state_;
};

}  // namespace uwarp
