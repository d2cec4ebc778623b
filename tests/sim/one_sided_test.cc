// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The same random requests three times: over a stream that copies, over one that lends memory as
// the rings do, and with Reads and Writes that the requester copies by itself. Target and
// application may see only what the order of posting allows, and the three may differ in nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <string>
#include <tuple>

#include "base/tuning.h"
#include "sim/sim_pair.h"

namespace uwarp::sim::one_sided {
namespace {

enum class Way : uint8_t { kStream, kRing, kDirect };
constexpr Way kWays[] = {Way::kStream, Way::kRing, Way::kDirect};

// --- What is posted

// Offsets in the target: cells for atomics, a part in which many small requests overlap, the rest.
constexpr uint64_t kCellsEnd = 64, kHotEnd = 4096;
constexpr uint64_t kSmallTarget = kHotEnd + (64 << 10), kLargeTarget = kHotEnd + (5u << 19);
constexpr std::byte kUntouched{0xEE};

/// Why a request fails, if it does.
enum class Bad : uint8_t { kNo, kKey, kRange, kRight, kLocalKey };

struct Op {
  SendOpcode opcode = SendOpcode::kWrite;
  uint8_t flags = 0;
  bool waits = false;      // posted once all before it have completed
  bool in_list = false;    // posted in one call with the one before it
  bool from_sink = false;  // its payload is what a Read has brought
  Bad bad = Bad::kNo;
  uint64_t here = 0;   // of its payload in the source, or in the sinks
  uint64_t there = 0;  // in the target
  uint32_t length = 0;
  uint32_t pieces = 1;
  uint64_t compare_add = 0, swap = 0;
  size_t receive = 0;  // which one it takes

  bool fenced() const { return waits || (flags & kSendFence) != 0; }
  bool writes() const { return is_write(opcode); }
};

struct Script {
  std::vector<Op> ops;
  struct Room {
    uint64_t at;
    uint32_t size;
  };
  std::vector<Room> receives;
  uint64_t sink_bytes = 0, receive_bytes = 0, target_bytes = kSmallTarget;
  size_t bad = ~size_t{0};  // the request that fails; behind all: none

  bool fails() const { return bad < ops.size(); }
};

class ScriptMaker {
 public:
  ScriptMaker(Random& random, bool large) : random_(random), large_left_(large ? 8 : 0) {
    if (large) script_.target_bytes = kLargeTarget;
  }
  Script make(size_t count, bool fails) {
    for (size_t i = 0; i != count; ++i) add();
    if (fails) spoil(pick(random_, 0, count - 1));
    if (!script_.ops.empty()) script_.ops.back().flags |= kSendSignaled;
    return std::move(script_);
  }

 private:
  bool one_in(uint64_t n) { return pick(random_, 1, n) == 1; }

