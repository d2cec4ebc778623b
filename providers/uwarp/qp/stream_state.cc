// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "qp/stream_state.h"

#include <algorithm>
#include <utility>

#include "base/mutex.h"
#include "base/serial_numbers.h"

namespace uwarp {

uint64_t StreamState::next_identity() {
  static constinit SerialNumbers<uint64_t> identities;
  return identities.next();
}

void StreamState::restart(const StreamConfig& new_config) {
  // First what may fail. One more than the depth: a Read of our own may be the first message.
  outbound.reset(std::max(new_config.ord, new_config.read_depth) + 1u);
  inbound.reset(new_config.ird);
  config = new_config;
  ord.store(new_config.ord, std::memory_order_relaxed);
  delivered.store(new_config.first_msn.previous().value, std::memory_order_relaxed);
  told_delivered.store(new_config.first_msn.previous().value, std::memory_order_relaxed);
  peer_delivered.store(new_config.first_msn.previous().value, std::memory_order_relaxed);
  first_fpdu.store(false, std::memory_order_relaxed);
  peer_delays.store(false, std::memory_order_relaxed);
  peer_is_uwarp.store(new_config.peer_is_uwarp, std::memory_order_relaxed);
  peer_persona.store(PersonaWrite::Said::kNothing, std::memory_order_relaxed);
  answer_due.store(false, std::memory_order_relaxed);
  nudge_due.store(new_config.nudge_first_fpdu, std::memory_order_relaxed);
  control_writes_due.store(0, std::memory_order_relaxed);
  silent.store(false, std::memory_order_relaxed);
  lost.store(false, std::memory_order_relaxed);
  running.store(true, std::memory_order_release);
}

void StreamState::fail(const StreamFailure& failure, std::optional<QpEvent> event) {
  {
    const Lock lock(failure_lock_);
    if (failed_.load(std::memory_order_relaxed)) return;
    failure_ = failure;
    failed_.store(true, std::memory_order_release);
    if (gate_ != nullptr) gate_->shut();
  }
  if (event) raise(*event);
}

void StreamState::open_gate(RemoteGate& gate, const void* domain) {
  const Lock lock(failure_lock_);
  gate_ = &gate;
  gate_domain_ = domain;
  let_peer_in();
}

void StreamState::close_gate() {
  const Lock lock(failure_lock_);
  if (gate_ != nullptr) std::exchange(gate_, nullptr)->shut();
}

void StreamState::set_remote_access(uint32_t access) {
  const Lock lock(failure_lock_);
  remote_access.store(access);
  let_peer_in();
}

// A peer that may have no Read open has none to do by itself either.
void StreamState::let_peer_in() {
  if (gate_ == nullptr || failed_.load(std::memory_order_relaxed) || lost.load()) return;
  const uint32_t taken = config.ird != 0 ? ~uint32_t{0} : ~uint32_t{kAccessRemoteRead};
  gate_->open(gate_domain_, remote_access.load(std::memory_order_relaxed) & taken);
}

void StreamState::clear_failure() {
  const Lock lock(failure_lock_);
  failure_ = StreamFailure{};
  failed_.store(false, std::memory_order_release);
}

}  // namespace uwarp
