// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "carrier/ring_carrier.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/thread_own.h"
#include "memory/place_last.h"
#include "os/unforked.h"

namespace uwarp {

namespace {

RingControl& control_of(const SharedMemory& memory, bool first) {
  static_assert(sizeof(RingControl) == 192);
  return reinterpret_cast<RingControl*>(memory.base())[first ? 0 : 1];
}
std::byte* ring_of(const SharedMemory& memory, bool first) {
  return memory.base() + 4096 + (first ? 0 : RingCarrier::kRingBytes);
}

// Behind the controls of the rings. `first`: of what the creator reads and writes.
OneSidedControl& one_sided_of(const SharedMemory& memory, bool first) {
  static_assert(sizeof(OneSidedControl) == 128);
  constexpr size_t kBegin = 1024;
  return reinterpret_cast<OneSidedControl*>(memory.base() + kBegin)[first ? 0 : 1];
}

}  // namespace

RingCarrier::RingCarrier(SharedMemory memory, bool creator, WakeupSocket wakeup,
                         std::shared_ptr<PeerMemory> peer, Errands& errands)
    : parts_(std::make_shared<Parts>(std::move(memory), std::move(wakeup))),
      peer_(std::move(peer)),
      errands_(errands),
      out_(control_of(parts_->memory, creator)),
      in_(control_of(parts_->memory, !creator)),
      reader_(in_, ring_of(parts_->memory, !creator), kRingBytes),
      writer_(out_, ring_of(parts_->memory, creator), kRingBytes),
      use_(one_sided_of(parts_->memory, creator)),
      gate_(std::make_shared<AccessGate>(parts_, one_sided_of(parts_->memory, !creator),
                                         peer_->process())) {}

RingCarrier::~RingCarrier() {
  gate_->shut();
  if (gates_ != nullptr) gates_->leave(gate_);
}

// --- Rights

void RingCarrier::ask_peer(pid_t pid, const PeerMemory::Place& place) {
  if (peer_->ask(pid, place)) in_.answer.store(peer_->answer(), std::memory_order_release);
}

bool RingCarrier::take_answer(bool pays) {
  if (!peer_->is_secret(out_.answer.load(std::memory_order_acquire))) return false;
  peer_->peer_has_shown();
  if (!peer_->readable()) return true;
  if (pays) in_.can_pull.store(1, std::memory_order_release);
  pays_.store(pays, std::memory_order_relaxed);
  if (!shown_.exchange(true)) errands_.add(peer_);
  return true;
}

// --- Bells

void RingCarrier::set_muted(bool on) {
  quiet_.store(on, std::memory_order_seq_cst);
  if (on) return;
  const bool came = !reader_.begin_sleep() || reader_.placed_more();
  out_.writer_sleeps.store(1, std::memory_order_seq_cst);
  if (came || waits_for_space_.load(std::memory_order_seq_cst) ||
      waits_for_place_.load(std::memory_order_seq_cst))
    parts_->wakeup.ring_here();
}

void RingCarrier::nudge() { parts_->wakeup.ring(); }

// --- One-sided

void RingCarrier::join(AccessGates& gates) {
  gates.add(gate_);
  gates_ = &gates;
}

void RingCarrier::set_socket(int socket) {
  gate_->set_socket(socket);
  socket_ = socket;
}

void RingCarrier::note_placed() {
  if (reader_.note_placed()) parts_->wakeup.ring();
}

bool RingCarrier::tell_placed(uint64_t bytes) {
  if (bytes == 0 || in_.wants_placed.load(std::memory_order_relaxed) == 0) return false;
  if (std::exchange(told_, bytes) != bytes && writer_.show_placed(bytes)) parts_->wakeup.ring();
  return true;
}

bool RingCarrier::await_settled() {
  settles_at_.store(writer_.placed_word(), std::memory_order_relaxed);
  waits_for_place_.store(true, std::memory_order_seq_cst);
  if (!quiet_.load(std::memory_order_seq_cst)) (void)writer_.begin_sleep();
  return !settled() && !ended_.load(std::memory_order_relaxed);
}

// Under one mark of use as many bytes as take no longer than a target may be kept waiting.
size_t RingCarrier::copy(const RemoteCopy& copy) {
  waits_for_place_.store(false, std::memory_order_relaxed);
  const uint32_t entry = peer_->regions()->find(copy.key());
  if (entry == RegionDirectory::kNowhere) return 0;
  use_.begin(entry);
  const size_t done = copy_in_use(copy, entry);
  use_.end();
  return done;
}

namespace {

/// Where requests lie in the peer's memory. In Unforked, as a child that fork() has made in the
/// midst of this might go on with it: its copy would come late, over what the parent has written
/// since.
class RemotePieces {
 public:
  void begin(bool reads) {
    reads_ = reads;
    count_ = 0;
  }
  /// The last bytes of a Write are a piece of their own, as applications poll them, which the
  /// kernel copies after the others.
  void add(uint64_t address, uint64_t bytes) {
    auto* const at = reinterpret_cast<std::byte*>(address);
    const size_t last = reads_ ? bytes : last_store_bytes(at, bytes);
    if (last != bytes) pieces_[count_++] = {at, bytes - last};
    pieces_[count_++] = {at + (bytes - last), last};
  }
  std::span<const iovec> all() const { return {pieces_, count_}; }