  uint32_t length() {
    if (one_in(20)) return 0;
    if (large_left_ != 0 && one_in(5)) {
      --large_left_;
      return static_cast<uint32_t>(pick(random_, (1 << 20) - 10, 5u << 19));
    }
    if (one_in(6)) return static_cast<uint32_t>(pick(random_, 9000, 40000));
    return static_cast<uint32_t>(pick(random_, 1, 700));
  }
  uint64_t place(uint32_t length) {
    const uint64_t begin = length > 700 ? kHotEnd : kCellsEnd;
    const uint64_t end = length > 700 ? script_.target_bytes : kHotEnd;
    return pick(random_, begin, end - length);
  }
  SendOpcode opcode() {
    if (!script_.ops.empty() && one_in(2)) return script_.ops.back().opcode;
    constexpr SendOpcode kUsual[] = {
        SendOpcode::kWrite,       SendOpcode::kWrite,        SendOpcode::kWrite,
        SendOpcode::kWrite,       SendOpcode::kRead,         SendOpcode::kRead,
        SendOpcode::kRead,        SendOpcode::kSend,         SendOpcode::kSend,
        SendOpcode::kSendWithImm, SendOpcode::kWriteWithImm, SendOpcode::kFetchAdd,
        SendOpcode::kCompareSwap};
    return kUsual[pick(random_, 0, std::size(kUsual) - 1)];
  }
  void add() {
    Op op;
    op.opcode = opcode();
    op.length = length();
    op.there = place(op.length);
    op.here = pick(random_, 0, kLargeTarget - op.length);
    op.pieces = static_cast<uint32_t>(pick(random_, 1, 4));
    if (one_in(6)) op.flags |= kSendFence;
    if (one_in(4) && takes_receive(op.opcode)) op.flags |= kSendSolicited;
    if (op.opcode == SendOpcode::kWrite && one_in(8)) {  // of a cell
      op.length = 8;
      op.there = 8 * pick(random_, 0, 7);
      op.flags |= kSendFence;
    }
    if (is_atomic(op.opcode)) {
      op.length = 8;
      op.there = 8 * pick(random_, 0, 7);
      op.compare_add = pick(random_, 0, 3);
      op.swap = pick(random_, 0, 3);
    }
    if (awaits_answer(op.opcode)) {
      op.here = script_.sink_bytes;
      script_.sink_bytes += op.length + 11;
      if (op.opcode == SendOpcode::kRead && one_in(8)) op.there = pick(random_, 0, 56);
    } else if (one_in(4) && use_sink(op)) {
    } else if (op.length <= 256 && one_in(3)) {
      op.flags |= kSendInline;
    }
    if (takes_receive(op.opcode)) {
      op.receive = script_.receives.size();
      const uint32_t payload = op.writes() ? 0 : op.length;
      script_.receives.push_back(
          {script_.receive_bytes, payload + static_cast<uint32_t>(pick(random_, 0, 10))});
      script_.receive_bytes += script_.receives.back().size + 11;
    }
    op.waits = op.waits || one_in(12);
    op.in_list = !op.waits && !script_.ops.empty() && !script_.ops.back().in_list && one_in(2);
    // Slots become free by signalled completions only.
    if (one_in(2) || script_.ops.size() % 4 == 3) op.flags |= kSendSignaled;
    if (op.waits && !script_.ops.empty()) script_.ops.back().flags |= kSendSignaled;
    script_.ops.push_back(op);
  }
  /// Sends on what an earlier Read brings. That has completed by then.
  bool use_sink(Op& op) {
    std::vector<const Op*> reads;
    for (const Op& each : script_.ops)
      if (each.opcode == SendOpcode::kRead && each.length >= op.length) reads.push_back(&each);
    if (reads.empty()) return false;
    const Op& read = *reads[pick(random_, 0, reads.size() - 1)];
    op.from_sink = true;
    op.here = read.here + pick(random_, 0, read.length - op.length);
    one_in(3) ? op.waits = true : op.flags |= kSendFence;
    return true;
  }
  void spoil(size_t position) {
    for (size_t at = position; at != script_.ops.size(); ++at) {
      Op& op = script_.ops[at];
      if ((op.opcode != SendOpcode::kWrite && op.opcode != SendOpcode::kRead) || op.length == 0)
        continue;
      script_.bad = at;
      op.bad = static_cast<Bad>(pick(random_, 1, 4));
      op.flags &= static_cast<uint8_t>(~kSendInline);
      if (op.bad == Bad::kRange) op.there = script_.target_bytes - op.length / 2;
      if (one_in(2)) return;
      op.waits = true;
      op.in_list = false;
      if (at != 0) script_.ops[at - 1].flags |= kSendSignaled;
      return;
    }
  }

  Random& random_;
  int large_left_;
  Script script_;
};

// --- What it goes over

/// One direction. Lends memory if it is of a ring: what is large is read where it lies, and until
/// then not given back.
class Wire final : public LentMemory {
 public:
  static constexpr size_t kMostLent = 4;
  Wire(bool lends, size_t capacity, std::vector<std::byte>& log)
      : lends_(lends), capacity_(capacity), log_(log) {}

  /// As RingCarrier::send(), or that of a socket.
  size_t send(std::span<const iovec> bytes, size_t limit) {
    if (broken_) return 0;
    size_t skip = written_ - given_;
    for (const iovec& piece : bytes) {
      if (skip >= piece.iov_len) {
        skip -= piece.iov_len;
        continue;
      }
      const auto* const at = static_cast<const std::byte*>(piece.iov_base) + skip;
      const size_t size = std::min(piece.iov_len - skip, limit);
      const size_t taken = put(at, size);
      limit -= taken;
      if (taken != piece.iov_len - skip) break;
      skip = 0;
    }
    return given_back();
  }
  size_t read(std::span<const iovec> room, size_t limit) {
    size_t done = 0;
    for (const iovec& part : room) {
      for (size_t filled = 0; filled != part.iov_len;) {
        if (done == limit || pieces_.empty()) return done;
        Piece& front = pieces_.front();
        const size_t size = std::min({front.size, part.iov_len - filled, limit - done});
        std::memcpy(static_cast<std::byte*>(part.iov_base) + filled, front.at, size);
        log_.insert(log_.end(), front.at, front.at + size);
        front.at += size;
        front.size -= size;
        filled += size;
        done += size;
        read_ += size;
        if (front.size == 0) drop_front();
      }
    }
    return done;
  }
  /// What comes means nothing any more.
  bool discard() {
    const bool some = !pieces_.empty();
    while (!pieces_.empty()) drop_front();
    return some;
  }
  bool empty() const { return pieces_.empty(); }
  bool broken() const { return broken_; }
  uint64_t written() const { return written_; }
  bool may_give_back() const { return lends_ && !broken_; }
  /// The reader has placed and completed all that there was.
  bool note_placed() { return std::exchange(placed_, written_) != written_; }
  bool placed() const { return placed_ == written_; }
  bool take_placed() { return std::exchange(placed_seen_, placed_) != placed_; }

