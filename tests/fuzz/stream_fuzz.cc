// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The whole receive path of a live queue pair: own requests of all kinds outstanding, windows, own
// or shared receives, regions that are removed, a stream that is held, cut and broken. The input is
// a script: options, then FPDUs whose headers are mostly valid, and what the application and the
// kernel do in between. Checked: no byte changes outside the memory that the peer may write to;
// every request and receive completes exactly once and in order; what is sent is well formed
// (sim/fpdu_scan.h); a failed stream accepts nothing more.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>

#include "fuzz/script.h"
#include "sim/raw_peer.h"

namespace uwarp::sim {
namespace {

using fuzz::Script;

constexpr size_t kStepsMax = 300;
constexpr size_t kWindows = 2;

/// A request of ours, as the peer has received it.
struct Asked {
  bool atomic = false;
  ReadRequestHeader read;
  uint32_t request_id = 0;
};

class Stream {
 public:
  explicit Stream(Script& script)
      : script_(script),
        options_(script.next16()),
        ending_(script.next()),
        chunk_(script.next()),
        peer_(stream_config(), shape()) {
    peer_.reads = false;  // here transmit() sends
    const auto kind = (ending_ & 0x10) != 0 ? MemoryKind::kOnDemand : MemoryKind::kPlain;
    bindable_ =
        *table().add(RegionShape{&domain(), bindable_memory_.data(), bindable_memory_.size(),
                                 bindable_memory_.address(), kAllAccess | kAccessMwBind, kind});
    leaving_ = *table().add(domain(), leaving_memory_.data(), leaving_memory_.size(),
                            leaving_memory_.address(), kAllAccess);
    leaving_key_ = STag{leaving_->key.load()};
    local_ = *table().add(domain(), local_memory_.data(), local_memory_.size(),
                          local_memory_.address(), kAccessLocalWrite);
    for (auto& window : windows_) window = *table().add_window(domain(), RegionKind::kWindowType2);
    for (uint32_t left = options_ & 7; left > 0; --left) post_receive();
  }

  void run() {
    for (size_t i = 0; i < kStepsMax && !script_.done(); ++i) {
      const uint8_t kind = script_.next();
      if (kind < 0xA0) {
        arrive(frame(ulpdu(kind & 0x0F), peer_.crc));
      } else {
        act(kind & 0x1F);
      }
      settle();
    }
    end();
  }

 private:
  bool option(int bit) const { return (options_ >> bit & 1) != 0; }
  StreamConfig stream_config() const {
    StreamConfig config;
    config.crc = option(15);
    config.wait_for_first_fpdu = option(14);
    config.answer_magic = option(13);
    config.magic_stag = STag{0x01010101};
    config.silent_fin = option(12);
    config.peer_is_uwarp = option(11);
    config.nudge_first_fpdu = option(10);
    config.mulpdu = option(9) ? 200 : 65535;
    config.ird = option(8) ? 1 : 4;
    return config;
  }
  QpConfig shape() {
    QpConfig shape = End::default_shape();
    if (option(7)) shape.srq = &shared_;
    shape.acknowledged = option(6);
    shape.extensions = !option(5);
    shape.immediate_in_last_half = option(4);
    shape.max_recv_wr = 8;
    shape.max_send_wr = 16;
    return shape;
  }
  RegionTable& table() { return peer_.regions; }
  ProtectionDomain& domain() { return peer_.dut.domain; }
  QueuePair& qp() { return *peer_.dut.qp; }

  // ---- The peer.

  /// A key that the peer may know, mostly a valid one.
  STag key() {
    switch (script_.below(8)) {
      case 0:
        return STag{script_.next32()};
      case 1:
        return window_key(script_.below(kWindows));
      case 2:
        return STag{bindable_->key.load()};
      case 3:
        return leaving_key_;
      default:
        return peer_.stag();
    }
  }
  uint64_t address_behind(STag key) {
    if (key == peer_.stag()) return peer_.base();
    if (key == leaving_key_) return leaving_memory_.address();
    return bindable_memory_.address();
  }
  STag window_key(size_t which) {
    return STag{(table().window_key(*windows_[which]) & ~0xFFu) | generations_[which]};
  }
  size_t payload() { return script_.next() * (option(3) ? 97u : 1u); }