 private:
  bool reads_;
  size_t count_;
  iovec pieces_[2 * RemoteCopy::kMostRequests];
};

/// How many of the requests are done by so many bytes.
size_t whole_requests(const RemoteCopy& copy, ssize_t bytes) {
  size_t done = 0;
  for (const RemoteCopy::Request& request : copy.requests()) {
    if (bytes < static_cast<ssize_t>(request.bytes)) break;
    bytes -= static_cast<ssize_t>(request.bytes);
    ++done;
  }
  return done;
}

}  // namespace

size_t RingCarrier::copy_in_use(const RemoteCopy& copy, uint32_t entry) {
  const auto region = peer_->regions()->read(entry, copy.key());
  const uint32_t right = copy.reads() ? kAccessRemoteRead : kAccessRemoteWrite;
  if (!region || (region->access & right) == 0 || !use_.admits(region->domain, right)) return 0;
  RemotePieces* const remote = thread_own<Unforked<RemotePieces>>().get();
  if (remote == nullptr) return 0;
  remote->begin(copy.reads());
  for (const RemoteCopy::Request& request : copy.requests()) {
    const auto address = region->range(request.offset, request.bytes);
    if (!address) return 0;
    remote->add(*address, request.bytes);
  }
  if (peer_->process()->has_left(socket_)) return 0;
  return whole_requests(copy, peer_->copy(copy.reads(), copy.local(), remote->all()));
}

// --- Receiving

ssize_t RingCarrier::receive(std::span<const iovec> buffer) {
  for (;;) {
    const ssize_t count = take(buffer);
    // What came meanwhile does not ring.
    if (count != -EAGAIN || quiet_.load(std::memory_order_relaxed) || reader_.begin_sleep())
      return count;
  }
}

// What is there, in one go.
ssize_t RingCarrier::take(std::span<const iovec> buffer) {
  PeerMemory::Copy pull(*peer_);
  size_t received = 0;
  size_t index = 0;
  size_t filled = 0;  // of room[index]
  while (index != buffer.size() && reader_.begin()) {
    // Into the last piece of the room goes what the reader knows no better place for: with the
    // header before it, it will know one. The end of a payload is meant to go there.
    if (reader_.is_place() && received != 0 && index + 1 == buffer.size() &&
        reader_.left() > kShortEnd)
      break;
    std::byte* const to = static_cast<std::byte*>(buffer[index].iov_base) + filled;
    const size_t size = std::min<size_t>(reader_.left(), buffer[index].iov_len - filled);
    if (reader_.is_place()) {
      if (!peer_->readable()) return -EPROTO;  // we have not said that we would
      if (pull.full()) break;
      pull.from(reader_.address(), size);
      pull.to(to, size);
    } else {
      std::memcpy(to, reader_.data(), size);
    }
    reader_.advance(static_cast<uint32_t>(size));
    received += size;
    filled += size;
    if (filled == buffer[index].iov_len) {
      ++index;
      filled = 0;
    }
  }
  if (!pull.empty() && (!pull.run() || reader_.withdrawn())) return -ECONNRESET;
  if (received != 0) {
    if (reader_.release()) parts_->wakeup.ring();
    return static_cast<ssize_t>(received);
  }
  return reader_.broken() ? -EPROTO : -EAGAIN;
}

ssize_t RingCarrier::receive_to_end(std::span<const iovec> buffer, TcpSocket& tcp) {
  ssize_t count = receive(buffer);
  if (count != -EAGAIN) return count;
  const ssize_t end = tcp.peek();
  if (end == -EAGAIN) return end;
  ended_.store(true, std::memory_order_relaxed);
  count = receive(buffer);
  if (count != -EAGAIN) return count;
  return end > 0 ? -EPROTO : end;
}

// --- Sending

bool RingCarrier::take_back() {
  tail_seen_.store(out_.tail.load(std::memory_order_relaxed), std::memory_order_relaxed);
  return poll_writer();
}

// False: the peer says what cannot be.
bool RingCarrier::poll_writer() {
  if (!writer_.poll()) return false;
  while (lent_count_ != 0 && writer_.has_read(lent_[first_lent_].end)) {
    first_lent_ = (first_lent_ + 1) % kMostLent;
    --lent_count_;
  }
  return true;
}

// False: no more room.
bool RingCarrier::write_piece(const std::byte* at, size_t size, size_t& written) {
  written = 0;
  if (size >= tuning::kPullBytes && out_.can_pull.load(std::memory_order_relaxed) != 0 &&
      peer_->readable()) {
    if (lent_count_ == kMostLent || !writer_.put_place(at, static_cast<uint32_t>(size)))
      return false;
    lent_[(first_lent_ + lent_count_++) % kMostLent] = {written_, writer_.at()};
    written_ += size;
    written = size;
    return true;
  }
  while (written != size) {
    const uint32_t fits =
        writer_.space(static_cast<uint32_t>(std::min<size_t>(size - written, kRecordBytes)));
    if (fits == 0) return false;
    std::memcpy(writer_.place(), at + written, fits);
    writer_.put(RingRecord::kBytes, fits);
    written_ += fits;
    written += fits;
  }
  return true;
}

ssize_t RingCarrier::given_back() {
  lends_.store(lent_count_ != 0, std::memory_order_relaxed);
  const uint64_t kept_from = lent_count_ != 0 ? lent_[first_lent_].begin : written_;
  return static_cast<ssize_t>(kept_from - std::exchange(given_, kept_from));
}

void RingCarrier::show() {
  out_.writer_cpu.store(static_cast<uint32_t>(sched_getcpu()), std::memory_order_relaxed);
  if (writer_.publish()) parts_->wakeup.ring();
}

namespace {

size_t total(std::span<const iovec> bytes) {
  size_t sum = 0;
  for (const iovec& piece : bytes) sum += piece.iov_len;
  return sum;
}

}  // namespace

// What is due to the caller: given_back(), 0 for nothing yet, or an errno below zero.
ssize_t RingCarrier::write(std::span<const iovec> bytes) {
  if (writer_.keeps_to_first_page()) [[unlikely]]
    (void)check_trimmed();
  const bool begins_again = writer_.far() && RingWriter::is_small(total(bytes));
  if ((lent_count_ != 0 || begins_again) && !take_back()) return -EPROTO;
  size_t skip = written_ - given_;  // in the ring already
  bool full = false;
  bool polled = false;
  size_t unshown = 0;
  for (size_t i = 0; i != bytes.size() && !full;) {
    if (skip >= bytes[i].iov_len) {
      skip -= bytes[i++].iov_len;
      continue;
    }
    size_t written;
    const auto* const at = static_cast<const std::byte*>(bytes[i].iov_base) + skip;
    const bool all = write_piece(at, bytes[i].iov_len - skip, written);
    unshown += written;
    skip += written;
    // The reader copies this record while the next one is written.
    if (unshown >= kRecordBytes) {
      show();
      unshown = 0;
    }
    if (all) continue;
    if (std::exchange(polled, true)) full = true;
    if (!take_back()) return -EPROTO;
  }
  if (unshown != 0) show();
  return given_back();
}

// Each round but the last the reader has come on, which it can do as often as there are bytes in
// the ring.
ssize_t RingCarrier::send(std::span<const iovec> bytes) {
  if (withdrawn_) return -ECONNRESET;
  if (waits_for_place_.load(std::memory_order_relaxed)) [[unlikely]]
    waits_for_place_.store(false, std::memory_order_relaxed);
  for (;;) {
    const ssize_t count = write(bytes);
    if (count > 0) waits_for_space_.store(false, std::memory_order_relaxed);
    if (count != 0) return count;
    waits_for_space_.store(true, std::memory_order_seq_cst);
    if (quiet_.load(std::memory_order_seq_cst) || writer_.begin_sleep()) return -EAGAIN;
    if (!take_back()) return -EPROTO;
  }
}

// The first page stays, so that the next message needs no page fault, and is written to meanwhile.
bool RingCarrier::trim() {
  const uint64_t now = writer_.at().word();
  if (std::exchange(idle_at_, now) != now || !poll_writer() || !writer_.idle()) return false;
  if (writer_.keeps_to_first_page() && !check_trimmed()) return true;
  if (!errands_.has_space()) return false;  // or the ring would be small for as long as others like
  const std::span<std::byte> used = writer_.take_used();
  if (used.size() <= RingWriter::kFirstPage) return true;
  parts_->pages = used.subspan(RingWriter::kFirstPage);
  writer_.keep_to_first_page(true);
  errands_.add(parts_);
  return true;
}

// A thread of ours may wait for room.
void RingCarrier::Parts::run() noexcept {
  (void)madvise(pages.data(), pages.size(), MADV_REMOVE);
  trimmed.store(true, std::memory_order_seq_cst);
  wakeup.ring_here();
}

bool RingCarrier::check_trimmed() {
  if (!parts_->trimmed.exchange(false, std::memory_order_acq_rel)) return false;
  writer_.keep_to_first_page(false);
  return true;
}

size_t RingCarrier::give_back() {
  if (withdrawn_ || lent_count_ == 0 || !poll_writer()) return 0;
  return static_cast<size_t>(given_back());
}

uint64_t RingCarrier::read_bytes() const {
  return written_ - std::min(written_, writer_.unread_bytes());
}

void RingCarrier::withdraw() {
  if (lent_count_ == 0 || !take_back() || lent_count_ == 0) return;
  withdrawn_ = true;
  out_.withdrawn.store(1, std::memory_order_seq_cst);
}

}  // namespace uwarp