  void withdraw() override { broken_ = broken_ || lent_ != 0; }
  size_t give_back() override { return broken_ ? 0 : given_back(); }
  uint64_t read_bytes() const override { return read_; }
  uint64_t placed_bytes() const override { return placed_; }

 private:
  struct Piece {
    std::vector<std::byte> own;  // empty: lent
    const std::byte* at;
    size_t size;
    uint64_t begin;  // bytes of the stream before it
  };
  size_t put(const std::byte* at, size_t size) {
    if (size == 0) return 0;
    const bool lent = lends_ && size >= tuning::kPullBytes;
    if (lent ? lent_ == kMostLent : held_ == capacity_) return 0;
    if (!lent) size = std::min(size, capacity_ - held_);
    Piece piece{{}, at, size, written_};
    if (!lent) {
      piece.own.assign(at, at + size);
      piece.at = piece.own.data();
    }
    pieces_.push_back(std::move(piece));
    (lent ? lent_ : held_) += lent ? 1 : size;
    written_ += size;
    return size;
  }
  void drop_front() {
    (pieces_.front().own.empty() ? lent_ : held_) -=
        pieces_.front().own.empty() ? 1 : pieces_.front().own.size();
    pieces_.pop_front();
  }
  size_t given_back() {
    uint64_t kept_from = written_;
    for (const Piece& piece : pieces_)
      if (piece.own.empty()) kept_from = std::min(kept_from, piece.begin);
    return kept_from - std::exchange(given_, kept_from);
  }

  const bool lends_;
  const size_t capacity_;
  std::vector<std::byte>& log_;
  std::deque<Piece> pieces_;
  size_t held_ = 0;  // bytes of its own
  size_t lent_ = 0;  // pieces
  uint64_t written_ = 0, given_ = 0, read_ = 0, placed_ = 0, placed_seen_ = 0;
  bool broken_ = false;
};

/// What is wrong with the copies, for runs that must find it.
enum class Fault : uint8_t { kNone, kOvertakes, kLosesABit, kForgetsAPart, kTellsMore };

struct Counts {
  uint64_t copies = 0, requests = 0, parts = 0, failures = 0, failures_behind_a_part = 0;
};

/// The memory of `target` as RingCarrier offers it.
class NearMemory final : public RemoteMemory {
 public:
  NearMemory(Pair& pair, End& target, const Wire& wire, Random& random, Fault fault, Counts& counts)
      : pair_(pair),
        target_(target),
        wire_(wire),
        random_(random),
        fault_(fault),
        counts_(counts),
        fails_one_in_(pick(random, 2, 40)),
        attended_one_in_(pick(random, 1, 4)),
        bulk_(pick(random, 0, 3) != 0) {}

  bool reachable() const override { return pick(random_, 1, 16) != 1; }
  bool settled() const override { return fault_ == Fault::kOvertakes || wire_.placed(); }
  bool await_settled() override { return !settled(); }
  bool suits_bulk() const override { return bulk_; }
  bool attended() const override { return pick(random_, 1, attended_one_in_) == 1; }

  // Some of a request that is not done may have been copied, as by the kernel.
  size_t copy(const RemoteCopy& copy) override {
    ++counts_.copies;
    size_t whole = copy.requests().size();
    if (pick(random_, 1, part_before_ ? 3 : fails_one_in_) == 1) {
      whole = pick(random_, 0, whole - 1);
      ++counts_.failures;
      if (part_before_ && whole == 0) ++counts_.failures_behind_a_part;
    }
    part_before_ = copy.bytes() == tuning::kPassBytes;
    counts_.parts += part_before_;
    counts_.requests += whole;
    const uint32_t right = copy.reads() ? kAccessRemoteRead : kAccessRemoteWrite;
    std::vector<RemoteRange> places;
    for (const RemoteCopy::Request& request : copy.requests()) {
      places.emplace_back();
      if (pair_.regions.remote(STag{copy.key()}, request.offset, request.bytes, right,
                               {&target_.domain, 0, ~0u}, places.back()) != RegionFault::kNone)
        return 0;
    }
    std::span<const iovec> local = copy.local();
    size_t used = 0;
    for (size_t i = 0; i != places.size() && i <= whole; ++i) {
      uint64_t left = copy.requests()[i].bytes;
      if (i == whole) left = pick(random_, 0, left);
      if (fault_ == Fault::kLosesABit && left > 1 && pick(random_, 1, 8) == 1) --left;
      if (fault_ == Fault::kForgetsAPart && part_before_ && pick(random_, 1, 2) == 1) left = 0;
      const uint64_t skipped = copy.requests()[i].bytes - left;
      move(copy.reads(), places[i].address, left, local, used);
      move(copy.reads(), nullptr, skipped, local, used);
    }
    if (fault_ == Fault::kTellsMore) return places.size();
    return whole;
  }