  Bytes ulpdu(uint8_t kind) {
    switch (kind) {
      case 0: {
        const STag stag = key();
        const uint64_t to = address_behind(stag) + script_.next();
        const size_t size = payload();
        return tagged(RdmapOpcode::kWrite, stag, to, size, last());
      }
      case 1:
      case 2:
        return send_segment();
      case 3: {
        const STag source = key();
        ReadRequestHeader header{.sink_stag = STag{script_.next32()},
                                 .sink_to = script_.next(),
                                 .size = script_.next16(),
                                 .source_stag = source,
                                 .source_to = address_behind(source) + script_.next()};
        return read_request(header, request_msn_++);
      }
      case 4: {
        const STag remote = key();
        AtomicRequestHeader header;
        const uint8_t opcode = script_.next();
        header.opcode = static_cast<AtomicOpcode>(opcode < 0xF0 ? opcode & 2 : opcode & 0x0F);
        header.request_id = script_.next();
        header.remote_stag = remote;
        header.remote_to = address_behind(remote) + script_.next() * (opcode & 0x40 ? 1u : 8u);
        header.add_or_swap = header.compare = script_.next();
        header.add_or_swap_mask = header.compare_mask = script_.next32();
        return atomic_request(header, request_msn_++);
      }
      case 5:
      case 6:
        return answer();
      case 7: {  // Immediate Data after a Write
        const auto opcode = static_cast<RdmapOpcode>(8 + (script_.next() & 1));
        return untagged(opcode, 0, send_msn_++, 0, kImmediateSize);
      }
      case 8:
        return tagged(opcode(), key(), script_.next32(), payload(), last());
      case 9: {
        const uint32_t qn = script_.next() & 0x07;
        const uint32_t msn = script_.next();
        const uint32_t offset = script_.next32();
        return untagged(opcode(), qn, msn, offset, payload(), last());
      }
      case 10: {  // raw bytes as a ULPDU
        Bytes bytes(payload() % 600);
        script_.fill(bytes);
        return bytes;
      }
      case 11: {
        Bytes terminate = untagged(RdmapOpcode::kTerminate, 2, 1, 0, script_.next() % 60);
        script_.fill(std::span(terminate).subspan(UntaggedHeader::kWireSize));
        return terminate;
      }
      case 13:
        return announcing_segment();
      case 12:  // the RTR Write, with our magic STag or without
        return tagged(RdmapOpcode::kWrite, STag{script_.next() & 1 ? 0x01010101u : 1u}, 0, 0);
      default: {  // one of the others with an byte that is not its own
        Bytes changed = ulpdu(script_.next() % 8);
        changed[script_.next16() % changed.size()] ^= std::byte{script_.next()};
        return changed;
      }
    }
  }
  /// A segment of a large Write, which says how many of the same size follow.
  Bytes announcing_segment() {
    const uint8_t how = script_.next();
    constexpr size_t kPayload = kLargeUlpdu;
    const STag stag = (how & 0x30) == 0 ? key() : leaving_key_;
    const uint64_t to = address_behind(stag) + (how & 3) * kPayload;
    Bytes segment = tagged(RdmapOpcode::kWrite, stag, to, kPayload, (how & 0xC0) == 0);
    segment[0] |= std::byte{DdpControl::ReservedField::put(how >> 2 & 3)};
    return segment;
  }
  bool last() { return (script_.next() & 3) != 3; }
  RdmapOpcode opcode() { return static_cast<RdmapOpcode>(script_.next() & 0x0F); }

