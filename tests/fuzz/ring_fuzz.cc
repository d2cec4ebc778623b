// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A carrier through shared memory whose other side may write anything there. The input is a script:
// what this side sends and receives, valid records of the other side, and nonsense in the other
// side's control words and records. Checked: no access outside the rings (the pages around them
// fault) or outside the given room; no more is given back than was offered; each call returns, with
// a result that it is allowed to return.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/tuning.h"
#include "carrier/ring_carrier.h"
#include "fuzz/script.h"

namespace uwarp {
namespace {

using fuzz::Script;

constexpr size_t kStepsMax = 300;
constexpr size_t kPage = 4096;

/// An inaccessible page at `at`, unless something else is mapped there.
class Guard {
 public:
  explicit Guard(std::byte* at)
      : page_(
            mmap(at, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0)) {}
  ~Guard() {
    if (page_ != MAP_FAILED) munmap(page_, kPage);
  }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  void* const page_;
};

/// Our side, and the memory as the other side sees it.
class Rings {
 public:
  explicit Rings(Script& script) : script_(script) {
    auto memory = SharedMemory::create(RingCarrier::kSharedBytes).value();
    base_ = memory.base();
    before_.emplace(base_ - kPage);
    behind_.emplace(base_ + RingCarrier::kSharedBytes);
    auto* const words = reinterpret_cast<RingControl*>(base_);
    // We created the memory, so the first ring is ours.
    reader_ = std::make_unique<RingReader>(words[0], base_ + kPage, RingCarrier::kRingBytes);
    writer_ = std::make_unique<RingWriter>(words[1], base_ + kPage + RingCarrier::kRingBytes,
                                           RingCarrier::kRingBytes);
    auto peer = std::make_unique<PeerMemory>();
    const auto* const secret = reinterpret_cast<const PeerMemory::Secret*>(peer->place().at);
    ours_ = std::make_unique<RingCarrier>(std::move(memory), true,
                                          std::move(WakeupSocket::pair().value().first),
                                          std::move(peer), errands_);
    ours_->ask_peer(getpid(), theirs_.place());
    const uint8_t rights = script_.next();
    if ((rights & 2) != 0) words[0].answer.store(secret->number);
    (void)ours_->take_answer();
    words[0].can_pull.store(rights & 1);
  }
  void run() {
    for (size_t i = 0; i < kStepsMax && !script_.done() && !over_; ++i) step();
  }