 private:
  static void move(bool reads, std::byte* at, uint64_t bytes, std::span<const iovec>& local,
                   size_t& used) {
    while (bytes != 0) {
      const size_t size = std::min<uint64_t>(bytes, local.front().iov_len - used);
      std::byte* const here = static_cast<std::byte*>(local.front().iov_base) + used;
      if (at != nullptr) {
        std::memcpy(reads ? here : at, reads ? at : here, size);
        at += size;
      }
      bytes -= size;
      used += size;
      if (used != local.front().iov_len) continue;
      local = local.subspan(1);
      used = 0;
    }
  }

  Pair& pair_;
  End& target_;
  const Wire& wire_;
  Random& random_;
  const Fault fault_;
  Counts& counts_;
  const uint64_t fails_one_in_, attended_one_in_;
  const bool bulk_;
  bool part_before_ = false;
};

// --- What comes of it

std::vector<std::byte>& source_bytes() {
  static std::vector<std::byte> bytes = [] {
    std::vector<std::byte> made(kLargeTarget + 8);
    Random random(17);
    for (size_t at = 0; at + 8 <= made.size(); at += 8) {
      const uint64_t word = random();
      std::memcpy(&made[at], &word, sizeof word);
    }
    return made;
  }();
  return bytes;
}

/// What an application can tell of a completion.
using Told = std::tuple<uint64_t, WcStatus, WcOpcode, uint32_t, uint32_t, uint32_t, uint32_t>;

Told told(const WorkCompletion& one) {
  return {one.wr_id,
          one.status,
          one.opcode,
          one.byte_len,
          one.vendor_err,
          one.wc_flags,
          one.wc_flags == 0 ? 0 : one.imm_or_invalidated};
}

/// Bytes that were seen: those of all requests before `position`, and of those from there to `end`
/// each may have come or not.
struct Look {
  std::string what;
  size_t position, end;
  uint64_t offset, stride;
  std::vector<std::byte> seen;
  std::vector<bool> right;
  bool all_right = false;

  void compare(uint64_t at, std::span<const std::byte> bytes) {
    if (all_right || seen.empty() || bytes.empty()) return;
    if (stride == 1 && at <= offset && offset + seen.size() <= at + bytes.size())
      all_right = std::memcmp(seen.data(), &bytes[offset - at], seen.size()) == 0;
    if (all_right) return;
    right.resize(seen.size());
    const uint64_t first = at <= offset ? 0 : (at - offset + stride - 1) / stride;
    for (uint64_t i = first; i < seen.size() && offset + i * stride < at + bytes.size(); ++i)
      if (seen[i] == bytes[offset + i * stride - at]) right[i] = true;
  }
};

/// Requests of one side, and what they must do. Findings are kept, as there are runs that must have
/// some.
class Traffic {
 public:
  Traffic(Pair& pair, End& from, End& to, const Script& script, bool acknowledged, Random& random)
      : pair_(pair),
        from_(from),
        to_(to),
        script_(script),
        acknowledged_(acknowledged),
        random_(random),
        target_(script.target_bytes),
        sinks_(script.sink_bytes + 1),
        receives_(script.receive_bytes + 1),
        source_(&*region(from.domain, source_bytes().data(), source_bytes().size(), 0)),
        here_(&*region(from.domain, sinks_.data(), sinks_.size(), kAllAccess)),
        there_(&*region(to.domain, target_.data(), target_.size(), kAllAccess)),
        no_right_(&*region(to.domain, target_.data(), target_.size(), kAccessLocalWrite)),
        rooms_(&*region(to.domain, receives_.data(), receives_.size(), kAccessLocalWrite)) {
    std::memcpy(target_.data(), source_bytes().data(), target_.size());
    std::memset(target_.data(), 0, kCellsEnd);
    before_.assign(target_.data(), target_.data() + target_.size());
    std::fill_n(sinks_.data(), sinks_.size(), kUntouched);
    std::fill_n(receives_.data(), receives_.size(), kUntouched);
  }

