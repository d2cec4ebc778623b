// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Messages between two processes: through the ring in two copies, or with only their addresses in
// the ring and one copy by the receiver.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "raw_memory/meeting.h"
#include "raw_memory/options.h"
#include "raw_memory/ring.h"

namespace uwarp::bench {

class Channel {
 public:
  virtual ~Channel() = default;
  /// `bytes` stay as they are until the other end has them.
  virtual void send(const char* bytes, size_t size) = 0;
  /// False at the end.
  virtual bool receive(char* bytes, size_t size) = 0;
  virtual void end() = 0;
  /// Waits until the other end has all that was sent.
  virtual void drain() = 0;
};

class CopyChannel final : public Channel {
 public:
  CopyChannel(const Meeting& meeting, size_t piece)
      : writer_(meeting.out, piece), reader_(meeting.in) {}

  void send(const char* bytes, size_t size) override { writer_.write(bytes, size); }
  bool receive(char* bytes, size_t size) override { return reader_.read(bytes, size); }
  void end() override { writer_.end(); }
  void drain() override;

 private:
  RingWriter writer_;
  RingReader reader_;
};

class PullChannel final : public Channel {
 public:
  explicit PullChannel(const Meeting& meeting);

  void send(const char* bytes, size_t size) override;
  bool receive(char* bytes, size_t size) override;
  void end() override { writer_.end(); }
  void drain() override { wait_for_fewer(1); }

 private:
  /// Waits until fewer than `limit` messages are not copied yet.
  void wait_for_fewer(uint64_t limit) const;

  const Meeting meeting_;
  RingWriter writer_;
  RingReader reader_;
  uint64_t sent_ = 0;
  uint64_t pulled_ = 0;
};

/// As the options ask for; the ends have met.
std::unique_ptr<Channel> open_channel(const Options& options);

}  // namespace uwarp::bench
