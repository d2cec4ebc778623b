// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "rates.h"

namespace stat_view {
namespace {

// What a damaged page says may go back.
double per_second(uint64_t before, uint64_t now, double seconds) {
  return now > before ? static_cast<double>(now - before) / seconds : 0;
}

Rates between(const Traffic& before, const Traffic& now, double seconds) {
  return {per_second(before.sent.bytes, now.sent.bytes, seconds),
          per_second(before.received.bytes, now.received.bytes, seconds),
          per_second(before.sent.all_messages(), now.sent.all_messages(), seconds),
          per_second(before.received.all_messages(), now.received.all_messages(), seconds)};
}

}  // namespace

void Rates::add(const Rates& other) {
  sent_bytes += other.sent_bytes;
  received_bytes += other.received_bytes;
  sent_messages += other.sent_messages;
  received_messages += other.received_messages;
}

RateTable::RateTable(const Snapshot* before, const Snapshot& now) {
  if (before == nullptr || now.monotonic_ns <= before->monotonic_ns) return;
  seconds_ = static_cast<double>(now.monotonic_ns - before->monotonic_ns) / 1e9;
  for (const Process& process : before->processes) {
    for (const QueuePair& qp : process.queue_pairs)
      queue_pairs_[{key(process), qp.number, qp.created_ns}] = &qp.traffic;
    for (const Device& device : process.devices)
      devices_[{key(process), device.name}] = &device.traffic;
  }
}

// What was not there before began with 0.
Rates RateTable::of(const Process& process, const QueuePair& qp) const {
  if (!known()) return {};
  const auto before = queue_pairs_.find({key(process), qp.number, qp.created_ns});
  return between(before != queue_pairs_.end() ? *before->second : Traffic{}, qp.traffic, seconds_);
}

// By its devices, which keep what queue pairs did that are gone.
Rates RateTable::of(const Process& process) const {
  Rates sum;
  if (!known()) return sum;
  for (const Device& device : process.devices) {
    const auto before = devices_.find({key(process), device.name});
    sum.add(
        between(before != devices_.end() ? *before->second : Traffic{}, device.traffic, seconds_));
  }
  return sum;
}

}  // namespace stat_view