  bool all_posted() const { return posted_ == script_.ops.size(); }
  void post() {
    std::vector<SendRequest> list;
    std::deque<std::vector<Sge>> sges;
    for (size_t at = posted_; at != script_.ops.size(); ++at) {
      const Op& op = script_.ops[at];
      if (at != posted_ && !op.in_list) break;
      if (op.waits && completed_ != at) break;
      sges.push_back(cut(op));
      list.push_back(request(at, sges.back()));
    }
    if (list.empty()) return;
    const int error = from_.qp->post_sends(list);
    if (error == 0) posted_ += list.size();
    if (error != 0 && error != ENOMEM) find("a request is refused: " + std::to_string(error));
  }
  void post_receive() {
    if (received_posted_ == script_.receives.size()) return;
    const Script::Room& room = script_.receives[received_posted_];
    const Sge sge = {receives_.address() + room.at, room.size, rooms_->key.load()};
    if (to_.qp->post_recv(received_posted_, {&sge, 1}) == 0) ++received_posted_;
  }
  void take_completions() {
    for (const WorkCompletion& one : from_.sends()) {
      sends.push_back(told(one));
      const auto at = static_cast<size_t>(one.wr_id);
      if (at < completed_ || at >= posted_) return find("a completion out of order", at);
      completed_ = at + 1;
      const Op& op = script_.ops[at];
      if (one.status != WcStatus::kSuccess) {
        failed_ = std::min(failed_, at);
        continue;
      }
      if (at > failed_) find("success behind a failure", at);
      if (acknowledged_ || awaits_answer(op.opcode)) look("completed", at + 1);
    }
    for (const WorkCompletion& one : to_.receives()) {
      receives.push_back(told(one));
      if (one.wr_id != received_++) return find("a receive out of order", one.wr_id);
      if (one.status != WcStatus::kSuccess) continue;
      for (size_t at = 0; at != script_.ops.size(); ++at)
        if (takes_receive(script_.ops[at].opcode) && script_.ops[at].receive == one.wr_id)
          check_receive(one, at);
    }
  }
  /// At the end of all.
  void judge() {
    check_sends();
    if (!target_.intact() || !sinks_.intact() || !receives_.intact())
      find("a byte beside the memory");
    look_at("is the end", script_.bad, script_.fails() ? script_.ops.size() : script_.bad,
            script_.fails() ? kCellsEnd : 0, 1, target_.data());
    for (size_t at = 0; at != script_.ops.size(); ++at) {
      const Op& op = script_.ops[at];
      if (op.opcode != SendOpcode::kRead || !succeeded(at)) continue;
      size_t end = at + 1;
      while (end != script_.ops.size() && !script_.ops[end].fenced()) ++end;
      look_at("is read", at, end, op.there, 1, sinks_.data() + op.here - op.there, op.length);
    }
    check_gaps();
    replay();
  }

  std::vector<Told> sends, receives;
  std::vector<std::string> findings;

 private:
  MemoryRegion* region(ProtectionDomain& domain, void* at, uint64_t size, uint32_t access) {
    return *pair_.regions.add(domain, at, size, reinterpret_cast<uint64_t>(at), access);
  }
  void find(const std::string& what) {
    if (findings.size() < 10) findings.push_back(what);
  }
  void find(const std::string& what, size_t at) { find(what + ", request " + std::to_string(at)); }

  bool answers(const Op& op) const { return awaits_answer(op.opcode) || op.from_sink; }
  std::byte* place_here(const Op& op) {
    return (answers(op) ? sinks_.data() : source_bytes().data()) + op.here;
  }
  std::vector<Sge> cut(const Op& op) {
    std::vector<Sge> pieces;
    const uint32_t key = (answers(op) ? here_ : source_)->key.load();
    const uint32_t bad = op.bad == Bad::kLocalKey ? 0x5500 : 0;
    auto at = reinterpret_cast<uint64_t>(place_here(op));
    uint32_t left = op.length;
    while (left != 0) {
      const bool last = pieces.size() + 1 >= op.pieces;
      const auto size = last ? left : static_cast<uint32_t>(pick(random_, 1, left));
      pieces.push_back({at, size, key ^ bad});
      at += size;
      left -= size;
    }
    return pieces;
  }
  SendRequest request(size_t at, const std::vector<Sge>& sges) const {
    const Op& op = script_.ops[at];
    SendRequest made;
    made.wr_id = at;
    made.opcode = op.opcode;
    made.flags = op.flags;
    made.sges = sges;
    made.remote_address = reinterpret_cast<uint64_t>(before_address()) + op.there;
    made.rkey = (op.bad == Bad::kRight ? no_right_ : there_)->key.load();
    if (op.bad == Bad::kKey) made.rkey ^= 0x5500;
    made.imm_or_invalidate = static_cast<uint32_t>(at) + 1;
    made.compare_add = op.compare_add;
    made.swap = op.swap;
    return made;
  }
  const std::byte* before_address() const { return const_cast<GuardedMemory&>(target_).data(); }

  /// What the target sees now. Without the cells: an atomic is executed when it is answered.
  void look(const char* what, size_t position) {
    look_at(what, position, posted_, kCellsEnd, 1, target_.data(), kHotEnd - kCellsEnd);
    look_at(what, position, posted_, kHotEnd, 4099, target_.data());
  }
  void look_at(const char* what, size_t position, size_t end, uint64_t offset, uint64_t stride,
               const std::byte* base, uint64_t size = ~uint64_t{0}) {
    Look made{what, std::min(position, script_.ops.size()), end, offset, stride, {}, {}, false};
    const uint64_t last = size == ~uint64_t{0} ? target_.size() : offset + size;
    if (stride == 1) made.seen.assign(base + offset, base + last);
    for (uint64_t at = offset; stride != 1 && at < last; at += stride)
      made.seen.push_back(base[at]);
    looks_.push_back(std::move(made));
  }

