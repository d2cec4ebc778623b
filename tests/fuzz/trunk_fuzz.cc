// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a peer may send on the connection of a trunk, to queue pairs that have receives or not, and
// that change their state. The input is a script: frames whose headers are mostly valid, and what
// the applications do in between. Checked: no byte outside the receives changes; what arrives was
// sent to this queue pair, from the peer's own port, and arrives once and in order; each receive
// completes once; the connection is held only while there is a queue pair to wait for. In between,
// private data of calls is read, and callers come, are called back and answer, against a plain list
// of what they have asked for.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "connect/rendezvous_port.h"
#include "datagram/datagram_endpoint.h"
#include "datagram/trunk.h"
#include "datagram/trunks.h"
#include "engine/engine.h"
#include "fuzz/script.h"

namespace uwarp {
namespace {

using fuzz::Script;

constexpr size_t kStepsMax = 200;
constexpr size_t kPairs = 3;
constexpr uint32_t kGoodQkey = 7;
constexpr size_t kSlot = 4096 + 64;
constexpr size_t kSlots = 8;
constexpr uint16_t kPeerPort = 1;

const NetDevice& device() {
  static const NetDevice* made = [] {
    auto* lo = new NetDevice;
    lo->name = "lo";
    lo->verbs_name = "uwarp_lo";
    lo->ifindex = 1;
    lo->loopback = lo->running = true;
    lo->gids = {IpAddress::from_string("127.0.0.1").value()};
    return lo;
  }();
  return *made;
}

std::byte pattern(uint32_t sequence, size_t at) {
  return static_cast<std::byte>(sequence * 31 + at * 7);
}

/// A queue pair and its receives, each with its own memory.
struct Receiver {
  Receiver() : cq(64, nullptr), memory(kSlots * kSlot, std::byte{0xA5}) {
    Engine& engine = Engine::instance();
    region = engine.regions()
                 .add(domain, memory.data(), memory.size(),
                      reinterpret_cast<uintptr_t>(memory.data()), kAccessLocalWrite)
                 .value();
    QpConfig config;
    config.transport = Transport::kUd;
    config.domain = &domain;
    config.send_cq = config.recv_cq = &cq;
    config.regions = &engine.regions();
    config.max_recv_wr = kSlots;
    config.max_recv_sge = 1;
    endpoint =
        DatagramEndpoint::create(engine.trunks(), std::make_shared<NetDevice>(device()), config)
            .value();
  }
  void begin() {
    qp().to_reset();
    std::fill(memory.begin(), memory.end(), std::byte{0xA5});
    qp().move_to(QpState::kInit);
    qp().set_qkey(kGoodQkey);
    qp().move_to(QpState::kRtr);
    posted = completed = 0;
    last = 0;
  }
  DatagramQueuePair& qp() { return endpoint->qp(); }
  void post(uint32_t length) {
    if (posted - completed == kSlots) return;
    const Sge one{reinterpret_cast<uintptr_t>(memory.data()) + posted % kSlots * kSlot, length,
                  region->key.load()};
    if (qp().post_recv(posted, {&one, 1}) == 0) ++posted;
  }
  void poll() {
    WorkCompletion one{};
    while (cq.poll(&one, 1) == 1) {
      UWARP_REQUIRE(one.wr_id == completed && completed < posted);
      std::byte* const at = memory.data() + completed % kSlots * kSlot;
      size_t used = 0;
      if (one.status == WcStatus::kSuccess) {
        UWARP_REQUIRE(one.byte_len >= 40 && one.byte_len <= 4136);
        used = one.byte_len;
        const uint32_t sequence = one.imm_or_invalidated;
        UWARP_REQUIRE((one.wc_flags & kWcWithImm) != 0 && sequence > last);
        UWARP_REQUIRE(one.src_qp >> 8 == kPeerPort);
        last = sequence;
        for (size_t i = 40; i < used; ++i) UWARP_REQUIRE(at[i] == pattern(sequence, i - 40));
      }
      for (size_t i = used; i < kSlot; ++i) UWARP_REQUIRE(at[i] == std::byte{0xA5});
      std::fill(at, at + kSlot, std::byte{0xA5});
      ++completed;
    }
  }

