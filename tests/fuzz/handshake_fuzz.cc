// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// MPA start-up in both roles: any bytes from the peer, whole and in pieces. The first byte of the
// input selects the role, the configuration and the size of the pieces. Checked: both ways give the
// same verdict, no more is consumed than was given, bytes_wanted() is right, and our answer can be
// decoded.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "protocol/mpa/handshake.h"

namespace uwarp {
namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

template <typename Machine>
struct Outcome {
  typename Machine::State state;
  MpaFailure failure;
  size_t consumed;
};

// Feeds `input` in pieces of `piece` bytes until the machine takes no more.
template <typename Machine>
Outcome<Machine> feed(Machine& machine, std::span<const std::byte> input, size_t piece) {
  Outcome<Machine> outcome{machine.state(), MpaFailure::kNone, 0};
  while (!input.empty()) {
    const size_t given = std::min(piece, input.size());
    const size_t wanted = machine.bytes_wanted();
    const auto before = machine.state();
    const auto verdict = machine.on_bytes(input.first(given));
    check(verdict.consumed <= given);
    if (before == Machine::State::kNeedMore && given < wanted)
      check(verdict.consumed == given && verdict.state != typename Machine::State{1});
    if (verdict.state == Machine::State::kNeedMore)
      check(verdict.consumed == given && machine.bytes_wanted() > 0);
    outcome.state = verdict.state;
    outcome.failure = verdict.failure;
    outcome.consumed += verdict.consumed;
    input = input.subspan(given);
  }
  check(outcome.consumed <= MpaStartFrame::kSizeMax);
  return outcome;
}

template <typename Machine>
void check_same(const Outcome<Machine>& a, const Outcome<Machine>& b) {
  check(a.state == b.state && a.failure == b.failure);
  // With pieces, a fault may be found earlier, so that bytes of the bad frame are not consumed.
  if (a.failure == MpaFailure::kNone) check(a.consumed == b.consumed);
}

void run_initiator(uint8_t selector, size_t piece, std::span<const std::byte> input) {
  const MpaInitiator::Config config{.revision = static_cast<uint8_t>(selector & 2 ? 2 : 1),
                                    .peer_to_peer = (selector & 4) != 0,
                                    .crc = (selector & 8) != 0,
                                    .ird = 16,
                                    .ord = 0,
                                    .ird_limit = 128,
                                    .private_data = {}};
  MpaInitiator whole(config), pieces(config);
  const auto outcome = feed(whole, input, SIZE_MAX);
  check_same(outcome, feed(pieces, input, piece));
  if (outcome.state == MpaInitiator::State::kAccepted) {
    const MpaNegotiated& result = whole.negotiated();
    check(!whole.reply().markers && !whole.reply().reject);
    check(result.revision == config.revision);
    check(result.rtr != RtrKind::kRead || result.ord >= 1);
    check(result.ird <= 128 && whole.private_data().size() <= 512);
  }
  check(whole.on_end_of_stream().state != MpaInitiator::State::kNeedMore);
}

void run_responder(uint8_t selector, size_t piece, std::span<const std::byte> input) {
  const MpaResponder::Config config{.crc = (selector & 2) != 0,
                                    .revision_max = static_cast<uint8_t>(selector & 4 ? 2 : 1)};
  MpaResponder whole(config), pieces(config);
  const auto outcome = feed(whole, input, SIZE_MAX);
  check_same(outcome, feed(pieces, input, piece));
  std::span<const std::byte> answer = whole.refusal();
  if (outcome.state == MpaResponder::State::kRequest) {
    const auto reply = (selector & 8) != 0 ? whole.accept(4, 4, whole.private_data())
                                           : whole.reject(whole.private_data());
    answer = reply.bytes;
    check(!answer.empty());
  }
  if (!answer.empty()) {
    MpaStartFrame frame;
    const auto step = decode_start_frame(answer, true, frame);
    check(step.status == StartFrameDecode::Status::kFrame && step.consumed == answer.size());
    check(frame.revision == whole.request().revision);
    check(frame.enhanced == whole.request().enhanced);
  }
  check(whole.on_end_of_stream().state != MpaResponder::State::kNeedMore);
}

}  // namespace
}  // namespace uwarp

// Proves: 5042-q
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  const uint8_t selector = bytes[0];
  const std::span input(reinterpret_cast<const std::byte*>(bytes + 1), size - 1);
  const size_t piece = size_t{1} + (selector >> 4) * 3;
  if ((selector & 1) != 0) {
    uwarp::run_initiator(selector, piece, input);
  } else {
    uwarp::run_responder(selector, piece, input);
  }
  return 0;
}
