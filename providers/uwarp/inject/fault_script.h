// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The faults of one queue pair: it is asked about each message before that is begun or taken, and
// says what shall happen to it. A queue pair has one only if UWARP_FAULT asks for faults. Time in,
// decisions out. Deterministic: only the order of messages in one direction counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/spinlock.h"
#include "inject/fault_plan.h"

namespace uwarp {

/// What is to become of a message.
struct FaultVerdict {
  enum class Act : uint8_t {
    kGo,
    kReset,
    kTerminate,
    kFail,
    kNoReceive,
    kCorrupt,
    // Of datagrams.
    kLose,
    kDuplicate,
    kReorder,  // behind the next one
  } act = Act::kGo;
  uint32_t status = 0;  // kFail
  TerminateCode code = TerminateCode::kRdmapLocalCatastrophic;
};

/// Is told what a script does, for the log and for faults of the whole device. Called with locks of
/// the queue pair held: must not call back.
class FaultListener {
 public:
  virtual ~FaultListener() = default;
  virtual void fault_acts(uint32_t queue_pair, const FaultRule& rule, uint64_t count) = 0;
};

class FaultScript {
 public:
  /// What there may be to break. Rules about the other are left out.
  enum class Of : uint8_t { kConnection, kDatagrams };
  /// `number`: of the queue pair, in the order of creation, from 1. `listener` may be null.
  FaultScript(const FaultPlan& plan, uint32_t number, std::shared_ptr<FaultListener> listener,
              Of of = Of::kConnection);

  /// A stream begins. Both directions quiet.
  void restart();

  // ---- Transmit side.
  /// About the request at this position of the send queue; counts it when it is asked first.
  const FaultVerdict& judge_request(uint64_t position, FaultMessage message, uint64_t bytes);
  /// An answer of this size is next. False: it has to wait (send_held()); then ask again.
  bool admit_answer(uint64_t bytes);
  /// Nothing may be begun now.
  bool send_held() const {
    return send_held_.load(std::memory_order_acquire) || port_down_.load(std::memory_order_acquire);
  }

  // ---- Receive side.
  /// About the message of this number; counts it when it is asked first.
  const FaultVerdict& judge_arrival(uint32_t msn);
  bool receive_held() const { return receive_held_.load(std::memory_order_acquire); }
  /// ... and not for want of a receive.
  bool receive_stalled() const {
    return receive_held() && receive_stalled_.load(std::memory_order_acquire);
  }

  // ---- Either side, for the connection.
  void want_reset() { reset_wanted_.store(true, std::memory_order_release); }
  bool take_reset() { return reset_wanted_.exchange(false); }

  // ---- Connection.
  /// When release() is to be called; 0: need not be. Starts the time of what is held since.
  uint64_t deadline_ns(uint64_t now_ns);
  enum Released : uint32_t { kNothing = 0, kSend = 1, kReceive = 2 };
  /// Lets go on what has been held long enough: Released bits.
  uint32_t release(uint64_t now_ns);

  // ---- Device.
  void set_port_down(bool down) { port_down_.store(down, std::memory_order_release); }

 private:
  /// One direction that stands still. Without `forever` it goes on at `until_ns`, which is 0 until
  /// the connection has looked at its clock.
  struct Hold {
    bool on = false;
    bool forever = false;
    uint64_t rate_ns = 0;  // time that the bytes take
    uint64_t wait_ns = 0;  // ... and that passes besides
    uint64_t until_ns = 0;
  };
  /// Time that small messages owe before one of them waits: timers are no finer.
  static constexpr uint64_t kGrainNs = 500'000;
  /// What a timer that came late may make up for.
  static constexpr uint64_t kSlackNs = 5'000'000;

  void act(const FaultCounter& counter, FaultVerdict& verdict, Hold& hold);
  void begin_hold(const Hold& hold, Hold FaultScript::*side, std::atomic<bool>& flag);
  uint64_t end_of(Hold& hold, uint64_t now_ns) REQUIRES(lock_);

  const uint32_t number_;
  const std::shared_ptr<FaultListener> listener_;

  // Transmit side.
  std::vector<FaultCounter> requests_;
  uint64_t judged_position_ = ~uint64_t{0};
  FaultVerdict request_verdict_;
  uint64_t owed_ns_ = 0;
  bool answer_admitted_ = false;

  // Receive side.
  std::vector<FaultCounter> arrivals_;
  uint64_t judged_msn_ = ~uint64_t{0};
  FaultVerdict arrival_verdict_;

  std::atomic<bool> send_held_{false};
  std::atomic<bool> receive_held_{false};
  std::atomic<bool> receive_stalled_{false};
  std::atomic<bool> port_down_{false};
  std::atomic<bool> reset_wanted_{false};

  SpinLock lock_;  // leaf
  Hold send_ GUARDED_BY(lock_);
  Hold receive_ GUARDED_BY(lock_);
  uint64_t link_free_ns_ GUARDED_BY(lock_) = 0;  // when the slow link has carried what went before
};

}  // namespace uwarp
