// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One TCP connection of the probe: Request out, Reply in, an orderly end. How it
// went, without judgement.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/settings.h"
#include "protocol/mpa/handshake.h"
#include "protocol/wire/control_writes.h"

namespace doctor {

using Clock = std::chrono::steady_clock;

struct Dialogue {
  enum class Stage : uint8_t {
    kUnresolved,  // the host has no address
    kNoSocket,    // our own fault
    kConnecting,  // TCP did not come to be
    kReplying,    // the Request is out
    kReplied,     // a whole Reply, or bytes that are none
  };

  Stage stage = Stage::kUnresolved;
  std::string reason;   // kUnresolved: the resolver's
  std::string address;  // with port, the one that was dialled last
  bool local = false;   // ... is one of this host
  int error = 0;        // errno; ETIMEDOUT also for our own limit
  bool ended = false;   // the peer closed or reset
  unsigned revision = 2;
  uint32_t segment_bytes = 0;  // TCP MSS
  std::vector<std::byte> received;
  uwarp::MpaInitiator::Verdict verdict;
  uwarp::MpaNegotiated negotiated;  // accepted
  uwarp::MpaStartFrame reply;       // a whole Reply came
  /// Accepted: what the peer, if it is a uwarp, says of its persona. One of the same persona may
  /// say nothing.
  uwarp::PersonaWrite::Said persona = uwarp::PersonaWrite::Said::kNothing;
};

/// What the Request says, and the messages behind it.
struct Introduction {
  unsigned revision = 2;
  bool crc = false;
  uwarp::PersonaWrite::Said persona = uwarp::PersonaWrite::Said::kIwarp;
};

/// Tries the addresses of `host` until one takes the connection.
Dialogue talk(const std::string& host, uint16_t port, const Introduction& own,
              Clock::time_point end);

}  // namespace doctor