  Bytes send_segment() {
    static constexpr RdmapOpcode kSends[] = {
        RdmapOpcode::kSend, RdmapOpcode::kSendInvalidate, RdmapOpcode::kSendSolicited,
        RdmapOpcode::kSendSolicitedInvalidate, static_cast<RdmapOpcode>(0xF)};
    const uint8_t how = script_.next();
    if (!send_open_) {
      send_opcode_ = kSends[(how & 7) % std::size(kSends)];
      send_offset_ = 0;
    }
    const bool invalidates = traits(send_opcode_).invalidates || send_opcode_ == kSends[4];
    const STag named = invalidates ? window_key(how >> 3 & 1) : STag{};
    const bool is_last = (how & 0x30) != 0x30;
    const size_t size = payload();
    Bytes segment = untagged(send_opcode_, 0, send_msn_, send_offset_, size, is_last, named);
    send_open_ = !is_last;
    send_offset_ += static_cast<uint32_t>(size);
    if (is_last) ++send_msn_;
    return segment;
  }

  /// Answers our oldest Read or atomic, or a part of it; correctly, unless the script says
  /// otherwise.
  Bytes answer() {
    const uint8_t how = script_.next();
    if (asked_.empty()) return tagged(RdmapOpcode::kReadResponse, key(), 0, how & 0x0F, true);
    Asked& asked = asked_.front();
    if (asked.atomic) {
      const uint32_t id = how < 0xF0 ? asked.request_id : script_.next();
      asked_.pop_front();
      return atomic_response({.request_id = id, .original_value = script_.next()}, atomic_msn_++);
    }
    const uint32_t size =
        (how & 1) == 0 ? asked.read.size : std::min<uint32_t>(asked.read.size, script_.next());
    const bool whole = size == asked.read.size;
    const uint32_t excess = how >= 0xF0 ? how & 0x0F : 0;
    Bytes response = tagged(RdmapOpcode::kReadResponse, asked.read.sink_stag, asked.read.sink_to,
                            std::min<size_t>(size + excess, 60000), whole);
    asked.read.sink_to += size;
    asked.read.size -= size;
    if (whole) asked_.pop_front();
    return response;
  }

  // ---- The stream.

  void arrive(const Bytes& bytes) {
    if (input_finished_) return;
    arrived_.insert(arrived_.end(), bytes.begin(), bytes.end());
  }
  bool receive() {
    bool moved = false;
    while (!arrived_.empty() && (!qp().receiver().rnr_blocked() || qp().receiver().reads_ahead())) {
      const auto lock = qp().receive_side().lock_exclusive();
      const auto window = qp().receiver().next_iovecs(peer_.dut.staging);
      const size_t room = chunk_ == 0 ? ~size_t{0} : chunk_;
      size_t done = 0;
      for (const iovec& piece : window) {
        auto* to = static_cast<std::byte*>(piece.iov_base);
        const size_t here = std::min({piece.iov_len, room - done, arrived_.size()});
        std::copy_n(arrived_.begin(), here, to);
        arrived_.erase(arrived_.begin(), arrived_.begin() + static_cast<ptrdiff_t>(here));
        done += here;
      }
      if (done == 0) break;
      peer_.dut.outcome |= qp().receiver().received(peer_.dut.staging, done);
      if (!peer_.dut.staging) peer_.dut.staging = std::make_unique<StagingBuffer>();
      moved = true;
    }
    return moved;
  }
  void transmit() {
    if (blocked_) return;
    auto turn = qp().transmit_side().begin();
    if (!turn) return;
    for (auto window = qp().transmitter().next_iovecs(); !window.empty();
         window = qp().transmitter().next_iovecs()) {
      const size_t limit = chunk_ == 0 ? ~size_t{0} : chunk_ * 3;
      size_t done = 0;
      for (const iovec& piece : window) {
        const size_t here = std::min(piece.iov_len, limit - done);
        peer_.scan.feed({static_cast<const std::byte*>(piece.iov_base), here});
        done += here;
      }
      qp().transmitter().sent(done);
    }
    (void)turn.end();
    note_requests();
  }
  /// Records those of our requests that the peer has seen.
  void note_requests() {
    const auto& messages = peer_.scan.messages();
    for (; seen_ < messages.size(); ++seen_) {
      const ScannedMessage& message = messages[seen_];
      if (message.opcode == 0x1 && message.payload.size() == ReadRequestHeader::kWireSize)
        asked_.push_back({false, ReadRequestHeader::decode(message.payload.data()), 0});
      if (message.opcode == 0xA && message.payload.size() == AtomicRequestHeader::kWireSize)
        asked_.push_back(
            {true, {}, AtomicRequestHeader::decode(message.payload.data()).request_id});
    }
  }
  void settle() {
    do {
      transmit();
      if (qp().flush_due()) qp().flush();
      transmit();
    } while (receive() || peer_.dut.resume());
    collect();
  }
  /// Polls the completions: the queues only have room for what is open at one time.
  void collect() {
    for (const auto& one : peer_.dut.sends()) UWARP_REQUIRE(one.wr_id == completed_sends_++);
    for (const auto& one : peer_.dut.receives()) UWARP_REQUIRE(one.wr_id == completed_receives_++);
  }

