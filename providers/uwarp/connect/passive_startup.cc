// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "connect/passive_startup.h"

#include <cerrno>

#include "base/log.h"
#include "connect/depth_reserve.h"

namespace uwarp {

PassiveStartup::Next PassiveStartup::on_received(ssize_t count, std::span<const std::byte> octets) {
  if (!reading() || count == -EAGAIN) return Next::kWait;
  if (count <= 0) {
    (void)responder_.on_end_of_stream();
    return Next::kGone;
  }
  const MpaResponder::Verdict verdict = responder_.on_bytes(octets);
  failure_ = verdict.failure;
  switch (verdict.state) {
    case MpaResponder::State::kRequest:
      state_ = Requested{};
      return Next::kRequested;
    case MpaResponder::State::kRefused:
      return Next::kRefused;
    default:
      return Next::kWait;
  }
}

bool PassiveStartup::on_peeked(ssize_t count) {
  if (!requested() || count == -EAGAIN) return false;
  state_ = PeerLeft{};
  return true;
}

bool PassiveStartup::deadline_passed(uint64_t now_ns) {
  auto* const reading = std::get_if<Reading>(&state_);
  if (reading == nullptr || !reading->end.take_passed(now_ns)) return false;
  log_event("connection: start-up timed out");
  return true;
}

ConnectParameters PassiveStartup::parameters() const {
  const MpaStartFrame& request = responder_.request();
  ConnectParameters parameters;
  parameters.initiator_depth = offered_depth(request.enhanced, request.ird);
  parameters.responder_resources = offered_depth(request.enhanced, request.ord);
  const auto octets = responder_.private_data();
  parameters.private_data.assign(octets.begin(), octets.end());
  return parameters;
}

}  // namespace uwarp