  CompletionQueue cq;
  ProtectionDomain domain;
  std::vector<std::byte> memory;
  MemoryRegion* region;
  std::shared_ptr<DatagramEndpoint> endpoint;
  uint64_t posted = 0, completed = 0;
  uint32_t last = 0;
};

Receiver* receivers() {
  static auto* made = new Receiver[kPairs];
  return made;
}

/// Private data of a call, read and written again.
void read_call(Script& script) {
  std::vector<std::byte> bytes = TrunkCall{{}, script.next() % 2 != 0, {1, 2, 3}}.encode();
  bytes.resize(script.next() < 8 ? script.next() : bytes.size() + script.next());
  if (bytes.size() > RendezvousCall::kWireSize)
    script.fill(std::span(bytes).subspan(RendezvousCall::kWireSize));
  if (!bytes.empty() && script.next() < 128) bytes[script.below(bytes.size())] ^= std::byte{1};
  const auto call = RendezvousCall::decode(bytes);
  TrunkCall again;
  again.nonces = TrunkCall::nonces_of(bytes);
  const size_t behind = bytes.size() - std::min(bytes.size(), RendezvousCall::kWireSize);
  UWARP_REQUIRE(again.nonces.size() == std::min(behind / 8, TrunkCall::kMostNonces));
  if (!call) return;
  again.key = {{}, port_of_number(call->source), {}, port_of_number(call->target)};
  again.call_back = (call->capabilities & RendezvousCall::kCallBack) != 0;
  const auto made = again.encode();
  const auto back = RendezvousCall::decode(made);
  UWARP_REQUIRE(back && port_of_number(back->source) == again.key.own_port);
  UWARP_REQUIRE(TrunkCall::nonces_of(made) == again.nonces);
  UWARP_REQUIRE(std::equal(made.begin() + RendezvousCall::kWireSize, made.end(),
                           bytes.begin() + RendezvousCall::kWireSize));
  const TrunkNonce named = accepted_nonce(bytes);
  UWARP_REQUIRE(bytes.size() >= 20 || named == 0);
}

/// Who asks to be called back, and how that ends.
class Callers {
 public:
  void step(Script& script) {
    const TrunkKey key{{}, 1, {}, static_cast<uint16_t>(script.next() % 4)};
    auto asked = asked_.find(key);
    if (script.next() % 4 != 0) {
      for (size_t left = script.below(TrunkCall::kMostNonces * 2); left > 0; --left) {
        const bool first = asked == asked_.end();
        asked = asked_.try_emplace(key).first;
        asked->second.push_back(++nonce_);
        const bool begin = calls_.ask(key, nonce_);
        UWARP_REQUIRE(begin == first);
        if (begin) take(key);
      }
    } else if (asked != asked_.end()) {
      const bool again = !asked->second.empty();
      UWARP_REQUIRE(calls_.over(key) == again);
      if (again)
        take(key);
      else
        asked_.erase(asked);
    } else {
      UWARP_REQUIRE(!calls_.over(key));
    }
    UWARP_REQUIRE(calls_.size() == asked_.size());
  }

 private:
  // The nonces that were asked with, the last ones of many, each once.
  void take(const TrunkKey& key) {
    std::vector<TrunkNonce>& expected = asked_[key];
    std::vector<TrunkNonce> taken = calls_.take(key);
    std::sort(taken.begin(), taken.end());
    const size_t count = std::min(expected.size(), TrunkCall::kMostNonces);
    UWARP_REQUIRE(std::equal(taken.begin(), taken.end(),
                             expected.end() - static_cast<ptrdiff_t>(count), expected.end()));
    expected.clear();
  }