  // ---- The application, and the kernel.

  void act(uint8_t what) {
    switch (what) {
      case 0:
      case 1:
        return post_receive();
      case 2:
        return post(SendOpcode::kSend);
      case 3:
        return post(SendOpcode::kWrite);
      case 4:
      case 5:
        return post(SendOpcode::kRead);
      case 6:
        return post(SendOpcode::kFetchAdd);
      case 7:
        return post(SendOpcode::kCompareSwap);
      case 8:
        return post(SendOpcode::kSendWithImm);
      case 9:
        return post(SendOpcode::kWriteWithImm);
      case 10:
      case 11:
        return bind();
      case 12:
        return post(SendOpcode::kLocalInvalidate);
      case 13:
        return post(SendOpcode::kSendWithInvalidate);
      case 14:
        return qp().to_sqd(script_.next() & 1);
      case 15:
        if (qp().state() == QpState::kSqd) qp().to_rts();
        return;
      case 16:
      case 17:
        blocked_ = what == 16;
        return;
      case 18:
        if (qp().receiver().rnr_blocked()) {
          const auto lock = qp().receive_side().lock_exclusive();
          peer_.dut.outcome |= qp().receiver().expire();
        }
        return;
      case 19:
        return take_region_away();
      case 20:
        return fault_in_receive();
      case 21:
        if (auto turn = qp().transmit_side().begin()) {
          if (!qp().transmitter().next_iovecs().empty()) qp().transmitter().fault();
          (void)turn.end();
        }
        return;
      case 22:
        qp().nudge();
        return;
      case 23:
        qp().set_remote_access(script_.next());
        return;
      case 24:
        chunk_ = script_.next();
        return;
      default:
        return post(SendOpcode::kMaskedFetchAdd);
    }
  }
  void post_receive() {
    const uint32_t size = script_.next() * 16;
    const uint64_t first = local_memory_.address();
    const Sge sges[] = {{first, size / 2, local_->key.load()},
                        {first + 2100, size / 2, local_->key.load()}};
    const std::span<const Sge> some(sges, size % 3 == 0 ? 1 : 2);
    const int error = option(7) ? shared_.post(received_, some) : qp().post_recv(received_, some);
    if (error == 0) ++received_;
  }
  void post(SendOpcode opcode) {
    const uint8_t how = script_.next();
    const uint32_t size = is_atomic(opcode) ? 8 : how * 16;
    const uint32_t lkey = local_->key.load() ^ (how == 0xFF ? 1 : 0);
    const Sge sge{local_memory_.address() + 4300, size, lkey};
    SendRequest request;
    request.wr_id = sent_;
    request.opcode = opcode;
    request.flags = kSendSignaled;
    if ((how & 0x40) != 0) request.flags |= kSendFence;
    if ((how & 0x80) != 0) request.flags |= kSendSolicited;
    if ((how & 0x20) != 0 && size <= 256 && !awaits_answer(opcode)) request.flags |= kSendInline;
    if (!is_local(opcode)) request.sges = {&sge, size == 0 ? 0u : 1u};
    request.remote_address = 0x1000;
    request.rkey = 0x2000;
    request.imm_or_invalidate =
        is_local(opcode) ? window_key(how % kWindows).value : uint32_t{0x01020304};
    if (qp().post_send(request) == 0) ++sent_;
  }
  void bind() {
    const size_t which = script_.below(kWindows);
    SendRequest request;
    request.wr_id = sent_;
    request.opcode = SendOpcode::kBindWindow;
    request.flags = kSendSignaled;
    ++generations_[which];
    request.rkey = window_key(which).value;
    request.bind_lkey = bindable_->key.load();
    request.remote_address = bindable_memory_.address() + script_.next();
    request.bind_length_bytes = script_.next() * 8;
    request.bind_access = kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic;
    if (qp().post_send(request) == 0) ++sent_;
  }
  void take_region_away() {
    if (leaving_ == nullptr) return;
    UWARP_REQUIRE(table().invalidate(*leaving_) == 0);
    qp().quiesce(*leaving_);
    table().release(*leaving_);
    leaving_ = nullptr;
    std::fill_n(leaving_memory_.data(), leaving_memory_.size(), std::byte{0x77});
  }
  void fault_in_receive() {
    const auto lock = qp().receive_side().lock_exclusive();
    if (qp().receiver().rnr_blocked() || qp().receiver().closed()) return;
    if (qp().receiver().next_iovecs(peer_.dut.staging).empty()) return;
    peer_.dut.outcome |= qp().receiver().fault();
  }