 private:
  void step() {
    switch (script_.below(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return receive();
      case 4:
      case 5:
      case 6:
        return send();
      case 7:
      case 8:
        return write_record();
      case 9:
        return write_place();
      case 10:
        return read_away();
      case 11:
      case 12:
        return spoil_word();
      case 13:
        return spoil_record();
      case 14:
        return ours_->set_muted((script_.next() & 1) != 0);
      default:
        (void)ours_->space_came();
        (void)ours_->unread();
        (void)ours_->incoming_cpu();
        (void)ours_->read_bytes();
        if (script_.next() < 16) ours_->withdraw();
    }
  }
  size_t some_size() {
    const uint8_t kind = script_.next();
    if (kind < 160) return 1 + kind % 40;
    if (kind < 220) return 1 + script_.next16();
    return tuning::kPullBytes + script_.next16();
  }
  /// Receives into memory of exactly the given size, so that ASan finds an overrun.
  void receive() {
    std::vector<std::vector<std::byte>> parts;
    std::vector<iovec> room;
    size_t all = 0;
    for (size_t left = 1 + script_.below(3); left != 0; --left) {
      parts.emplace_back(some_size());
      all += parts.back().size();
    }
    for (auto& part : parts) room.push_back({part.data(), part.size()});
    const ssize_t count = ours_->receive(room);
    UWARP_REQUIRE(count != 0 && count <= static_cast<ssize_t>(all));
    UWARP_REQUIRE(count > 0 || count == -EAGAIN || count == -EPROTO || count == -ECONNRESET);
    if (count == -EPROTO) UWARP_REQUIRE(ours_->receive(room) == -EPROTO);
    // The stream has ended.
    over_ |= count < 0 && count != -EAGAIN;
  }
  void send() {
    for (size_t left = 1 + script_.below(3); left != 0 && offered_.size() < 60; --left)
      offered_.emplace_back(some_size());
    std::vector<iovec> pieces;
    size_t all = 0;
    for (auto& piece : offered_) {
      const size_t skip = std::exchange(given_, 0);
      pieces.push_back({piece.data() + skip, piece.size() - skip});
      all += piece.size() - skip;
    }
    const size_t before = offered_.empty() ? 0 : offered_[0].size() - pieces[0].iov_len;
    ssize_t count = ours_->send(pieces);
    UWARP_REQUIRE(count != 0 && count <= static_cast<ssize_t>(all));
    UWARP_REQUIRE(count > 0 || count == -EAGAIN || count == -EPROTO || count == -ECONNRESET);
    over_ |= count < 0 && count != -EAGAIN;
    given_ = before;
    for (; count > 0;) {
      const size_t rest = offered_[0].size() - given_;
      if (static_cast<size_t>(count) < rest) {
        given_ += static_cast<size_t>(count);
        break;
      }
      count -= static_cast<ssize_t>(rest);
      given_ = 0;
      offered_.erase(offered_.begin());
    }
  }

  // ---- The other side when it is correct. What it has spoilt misleads it too.
  void write_record() {
    if (!writer_->poll()) return;
    const uint32_t fits = writer_->space(static_cast<uint32_t>(some_size()));
    if (fits == 0) return;
    last_record_ = static_cast<size_t>(writer_->place() - base_) - kRingStep;
    writer_->put(RingRecord::kBytes, fits);
    (void)writer_->publish();
  }
  void write_place() {
    if (!writer_->poll()) return;
    static const std::vector<std::byte> text(70'000, std::byte{0x55});
    const bool there = (script_.next() & 7) != 0;
    const void* const at = there ? text.data() : reinterpret_cast<const void*>(uintptr_t{kPage});
    if (writer_->space(kRingStep) < kRingStep) return;
    last_record_ = static_cast<size_t>(writer_->place() - base_) - kRingStep;
    if (writer_->put_place(at, 1 + script_.next16())) (void)writer_->publish();
  }
  void read_away() {
    for (size_t left = script_.below(8); left != 0 && reader_->begin(); --left)
      reader_->advance(1 + script_.next16() % reader_->left());
    (void)reader_->release();
  }

  // ---- The other side when it is faulty.
  void spoil_word() {
    auto* const words = reinterpret_cast<RingControl*>(base_);
    const uint8_t which = script_.next();
    std::atomic<uint64_t>& position = (which & 1) != 0 ? words[0].tail : words[1].head;
    switch (which >> 1 & 7) {
      case 0:
        return position.store(uint64_t{script_.next32()} << 32 | script_.next32());
      case 1:
        return position.store(position.load() + (uint64_t{script_.next()} << 32));
      case 2:
        return words[0].can_pull.store(script_.next());
      case 3:
        words[script_.next() & 1].withdrawn.store(script_.next());
        return;
      case 4:
        words[script_.next() & 1].reader_sleeps.store(script_.next());
        return;
      case 5:
        words[script_.next() & 1].writer_sleeps.store(script_.next());
        return;
      default:
        // Near the right position: before it, behind it, or unaligned.
        return position.store(position.load() + script_.next() - 128);
    }
  }
  void spoil_record() {
    if (last_record_ == 0) return;
    RingRecord record{script_.next() < 200 ? script_.next16() : script_.next32(),
                      static_cast<uint32_t>(script_.below(5))};
    std::memcpy(base_ + last_record_, &record, sizeof record);
    if (script_.next() < 64) {
      const uint64_t address = script_.next32();
      const size_t at =
          std::min(last_record_ + sizeof record, RingCarrier::kSharedBytes - sizeof address);
      std::memcpy(base_ + at, &address, sizeof address);
    }
  }

  Script& script_;
  std::byte* base_ = nullptr;
  std::optional<Guard> before_, behind_;
  std::unique_ptr<RingReader> reader_;
  std::unique_ptr<RingWriter> writer_;
  std::vector<std::vector<std::byte>> offered_;  // not given back yet
  size_t given_ = 0;                             // bytes of the first one that are given back
  const PeerMemory theirs_;
  Errands errands_;
  std::unique_ptr<RingCarrier> ours_;
  size_t last_record_ = 0;
  bool over_ = false;
};

}  // namespace
}  // namespace uwarp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  uwarp::fuzz::Script script(bytes, size);
  uwarp::Rings(script).run();
  return 0;
}
