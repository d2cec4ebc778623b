// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The passive side of a start-up: the Request is read, then waits for accept() or reject().
// Without IO: what was read goes in, what follows comes out. RFC 5044 7.1, RFC 6581.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>

#include "connect/connection_events.h"
#include "connect/deadline.h"
#include "protocol/mpa/handshake.h"

namespace uwarp {

class Listener;

class PassiveStartup {
 public:
  PassiveStartup(std::weak_ptr<Listener> listener, bool crc, Deadline end)
      : listener_(std::move(listener)),
        responder_(MpaResponder::Config{.crc = crc}),
        state_(Reading{end}) {}

  enum class Next : uint8_t {
    kWait,
    kRequested,  // the Request is whole
    kRefused,    // the responder's refusal() is to be sent, then close
    kGone,       // the peer has left
  };
  /// `count` as received, with the octets if it is positive.
  Next on_received(ssize_t count, std::span<const std::byte> octets);
  /// `count` as peeked, while the Request waits: the peer must be silent then. Octets now are a
  /// protocol error, and its end makes accept() fail. True: this is news.
  bool on_peeked(ssize_t count);
  /// True: the Request has not come in time.
  bool deadline_passed(uint64_t now_ns);
  Deadline deadline() const { return reading() ? std::get<Reading>(state_).end : Deadline(); }

  bool reading() const { return std::holds_alternative<Reading>(state_); }
  bool requested() const { return std::holds_alternative<Requested>(state_); }
  bool peer_left() const { return std::holds_alternative<PeerLeft>(state_); }
  size_t bytes_wanted() const { return responder_.bytes_wanted(); }
  MpaResponder& responder() { return responder_; }
  /// Why the Request was refused.
  MpaFailure failure() const { return failure_; }
  /// What the peer asks for, depths swapped for direct use in accept().
  ConnectParameters parameters() const;
  /// Who is told when reading() is over.
  std::shared_ptr<Listener> listener() const { return listener_.lock(); }

 private:
  struct Reading {
    Deadline end;
  };
  struct Requested {};
  struct PeerLeft {};

  std::weak_ptr<Listener> listener_;
  MpaResponder responder_;
  MpaFailure failure_ = MpaFailure::kNone;
  std::variant<Reading, Requested, PeerLeft> state_;
};

}  // namespace uwarp
