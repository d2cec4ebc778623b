// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "inject/fault_script.h"

#include <algorithm>
#include <utility>

#include "base/mutex.h"

namespace uwarp {
namespace {

bool concerns(const FaultRule& rule, FaultScript::Of of) {
  switch (rule.kind) {
    case FaultKind::kLose:
    case FaultKind::kDuplicate:
    case FaultKind::kReorder:
      return of == FaultScript::Of::kDatagrams;
    case FaultKind::kReset:
    case FaultKind::kTerminate:
    case FaultKind::kCorrupt:
    case FaultKind::kStall:
    case FaultKind::kSlow:
      return of == FaultScript::Of::kConnection;
    default:
      return true;
  }
}

using Act = FaultVerdict::Act;

/// What ends a message, or changes it; other kinds let it wait, or are the listener's.
constexpr std::pair<FaultKind, Act> kActs[] = {
    {FaultKind::kReset, Act::kReset},         {FaultKind::kTerminate, Act::kTerminate},
    {FaultKind::kCorrupt, Act::kCorrupt},     {FaultKind::kWcError, Act::kFail},
    {FaultKind::kNoReceive, Act::kNoReceive}, {FaultKind::kLose, Act::kLose},
    {FaultKind::kDuplicate, Act::kDuplicate}, {FaultKind::kReorder, Act::kReorder},
};

uint64_t transfer_ns(uint64_t bytes, uint64_t rate) {
  constexpr uint64_t kNsPerSecond = 1'000'000'000;
  return bytes / rate * kNsPerSecond + bytes % rate * kNsPerSecond / rate;
}

}  // namespace

FaultScript::FaultScript(const FaultPlan& plan, uint32_t number,
                         std::shared_ptr<FaultListener> listener, Of of)
    : number_(number), listener_(std::move(listener)) {
  for (size_t i = 0; i < plan.rules.size(); ++i) {
    const FaultRule& rule = plan.rules[i];
    if (rule.kind > FaultKind::kPortDown || rule.when == FaultRule::When::kAt ||
        !concerns(rule, of) || (rule.queue_pair != 0 && rule.queue_pair != number))
      continue;
    const bool arrival = rule.message == FaultMessage::kArrival;
    (arrival ? arrivals_ : requests_).emplace_back(plan, i, number);
  }
}

void FaultScript::restart() {
  judged_position_ = judged_msn_ = ~uint64_t{0};
  owed_ns_ = 0;
  answer_admitted_ = false;
  send_held_.store(false, std::memory_order_relaxed);
  receive_held_.store(false, std::memory_order_relaxed);
  reset_wanted_.store(false, std::memory_order_relaxed);
  const Lock guard(lock_);
  send_ = receive_ = Hold{};
}

// ---- Verdicts

// The first rule that ends something stands; waiting adds up.
void FaultScript::act(const FaultCounter& counter, FaultVerdict& verdict, Hold& hold) {
  const FaultRule& rule = counter.rule();
  if (rule.kind == FaultKind::kStall || (rule.kind == FaultKind::kNoReceive && rule.for_ns != 0)) {
    hold.on = true;
    hold.forever |= rule.for_ns == 0;
    hold.wait_ns += rule.for_ns;
  } else if (verdict.act == Act::kGo) {
    for (const auto& [kind, ends] : kActs)
      if (kind == rule.kind) verdict = {ends, rule.status, rule.code};
  }
  if (listener_ != nullptr) listener_->fault_acts(number_, rule, counter.counted());
}

const FaultVerdict& FaultScript::judge_request(uint64_t position, FaultMessage message,
                                               uint64_t bytes) {
  if (position == judged_position_) return request_verdict_;
  judged_position_ = position;
  request_verdict_ = FaultVerdict{};
  Hold hold;
  for (FaultCounter& counter : requests_) {
    const FaultRule& rule = counter.rule();
    if (rule.message != FaultMessage::kAnyRequest && rule.message != message) continue;
    if (!counter.count()) continue;
    if (rule.kind == FaultKind::kSlow) {
      owed_ns_ += rule.rate != 0 ? transfer_ns(bytes, rule.rate) : 0;
      hold.wait_ns += rule.delay_ns;
    } else {
      act(counter, request_verdict_, hold);
    }
  }
  hold.on |= hold.wait_ns != 0 || owed_ns_ >= kGrainNs;
  hold.rate_ns = hold.on ? std::exchange(owed_ns_, 0) : 0;
  begin_hold(hold, &FaultScript::send_, send_held_);
  return request_verdict_;
}

// Answers are not counted, but they take their time on a slow link.
bool FaultScript::admit_answer(uint64_t bytes) {
  if (std::exchange(answer_admitted_, false)) return true;
  for (const FaultCounter& counter : requests_) {
    const FaultRule& rule = counter.rule();
    if (rule.kind != FaultKind::kSlow || rule.message != FaultMessage::kAnyRequest) continue;
    if (rule.rate != 0 && counter.counted() + 1 >= rule.count)
      owed_ns_ += transfer_ns(bytes, rule.rate);
  }
  if (owed_ns_ < kGrainNs) return true;
  Hold hold;
  hold.on = true;
  hold.rate_ns = std::exchange(owed_ns_, 0);
  begin_hold(hold, &FaultScript::send_, send_held_);
  answer_admitted_ = true;
  return false;
}

const FaultVerdict& FaultScript::judge_arrival(uint32_t msn) {
  if (msn == judged_msn_) return arrival_verdict_;
  judged_msn_ = msn;
  arrival_verdict_ = FaultVerdict{};
  Hold hold;
  bool stalled = false;
  for (FaultCounter& counter : arrivals_) {
    if (!counter.count()) continue;
    act(counter, arrival_verdict_, hold);
    stalled |= counter.rule().kind == FaultKind::kStall;
  }
  receive_stalled_.store(stalled, std::memory_order_release);
  begin_hold(hold, &FaultScript::receive_, receive_held_);
  return arrival_verdict_;
}

// ---- Holding

void FaultScript::begin_hold(const Hold& hold, Hold FaultScript::*side, std::atomic<bool>& flag) {
  if (!hold.on) return;
  const Lock guard(lock_);
  this->*side = hold;
  flag.store(true, std::memory_order_release);
}

// When `hold` is over; 0: never.
uint64_t FaultScript::end_of(Hold& hold, uint64_t now_ns) {
  if (!hold.on || hold.forever) return 0;
  if (hold.until_ns == 0) {
    if (hold.rate_ns != 0) {
      const uint64_t earliest = now_ns > kSlackNs ? now_ns - kSlackNs : 0;
      link_free_ns_ = std::max(link_free_ns_, earliest) + hold.rate_ns;
    }
    hold.until_ns = std::max(hold.rate_ns != 0 ? link_free_ns_ : now_ns, now_ns) + hold.wait_ns;
  }
  return hold.until_ns;
}

uint64_t FaultScript::deadline_ns(uint64_t now_ns) {
  if (!send_held_.load(std::memory_order_acquire) && !receive_held()) return 0;
  const Lock guard(lock_);
  const uint64_t send = end_of(send_, now_ns);
  const uint64_t receive = end_of(receive_, now_ns);
  if (send == 0 || receive == 0) return send + receive;
  return std::min(send, receive);
}

uint32_t FaultScript::release(uint64_t now_ns) {
  uint32_t released = kNothing;
  const Lock guard(lock_);
  const uint64_t send = end_of(send_, now_ns);
  if (send != 0 && send <= now_ns) {
    send_ = Hold{};
    send_held_.store(false, std::memory_order_release);
    released |= kSend;
  }
  const uint64_t receive = end_of(receive_, now_ns);
  if (receive != 0 && receive <= now_ns) {
    receive_ = Hold{};
    receive_held_.store(false, std::memory_order_release);
    released |= kReceive;
  }
  return released;
}

}  // namespace uwarp
