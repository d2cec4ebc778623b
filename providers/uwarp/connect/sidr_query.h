// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The active side of an rdma_cm id of datagrams: asks a UDP port for the queue pair behind it,
// until there is a reply (service ID resolution, docs/wire.md).
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "base/mutex.h"
#include "base/result.h"
#include "carrier/udp_socket.h"
#include "connect/connection_events.h"
#include "progress/progress.h"
#include "protocol/wire/sidr_message.h"

namespace uwarp {

// When a request of service ID resolution is sent again, and when its sender gives up. A value;
// time is an argument.
class SidrRepetition {
 public:
  /// As many as the kernel's rdma_cm sends (CMA_MAX_CM_RETRIES), one every 4096 ms. Here the first
  /// ones come sooner: a lost datagram must not cost four seconds.
  static constexpr uint32_t kMostRepetitions = 15;
  static constexpr uint64_t kFirstWaitNs = 128'000'000;
  static constexpr uint64_t kLongestWaitNs = 4'096'000'000;
  /// How long after the first request a refused one is repeated, as a TCP connection is dialled
  /// again: some servers print their port just before they listen on it.
  static constexpr uint64_t kRefusedForNs = 200'000'000;
  static constexpr uint64_t kRefusedWaitNs = 20'000'000;

  /// The first request is sent now; the sender waits `patience_ns` for the reply in all.
  SidrRepetition(uint64_t now_ns, uint64_t patience_ns)
      : began_ns_(now_ns), until_ns_(now_ns + patience_ns) {
    next_ns_ = std::min(now_ns + wait_ns_, until_ns_);
  }

  /// When next() has something to say.
  uint64_t deadline_ns() const { return next_ns_; }

  enum class Step : uint8_t { kWait, kSend, kGiveUp };
  Step next(uint64_t now_ns) {
    if (now_ns >= until_ns_) return Step::kGiveUp;
    if (now_ns < next_ns_) return Step::kWait;
    if (repetitions_ == kMostRepetitions) {
      next_ns_ = until_ns_;
      return Step::kWait;
    }
    ++repetitions_;
    wait_ns_ = std::min(2 * wait_ns_, kLongestWaitNs);
    next_ns_ = std::min(now_ns + wait_ns_, until_ns_);
    return Step::kSend;
  }

  /// The peer's host has said that nothing has this port. False: believe it. True: next() will send
  /// once more, soon, and this is none of the counted repetitions.
  bool again_after_refusal(uint64_t now_ns) {
    if (now_ns >= began_ns_ + kRefusedForNs || now_ns + kRefusedWaitNs >= until_ns_) return false;
    next_ns_ = now_ns + kRefusedWaitNs;
    wait_ns_ = kFirstWaitNs / 2;
    repetitions_ = UINT32_MAX;  // wraps to 0 when next() counts the one that is due now
    return true;
  }

 private:
  uint64_t began_ns_;
  uint64_t until_ns_;
  uint64_t wait_ns_ = kFirstWaitNs;
  uint64_t next_ns_;
  uint32_t repetitions_ = 0;
};

struct ConnectContext;

/// Any thread. The owner is called once at most, by the thread that progresses and without locks:
/// connection_established() with the peer's queue pair, connection_rejected() with a SidrStatus, or
/// connection_failed() with -ETIMEDOUT after UWARP_CONNECT_TIMEOUT_MS.
class SidrQuery final : public Source, public CmConnection {
 public:
  /// `request` needs no transaction. Errors: those of connect(2), ENOMEM, EAGAIN (no thread).
  static Result<std::shared_ptr<SidrQuery>> start(ConnectContext& context, UdpSocket bound,
                                                  const sockaddr_storage& remote,
                                                  SidrRequest request,
                                                  std::weak_ptr<ConnectionOwner> owner);
  ~SidrQuery() override;

  /// Its port is held until abort(), also after the reply.
  sockaddr_storage local_address() const;
  /// Stops, and gives the port back; at most an owner call that is under way still arrives.
  /// Idempotent.
  void abort() override;
  int disconnect() override {
    abort();
    return 0;
  }

  bool ready(uint32_t events) override;
  void deadline_passed() override;

 private:
  SidrQuery(ConnectContext& context, UdpSocket bound, const SidrRequest& request,
            std::weak_ptr<ConnectionOwner> owner);
  /// No more datagrams and deadlines; the owner, for the one call that is due.
  std::shared_ptr<ConnectionOwner> finish_locked() REQUIRES(mutex_);
  /// One datagram or error of the socket. False: nothing was there, or the question is over.
  bool receive_one();
  void replied(Lock<Mutex>& guard, SidrReply reply) REQUIRES(mutex_) NO_THREAD_SAFETY_ANALYSIS;
  void fail_as(Lock<Mutex>& guard, SidrStatus status) REQUIRES(mutex_) NO_THREAD_SAFETY_ANALYSIS;

  ConnectContext& context_;
  const uint64_t transaction_;
  const std::array<std::byte, SidrRequest::kWireSize> request_;
  mutable Mutex mutex_;
  UdpSocket socket_ GUARDED_BY(mutex_);
  Progress::Registration registration_ GUARDED_BY(mutex_) = 0;
  SidrRepetition repetition_ GUARDED_BY(mutex_);
  std::weak_ptr<ConnectionOwner> owner_ GUARDED_BY(mutex_);
  bool over_ GUARDED_BY(mutex_) = false;
};

}  // namespace uwarp
