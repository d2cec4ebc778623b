// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Completions that wait until the peer has placed what was sent (QpConfig::acknowledged): when a
// Read has to follow the requests, whose answer says so. A Read or atomic of the application serves
// as well as one that is made for it. RFC 5040 5.5. Transmit side.
#pragma once

#include <cstdint>

namespace uwarp {

class Acknowledging {
 public:
  /// Begins a stream at send queue position `position`. `read_depth`: Reads that may be open at a
  /// time; without any there are no acknowledgements.
  void restart(bool wanted, uint16_t read_depth, uint64_t position) {
    read_depth_ = wanted ? read_depth : 0;
    cover(position);
  }
  bool on() const { return read_depth_ != 0; }
  /// Nothing more is to be waited for.
  void stop() { read_depth_ = 0; }

  void begin_batch() { batch_due_ = owed_; }
  /// What is before `position` is acknowledged by what has just been built, or needs no more.
  void cover(uint64_t position) {
    covered_ = position;
    owed_ = batch_due_ = false;
  }
  /// A request has been begun whose completion the application wants.
  void owe() { owed_ = true; }

  /// Whether a Read goes now that covers what is before `started`; `reads` are open. Once per batch
  /// that goes out full (`request`: another request would be next), and when nothing more can
  /// follow. A request that wants no completion is in no hurry, unless something waits for it
  /// (`pressed`).
  bool due(uint64_t started, uint32_t reads, bool request, bool pressed) const {
    const uint64_t open = started - covered_;
    if (open == 0 || reads >= read_depth_) return false;
    if (request) return batch_due_;
    return owed_ || pressed;
  }

 private:
  bool owed_ = false;        // a request behind covered_ wants its completion
  bool batch_due_ = false;   // ... and was in an earlier batch
  uint16_t read_depth_ = 0;  // 0: nothing is acknowledged
  uint64_t covered_ = 0;     // a Read has followed the requests before this position
};

}  // namespace uwarp