  bool succeeded(size_t at) const { return at < std::min(failed_, script_.bad); }

  void check_receive(const WorkCompletion& one, size_t at) {
    const Op& op = script_.ops[at];
    const bool immediate = op.opcode != SendOpcode::kSend;
    if (one.byte_len != op.length) find("a receive of another length", at);
    if ((one.wc_flags & kWcWithImm) != (immediate ? kWcWithImm : 0u) ||
        (immediate && one.imm_or_invalidated != at + 1) ||
        one.opcode != (op.writes() ? WcOpcode::kRecvWriteWithImm : WcOpcode::kRecv))
      find("a receive of another kind", at);
    const Script::Room& room = script_.receives[op.receive];
    const uint32_t payload = op.writes() ? 0 : op.length;
    if (std::memcmp(receives_.data() + room.at, place_here(op), payload) != 0)
      find("a receive has other bytes", at);
    const std::byte* const behind = receives_.data() + room.at + payload;
    if (std::any_of(behind, behind + (room.size - payload) + 11,
                    [](std::byte each) { return each != kUntouched; }))
      find("a receive has more bytes", at);
    look("is seen by a receive", at + 1);
  }
  void check_sends() {
    if (script_.fails()) {
      // A Write that nothing acknowledges may complete before the target refuses it.
      const bool told = acknowledged_ || script_.ops[script_.bad].opcode == SendOpcode::kRead;
      if (told && failed_ == ~size_t{0}) find("nothing fails");
      if (completed_ != script_.ops.size()) find("not all have completed");
      return;
    }
    std::vector<Told> wanted;
    for (size_t at = 0; at != script_.ops.size(); ++at) {
      const Op& op = script_.ops[at];
      if ((op.flags & kSendSignaled) != 0)
        wanted.emplace_back(at, WcStatus::kSuccess, completion_opcode(op.opcode), op.length, 0, 0,
                            0);
    }
    if (sends != wanted) find("other completions than were asked for");
    if (received_ != script_.receives.size()) find("not all has been received");
  }
  void check_gaps() {
    for (const Op& op : script_.ops) {
      if (!awaits_answer(op.opcode)) continue;
      const std::byte* const gap = sinks_.data() + op.here + op.length;
      if (std::any_of(gap, gap + 11, [](std::byte each) { return each != kUntouched; }))
        find("a byte behind a Read", static_cast<size_t>(&op - script_.ops.data()));
    }
  }
  // In the order of posting. Payloads are there: nothing is read into the same place twice.
  void replay() {
    std::vector<std::byte> value = before_;
    for (size_t at = 0;; ++at) {
      for (Look& each : looks_)
        if (each.position == at) each.compare(0, value);
      if (at == script_.ops.size()) break;
      const Op& op = script_.ops[at];
      std::byte cell[8];
      std::span<const std::byte> bytes;
      if (is_atomic(op.opcode)) {
        if (script_.fails() && at >= script_.bad) continue;
        bytes = execute(at, &value[op.there], cell);
      } else if (op.writes() && op.bad == Bad::kNo) {
        bytes = {place_here(op), op.length};
      }
      for (Look& each : looks_)
        if (each.position <= at && at < each.end) each.compare(op.there, bytes);
      std::copy(bytes.begin(), bytes.end(), value.begin() + static_cast<ptrdiff_t>(op.there));
    }
    for (const Look& each : looks_) {
      const auto wrong = std::find(each.right.begin(), each.right.end(), false);
      if (each.all_right || wrong == each.right.end()) continue;
      const auto index = static_cast<uint64_t>(wrong - each.right.begin());
      find("what " + each.what + " at " + std::to_string(each.offset + index * each.stride) +
               " is not that of the order",
           each.position);
    }
  }
  std::span<const std::byte> execute(size_t at, const std::byte* cell, std::byte* changed) {
    const Op& op = script_.ops[at];
    uint64_t old, original;
    std::memcpy(&old, cell, sizeof old);
    std::memcpy(&original, sinks_.data() + op.here, sizeof original);
    if (succeeded(at) && original != old) find("an atomic finds another value", at);
    uint64_t next = old + op.compare_add;
    if (op.opcode == SendOpcode::kCompareSwap) next = old == op.compare_add ? op.swap : old;
    std::memcpy(changed, &next, sizeof next);
    return {changed, sizeof next};
  }