  CallBacks calls_;
  std::map<TrunkKey, std::vector<TrunkNonce>> asked_;  // of calls back under way
  TrunkNonce nonce_ = 0;
};

class Line {
 public:
  explicit Line(Script& script) : script_(script) {
    Trunks& trunks = Engine::instance().trunks();
    const uint16_t own_port = port_of_number(receivers()[0].endpoint->number());
    const TrunkKey key{device().gids[0], own_port, device().gids[0], kPeerPort};
    trunk_ = std::make_shared<Trunk>(trunks, key, std::make_shared<NetDevice>(device()));
    line_.reset(new TrunkConnection(trunks, trunk_, TrunkConnection::Role::kAnswer));
    UWARP_REQUIRE(line_->make_endpoint() == 0);
    for (size_t i = 0; i < kPairs; ++i) receivers()[i].begin();
  }
  void run() {
    for (size_t i = 0; i < kStepsMax && !script_.done(); ++i) {
      step();
      for (size_t k = 0; k < kPairs; ++k) receivers()[k].poll();
    }
    // When the hold expires, everything is delivered or dropped, however much it is.
    for (size_t i = 0; i < 1000 && held(); ++i) expire();
    UWARP_REQUIRE(!held());
    for (size_t i = 0; i < kPairs; ++i) {
      Receiver& one = receivers()[i];
      one.qp().to_error();
      one.poll();
      UWARP_REQUIRE(one.completed == one.posted);
      UWARP_REQUIRE(line_->rnr_blocked_at_ == nullptr || !one.qp().stop_waiting(*line_));
    }
    UWARP_REQUIRE(line_.use_count() == 1);
  }

 private:
  bool held() { return line_->next_ < line_->filled_; }
  void expire() {
    if (line_->patience_until_ns_ != 0) line_->patience_until_ns_ = 1;
    line_->go_on(false);
  }
  void step() {
    const uint8_t what = script_.next();
    Receiver& one = receivers()[what >> 4 & 3 ? (what >> 4 & 3) - 1 : 0];
    switch (what & 15) {
      case 0:
      case 1:
      case 2:
        return one.post(4136);
      case 3:
        return one.post(script_.next());
      case 4:
        return expire();
      case 5:
        return line_->go_on(false);
      case 6:
        one.qp().to_error();
        return one.poll();
      case 7:
        return one.begin();
      case 8:
        return one.qp().set_qkey(script_.next() & 8);
      case 9:
        return line_->forget_endpoints();
      case 10:
        return read_call(script_);
      case 11:
        return callers_.step(script_);
      default:
        return frame();
    }
  }
  void frame() {
    const auto receive = line_->endpoint_->qp().receive_side().lock_exclusive();
    const std::span<std::byte> room = line_->space();
    UWARP_REQUIRE(room.empty() == held());
    if (room.empty()) return;
    UWARP_REQUIRE(room.size() == kFrameBytes);
    size_t size = 0;
    for (size_t left = 1 + script_.below(12); left > 0; --left) {
      if (room.size() - size < DatagramHeader::kWireSize) break;
      size += datagram(room.subspan(size));
    }
    if (script_.next() == 0) size = std::min<size_t>(size, script_.next16());  // cut off
    line_->arrived(size);
  }
  size_t datagram(std::span<std::byte> room) {
    DatagramHeader header;
    const uint8_t kind = script_.next();
    header.payload_bytes = static_cast<uint16_t>(kind & 1 ? script_.next() : script_.next16());
    if ((kind & 2) != 0) header.payload_bytes %= kMaxDatagramBytes + 1;
    header.flags = static_cast<uint8_t>(DatagramHeader::kImmediate | (kind & 0xF0));
    header.destination = receivers()[script_.below(kPairs)].endpoint->number();
    if ((kind & 12) == 12) header.destination = Qpn{script_.next32()};
    header.source = Qpn{uint32_t{kPeerPort} << 8};
    if ((kind & 0x70) == 0x70) header.source = Qpn{script_.next32()};
    header.qkey = kGoodQkey;
    header.immediate = ++sequence_;
    header.encode(room.data());
    const auto payload = room.subspan(DatagramHeader::kWireSize);
    const size_t size = std::min<size_t>(header.payload_bytes, payload.size());
    for (size_t i = 0; i < size; ++i) payload[i] = pattern(header.immediate, i);
    return DatagramHeader::kWireSize + size;
  }

  Script& script_;
  std::shared_ptr<Trunk> trunk_;
  std::shared_ptr<TrunkConnection> line_;
  Callers callers_;
  uint32_t sequence_ = 0;
};

}  // namespace
}  // namespace uwarp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  uwarp::fuzz::Script script(bytes, size);
  uwarp::Line(script).run();
  return 0;
}
