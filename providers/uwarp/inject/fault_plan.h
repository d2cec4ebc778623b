// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// UWARP_FAULT parsed: the errors that a process wants to meet, as rules of "which", "when" and
// "what". docs/fault-injection.md has the grammar for users. Knows nothing of queue pairs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/settings.h"
#include "inject/wire_terms.h"
#include "protocol/wire/terminate_code.h"

namespace uwarp {

enum class FaultKind : uint8_t {
  // Of one queue pair, counted in its messages.
  kReset,
  kStall,
  kTerminate,
  kCorrupt,
  kSlow,
  kWcError,
  kNoReceive,
  // Of one that takes datagrams.
  kLose,
  kDuplicate,
  kReorder,
  // Of the device: counted in the messages of a queue pair, or at a time.
  kAsyncEvent,
  kPortDown,
  // Of the process, counted in what it tries.
  kCqEvent,
  kAddressError,
  kRouteError,
  kRefuse,
  kUnreachable,
  kReject,
  // Of the network: not counted, there all the time.
  kWire,
};

/// What is counted: requests as they are begun, or messages that arrive and take a receive.
enum class FaultMessage : uint8_t { kAnyRequest, kSend, kWrite, kRead, kAtomic, kLocal, kArrival };

struct FaultRule {
  FaultKind kind = FaultKind::kReset;
  FaultMessage message = FaultMessage::kAnyRequest;
  uint32_t queue_pair = 0;  // in the order of creation, from 1; 0: all

  enum class When : uint8_t { kNth, kEvery, kChance, kAt } when = When::kNth;
  uint64_t count = 1;   // kNth: which one; kEvery: every how many
  uint64_t chance = 0;  // kChance: in units of 2^-64
  uint64_t at_ns = 0;   // kAt: after the device was opened
  uint32_t times = 0;   // at most; 0: no limit

  uint32_t status = 0;  // kWcError: value of ibv_wc_status
  TerminateCode code = TerminateCode::kRdmapLocalCatastrophic;
  uint64_t for_ns = 0;  // kStall, kNoReceive, kPortDown; 0: without end
  uint64_t rate = 0;    // kSlow: bytes per second; 0: no limit
  uint64_t delay_ns = 0;
  uint32_t event = 0;  // kAsyncEvent: value of ibv_event_type
  uint32_t burst = 1;  // ... and how many of them

  WireTerms wire;                    // kWire
  std::optional<AddressBytes> peer;  // kWire: to this peer; none: to all
};

struct FaultPlan {
  uint64_t seed = 1;
  std::vector<FaultRule> rules;

  bool has(FaultKind kind) const;
  /// `error` gets one line on what is wrong; then the plan is empty.
  static FaultPlan parse(std::string_view text, std::string& error);
};

/// The word for a rule in UWARP_FAULT.
const char* name_of(FaultKind kind);
/// ... and for a value of ibv_wc_status.
const char* name_of_status(uint32_t status);

/// Counts what one rule is about, and says when it is its turn. The answer depends on nothing but
/// the seed, the stream (a number of what is counted) and the count.
class FaultCounter {
 public:
  FaultCounter(const FaultPlan& plan, size_t rule, uint64_t stream);
  /// One more. True if the rule acts on it.
  bool count();
  uint64_t counted() const { return counted_; }
  const FaultRule& rule() const { return rule_; }

 private:
  bool due() const;

  FaultRule rule_;
  uint64_t salt_;
  uint64_t counted_ = 0;
  uint32_t acted_ = 0;
};

}  // namespace uwarp