  Pair& pair_;
  End& from_;
  End& to_;
  const Script& script_;
  const bool acknowledged_;
  Random& random_;
  GuardedMemory target_, sinks_, receives_;
  MemoryRegion* const source_;
  MemoryRegion* const here_;
  MemoryRegion* const there_;
  MemoryRegion* const no_right_;
  MemoryRegion* const rooms_;
  std::vector<std::byte> before_;
  std::deque<Look> looks_;
  size_t posted_ = 0, completed_ = 0, failed_ = ~size_t{0};
  size_t received_posted_ = 0, received_ = 0;
};

// --- A run

/// What is the same for all ways.
struct Plan {
  explicit Plan(uint64_t seed) : random(seed) {
    shape.max_send_wr = static_cast<uint32_t>(pick(random, 8, 64));
    shape.signal_all = false;
    shape.acknowledged = pick(random, 0, 1) == 1;
    const bool large = pick(random, 0, 3) == 0;
    stream.ord = static_cast<uint16_t>(pick(random, 1, 8));
    stream.ird = 16;
    stream.peer_is_uwarp = true;
    if (!large && pick(random, 0, 2) == 0)
      stream.mulpdu = static_cast<uint16_t>(pick(random, 128, 3000));
    const bool fails = pick(random, 0, 3) == 0;
    forth = ScriptMaker(random, large).make(pick(random, 20, 90), fails);
    // Beside a failure the other direction would fail sooner or later.
    if (!fails) back = ScriptMaker(random, false).make(pick(random, 0, 30), false);
  }
  /// It does not depend on the moment how far the others come that are posted with the failing one.
  bool fails_at_once() const {
    if (!forth.fails()) return false;
    const Op& bad = forth.ops[forth.bad];
    return bad.waits &&
           (shape.acknowledged || bad.opcode == SendOpcode::kRead || bad.bad == Bad::kLocalKey);
  }

  Random random;
  QpConfig shape = End::default_shape();
  StreamConfig stream;
  Script forth, back;
};

struct Outcome {
  std::vector<Told> sends, receives, sends_back, receives_back;
  std::vector<QpEvent> events, events_there;
  std::vector<std::string> findings;
};

class Run {
 public:
  Run(const Plan& plan, uint64_t seed, Way way, Fault fault, Counts& counts)
      : plan_(plan),
        way_(way),
        pair_(seed * 4 + static_cast<uint64_t>(way), plan.shape),
        a_to_b_(way != Way::kStream, pick(pair_.random, 100, 200000), pair_.a_to_b.log),
        b_to_a_(way != Way::kStream, pick(pair_.random, 100, 200000), pair_.b_to_a.log),
        b_memory_(pair_, pair_.b, a_to_b_, pair_.random, fault, counts),
        a_memory_(pair_, pair_.a, b_to_a_, pair_.random, fault, counts),
        forth_(pair_, pair_.a, pair_.b, plan.forth, plan.shape.acknowledged, pair_.random),
        back_(pair_, pair_.b, pair_.a, plan.back, plan.shape.acknowledged, pair_.random) {
    pair_.chunk_max = pick(pair_.random, 0, 2) == 0 ? pick(pair_.random, 1, 200) * 100 : 0;
  }

  Outcome make() {
    pair_.connect(plan_.stream);
    join(pair_.a, a_to_b_, b_memory_);
    join(pair_.b, b_to_a_, a_memory_);
    int quiet = 0;
    while (quiet < 40) {
      bool moved = false;
      for (Traffic* traffic : {&forth_, &back_}) {
        if (pick(pair_.random, 0, 1) != 0) traffic->post();
        if (pick(pair_.random, 0, 2) != 0) traffic->post_receive();
      }
      for (uint64_t i = pick(pair_.random, 0, 3); i > 0; --i) {
        moved |= step(pair_.a, a_to_b_, b_to_a_);
        moved |= step(pair_.b, b_to_a_, a_to_b_);
      }
      forth_.take_completions();
      back_.take_completions();
      quiet = moved ? 0 : quiet + 1;
    }
    if (plan_.forth.fails()) {
      for (End* end : {&pair_.a, &pair_.b}) end->qp->end_stream(StreamEnd::kReset);
      while (!forth_.all_posted()) forth_.post(), forth_.take_completions();
      forth_.take_completions();
    }
    forth_.judge();
    back_.judge();
    Outcome outcome{forth_.sends,   forth_.receives, back_.sends,    back_.receives,
                    pair_.a.events, pair_.b.events,  forth_.findings};
    outcome.findings.insert(outcome.findings.end(), back_.findings.begin(), back_.findings.end());
    return outcome;
  }

