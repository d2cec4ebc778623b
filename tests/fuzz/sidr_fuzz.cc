// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Service ID resolution: any datagrams to a listener and to a requester. If the first byte is 0,
// the rest is one datagram. Checked: it is at most one kind of message; a decoded message encodes
// to the same one; private data is within the kernel's limits; a reply is no larger than a request.
// Otherwise the rest is a script of requests, repetitions and answers, checked against a plain
// search.
#include <algorithm>
#include <optional>
#include <vector>

#include "connect/sidr_listener.h"
#include "connect/sidr_query.h"
#include "fuzz/script.h"
#include "protocol/wire/control_writes.h"
#include "protocol/wire/sidr_message.h"

namespace uwarp {
namespace {

using fuzz::Script;

void check_datagram(std::span<const std::byte> bytes) {
  if (const auto behind = behind_multicast_magic(bytes))
    UWARP_REQUIRE(behind->size() + kMulticastMagic.size() == bytes.size());
  const auto request = SidrRequest::decode(bytes);
  const auto other = SidrRequest::of_other_version(bytes);
  const auto reply = SidrReply::decode(bytes);
  UWARP_REQUIRE(request.has_value() + other.has_value() + reply.has_value() <= 1);
  if (request) {
    UWARP_REQUIRE(request->private_data.size() <= kSidrRequestDataMax);
    const auto again = SidrRequest::decode(request->encode());
    UWARP_REQUIRE(again && again->transaction == request->transaction);
    UWARP_REQUIRE(again->port_space == request->port_space);
    UWARP_REQUIRE(again->private_data == request->private_data);
  }
  if (reply) {
    UWARP_REQUIRE(reply->private_data.size() <= kSidrReplyDataMax);
    const auto written = reply->encode();
    UWARP_REQUIRE(written.size() <= SidrRequest::kWireSize);
    const auto again = SidrReply::decode(written);
    UWARP_REQUIRE(again && again->transaction == reply->transaction);
    UWARP_REQUIRE(again->status == reply->status && again->qp_number == reply->qp_number);
    UWARP_REQUIRE(again->qkey == reply->qkey && again->private_data == reply->private_data);
  }
}

/// A request as the listener should know it, found by a plain search.
struct KnownRequest {
  SidrTransactions::Key key;
  std::vector<std::byte> reply;  // empty: the request still waits
};

class Listener {
 public:
  explicit Listener(Script& script) : script_(script) {}

  void run() {
    while (!script_.done()) {
      const SidrTransactions::Key key = choose();
      switch (script_.below(4)) {
        case 0:
        case 1:
          request(key);
          break;
        case 2:
          answer(key);
          break;
        default:
          forget(key);
          break;
      }
      const auto waiting = std::ranges::count_if(
          known_, [](const KnownRequest& each) { return each.reply.empty(); });
      UWARP_REQUIRE(table_.waiting() == static_cast<size_t>(waiting));
    }
  }

 private:
  SidrTransactions::Key choose() {
    IpAddress::Bytes bytes{};
    bytes[15] = script_.next() & 3;
    return {IpAddress::from_gid(bytes.data()), script_.next(), script_.next16()};
  }
  std::vector<KnownRequest>::iterator find(const SidrTransactions::Key& key) {
    return std::ranges::find(known_, key, &KnownRequest::key);
  }
  void request(const SidrTransactions::Key& key) {
    const auto known = find(key);
    const auto [outcome, reply] = table_.enter(key);
    if (known == known_.end()) {
      UWARP_REQUIRE(outcome == SidrTransactions::Outcome::kNew);
      known_.push_back({key, {}});
    } else if (known->reply.empty()) {
      UWARP_REQUIRE(outcome == SidrTransactions::Outcome::kWaiting);
    } else {
      UWARP_REQUIRE(outcome == SidrTransactions::Outcome::kAnswered);
      UWARP_REQUIRE(*reply == known->reply);
    }
  }
  void answer(const SidrTransactions::Key& key) {
    const std::vector<std::byte> reply(1 + script_.below(8), std::byte{script_.next()});
    table_.answered(key, reply);
    const auto known = find(key);
    if (known != known_.end() && known->reply.empty()) known->reply = reply;
  }
  void forget(const SidrTransactions::Key& key) {
    table_.forget(key);
    const auto known = find(key);
    if (known != known_.end() && known->reply.empty()) known_.erase(known);
  }

  Script& script_;
  SidrTransactions table_;
  std::vector<KnownRequest> known_;
};

/// A requester sends a bounded number of requests, and gives up in time.
void check_patience(Script& script) {
  constexpr uint64_t kMillisecond = 1'000'000;
  const uint64_t start = script.next32();
  const uint64_t patience = (uint64_t{script.next16()} + 1) * kMillisecond;
  SidrRepetition repetition(start, patience);
  int sent = 1;
  for (uint64_t now = start;;) {
    UWARP_REQUIRE(repetition.deadline_ns() <= start + patience);
    if (script.next() & 1) (void)repetition.again_after_refusal(now);
    now = std::max(now, repetition.deadline_ns()) + script.next() * kMillisecond;
    const auto step = repetition.next(now);
    if (step == SidrRepetition::Step::kSend) ++sent;
    if (step == SidrRepetition::Step::kGiveUp) break;
  }
  // At most ten refusals in 200 ms, then the counted repetitions.
  UWARP_REQUIRE(sent <= 1 + 11 + static_cast<int>(SidrRepetition::kMostRepetitions));
}

}  // namespace
}  // namespace uwarp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  uwarp::fuzz::Script script(bytes + 1, std::min<size_t>(size - 1, 4'000));
  switch (bytes[0] % 3) {
    case 0:
      uwarp::check_datagram(std::as_bytes(std::span(bytes + 1, size - 1)));
      break;
    case 1:
      uwarp::Listener(script).run();
      break;
    default:
      uwarp::check_patience(script);
      break;
  }
  return 0;
}