  // ---- The end.

  void end() {
    blocked_ = (ending_ & 8) != 0;
    settle();
    if ((ending_ & 4) != 0 && arrived_.empty() && !qp().receiver().rnr_blocked()) {
      input_finished_ = true;
      qp().finish_input();
      settle();
    }
    static constexpr StreamEnd kEnds[] = {StreamEnd::kReset, StreamEnd::kFin, StreamEnd::kTimeout,
                                          StreamEnd::kLocalClose};
    qp().end_stream(kEnds[ending_ & 3]);
    qp().to_error();
    qp().detach_stream();
    check();
  }
  void check() {
    for (const std::string& finding : peer_.scan.findings())
      std::fprintf(stderr, "%s\n", finding.c_str());
    UWARP_REQUIRE(peer_.scan.findings().empty());
    UWARP_REQUIRE(qp().state() == QpState::kErr);
    UWARP_REQUIRE(peer_.memory.intact() && bindable_memory_.intact());
    UWARP_REQUIRE(leaving_memory_.intact() && local_memory_.intact());
    if (leaving_ == nullptr) {
      const auto* from = leaving_memory_.data();
      UWARP_REQUIRE(std::all_of(from, from + leaving_memory_.size(),
                                [](std::byte byte) { return byte == std::byte{0x77}; }));
    }
    // Guard bytes between the two parts of the receives, and behind them.
    UWARP_REQUIRE(local_memory_.data()[2099] == std::byte{0});
    UWARP_REQUIRE(local_memory_.data()[4299] == std::byte{0});
    collect();
    UWARP_REQUIRE(completed_sends_ == sent_);
    UWARP_REQUIRE(option(7) ? completed_receives_ <= received_ : completed_receives_ == received_);
  }

  Script& script_;
  const uint16_t options_;
  const uint8_t ending_;
  size_t chunk_;
  SharedReceiveQueue shared_{8, 2};
  GuardedMemory bindable_memory_{4096};
  GuardedMemory leaving_memory_{70000};
  GuardedMemory local_memory_{10000};
  RawPeer peer_;
  MemoryRegion* bindable_;
  MemoryRegion* leaving_;
  MemoryRegion* local_;
  STag leaving_key_;
  MemoryRegion* windows_[kWindows];
  uint8_t generations_[kWindows]{};
  uint32_t send_msn_ = 1, request_msn_ = 1, atomic_msn_ = 1;
  bool send_open_ = false;
  RdmapOpcode send_opcode_ = RdmapOpcode::kSend;
  uint32_t send_offset_ = 0;
  std::deque<std::byte> arrived_;
  bool blocked_ = false;
  bool input_finished_ = false;
  std::deque<Asked> asked_;
  size_t seen_ = 0;
  uint64_t sent_ = 0, received_ = 0;
  uint64_t completed_sends_ = 0, completed_receives_ = 0;
};

}  // namespace
}  // namespace uwarp::sim

// Proves: 5042-q 4296-3-b
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  uwarp::fuzz::Script script(bytes, size);
  uwarp::sim::Stream(script).run();
  return 0;
}