 private:
  void join(End& end, Wire& out, NearMemory& peer) {
    if (way_ == Way::kStream) return;
    const auto held = end.qp->lock_exclusive();
    end.qp->lend(&out);
    end.qp->transmitter().carrier_changed();
    if (way_ == Way::kDirect) end.qp->reach(&peer);
  }
  // A turn of each side, as Stream takes it.
  bool step(End& end, Wire& out, Wire& in) {
    const bool sent = transmit(end, out);
    end.complete_deferred();
    const bool resumed = end.resume();
    const bool received = receive(end, out, in);
    const bool flushes = end.qp->flush_due();
    if (flushes) end.qp->flush();
    return sent || resumed || received || flushes;
  }
  bool transmit(End& end, Wire& out) {
    bool moved = false;
    Transmitter& transmitter = end.qp->transmitter();
    auto turn = end.qp->transmit_side().begin();
    for (;;) {
      const std::span<const iovec> window = transmitter.next_iovecs();
      if (window.empty()) {
        moved |= transmitter.unfinished();
        break;
      }
      const uint64_t before = out.written();
      const size_t done = out.send(window, pair_.limit());
      moved |= done != 0 || out.written() != before;
      if (done == 0 || !transmitter.sent(done) || pick(pair_.random, 0, 3) == 0) break;
    }
    (void)turn.end();
    return moved;
  }
  bool receive(End& end, Wire& out, Wire& in) {
    const auto lock = end.qp->receive_side().lock_exclusive();
    Receiver& receiver = end.qp->receiver();
    if (out.take_placed()) receiver.note_acknowledged();
    if (receiver.closed() || in.broken()) return in.discard();
    bool moved = false;
    if (!in.empty() && (!receiver.rnr_blocked() || receiver.reads_ahead())) {
      const std::span<const iovec> window = receiver.next_iovecs(end.staging);
      const size_t done = in.read(window, pair_.limit());
      if (out.may_give_back()) receiver.note_acknowledged();
      end.outcome |= receiver.received(end.staging, done);
      if (!end.staging) end.staging = std::make_unique<StagingBuffer>();
      moved = done != 0;
    }
    if (in.empty() && !receiver.closed() && !receiver.rnr_blocked() && !receiver.mid_message()) {
      moved |= in.note_placed();
      end.qp->note_told_placed();
    }
    return moved;
  }

  const Plan& plan_;
  const Way way_;
  Pair pair_;
  Wire a_to_b_, b_to_a_;
  NearMemory b_memory_, a_memory_;
  Traffic forth_, back_;
};

Outcome run(uint64_t seed, Way way, Fault fault, Counts& counts) {
  const Plan plan(seed);
  return Run(plan, seed, way, fault, counts).make();
}

/// UWARP_TEST_SEEDS=FIRST,COUNT asks for others.
std::pair<uint64_t, uint64_t> seeds(uint64_t usual) {
  const char* const asked = std::getenv("UWARP_TEST_SEEDS");
  if (asked == nullptr) return {1, usual};
  char* end = nullptr;
  const uint64_t first = std::strtoull(asked, &end, 10);
  return {first, *end == ',' ? std::strtoull(end + 1, nullptr, 10) : 1};
}

TEST(OneSidedTraffic, IsTheSameInEachWay) {
  const auto [first, count] = seeds(20);
  Counts counts;
  for (uint64_t seed = first; seed != first + count && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Plan plan(seed);
    std::vector<Outcome> outcomes;
    for (const Way way : kWays) {
      SCOPED_TRACE("way " + std::to_string(static_cast<int>(way)));
      outcomes.push_back(run(seed, way, Fault::kNone, counts));
      for (const std::string& finding : outcomes.back().findings) ADD_FAILURE() << finding;
    }
    if (plan.forth.fails() && !plan.fails_at_once()) continue;
    for (const Outcome& other : {outcomes[1], outcomes[2]}) {
      EXPECT_EQ(other.sends, outcomes[0].sends);
      EXPECT_EQ(other.events, outcomes[0].events);
      EXPECT_EQ(other.events_there, outcomes[0].events_there);
      EXPECT_EQ(other.sends_back, outcomes[0].sends_back);
      if (plan.forth.fails()) continue;  // some that are flushed here have been received there
      EXPECT_EQ(other.receives, outcomes[0].receives);
      EXPECT_EQ(other.receives_back, outcomes[0].receives_back);
    }
  }
  std::printf("%llu copies of %llu requests, %llu parts, %llu failures, %llu behind a part\n",
              static_cast<unsigned long long>(counts.copies),
              static_cast<unsigned long long>(counts.requests),
              static_cast<unsigned long long>(counts.parts),
              static_cast<unsigned long long>(counts.failures),
              static_cast<unsigned long long>(counts.failures_behind_a_part));
  if (count < 60) return;
  EXPECT_GT(counts.requests, 300u);
  EXPECT_GT(counts.parts, 5u);
  EXPECT_GT(counts.failures_behind_a_part, 0u);
}

// A test that finds nothing wrong in these shows nothing.
TEST(OneSidedTraffic, FindsWrongCopies) {
  for (const Fault fault :
       {Fault::kOvertakes, Fault::kLosesABit, Fault::kForgetsAPart, Fault::kTellsMore}) {
    SCOPED_TRACE(static_cast<int>(fault));
    size_t found = 0;
    Counts counts;
    for (uint64_t seed = 1; seed != 60 && found == 0; ++seed)
      found = run(seed, Way::kDirect, fault, counts).findings.size();
    EXPECT_NE(found, 0u);
  }
}

}  // namespace
}  // namespace uwarp::sim::one_sided
