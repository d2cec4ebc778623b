// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Two queue pairs in memory, joined by two byte pipes. A seed decides where the pipes are cut,
// stalled or full. There are no sockets, threads or clocks, so the seed repeats a run exactly.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "qp/queue_pair.h"
#include "sim/fpdu_scan.h"

namespace uwarp::sim {

using Random = std::mt19937_64;

inline uint64_t pick(Random& random, uint64_t low, uint64_t high) {
  return std::uniform_int_distribution<uint64_t>(low, high)(random);
}

/// One direction of a TCP connection.
struct Pipe {
  std::deque<std::byte> bytes;
  size_t capacity = 1 << 20;
  std::vector<std::byte> log;  // all bytes that ever went through

  /// Takes up to `limit` bytes of the window, like a short write.
  size_t write(std::span<const iovec> window, size_t limit) {
    size_t done = 0;
    for (const iovec& piece : window) {
      for (size_t i = 0; i < piece.iov_len; ++i) {
        if (done == limit || bytes.size() == capacity) return done;
        const std::byte byte = static_cast<const std::byte*>(piece.iov_base)[i];
        bytes.push_back(byte);
        log.push_back(byte);
        ++done;
      }
    }
    return done;
  }
  size_t read(std::span<const iovec> window, size_t limit) {
    size_t done = 0;
    for (const iovec& piece : window) {
      for (size_t i = 0; i < piece.iov_len; ++i) {
        if (done == limit || bytes.empty()) return done;
        static_cast<std::byte*>(piece.iov_base)[i] = bytes.front();
        bytes.pop_front();
        ++done;
      }
    }
    return done;
  }
};

/// Memory between guard zones, registered or not.
class GuardedMemory {
 public:
  static constexpr size_t kGuard = 64;  // keeps the alignment of the allocation: 16
  explicit GuardedMemory(size_t size) : bytes_(size + 2 * kGuard, std::byte{0xA5}), size_(size) {
    std::memset(data(), 0, size);
  }
  std::byte* data() { return bytes_.data() + kGuard; }
  size_t size() const { return size_; }
  uint64_t address() { return reinterpret_cast<uint64_t>(data()); }
  bool intact() const {
    for (size_t i = 0; i < kGuard; ++i)
      if (bytes_[i] != std::byte{0xA5} || bytes_[kGuard + size_ + i] != std::byte{0xA5})
        return false;
    return true;
  }
  void fill(Random& random) {
    for (size_t i = 0; i < size_; ++i) data()[i] = static_cast<std::byte>(random());
  }

 private:
  std::vector<std::byte> bytes_;
  size_t size_;
};

/// One end: a queue pair, its completion queues, its domain and events.
struct End : QpEventListener, ReceiveWaiter {
  explicit End(RegionTable& regions, QpConfig shape = default_shape())
      : send_cq(shape.max_send_wr * 2, nullptr), recv_cq(shape.max_recv_wr * 2, nullptr) {
    shape.domain = shape.xrc != nullptr ? &shape.xrc->protection_domain() : &domain;
    shape.send_cq = shape.xrc != nullptr ? &shape.xrc->no_completions() : &send_cq;
    shape.recv_cq = shape.xrc != nullptr ? &shape.xrc->no_completions() : &recv_cq;
    shape.regions = &regions;
    shape.listener = this;
    shape.receive_waiter = this;
    qp = std::make_unique<QueuePair>(shape);
    qp->to_init();
  }
  static QpConfig default_shape() {
    QpConfig shape;
    shape.max_send_wr = 64;
    shape.max_recv_wr = 64;
    shape.max_send_sge = 4;
    shape.max_recv_sge = 4;
    shape.max_inline_bytes = 256;
    shape.signal_all = true;
    return shape;
  }
  void qp_event(QpEvent event) override { events.push_back(event); }
  void receive_posted() override { resume_due = true; }
  /// Resumes a held stream if it may go on. True if it did.
  bool resume() {
    const bool own = qp->receive_resumable();
    if (!own && !std::exchange(resume_due, false)) return false;
    const auto lock = qp->receive_side().lock_exclusive();
    outcome |= qp->receiver().resume(staging);
    if (!staging) staging = std::make_unique<StagingBuffer>();
    return true;
  }

  /// Called when the answers that were owed have been sent: kept completions may come now.
  void complete_deferred() {
    const auto lock = qp->receive_side().lock_exclusive();
    outcome |= qp->receiver().complete_deferred();
  }

  int post(SendOpcode opcode, uint64_t wr_id, std::span<const Sge> sges, uint64_t remote = 0,
           uint32_t rkey = 0, uint8_t flags = kSendSignaled, uint32_t receive_queue = 0) {
    SendRequest request;
    request.receive_queue = receive_queue;
    request.wr_id = wr_id;
    request.opcode = opcode;
    request.flags = flags;
    request.sges = sges;
    request.remote_address = remote;
    request.rkey = rkey;
    request.imm_or_invalidate = rkey;
    return qp->post_send(request);
  }
  int post_atomic(SendOpcode opcode, uint64_t wr_id, const Sge& result, uint64_t remote,
                  uint32_t rkey, uint64_t compare_add, uint64_t swap = 0, uint64_t compare_mask = 0,
                  uint64_t add_or_swap_mask = 0) {
    SendRequest request;
    request.wr_id = wr_id;
    request.opcode = opcode;
    request.flags = kSendSignaled;
    request.sges = {&result, 1};
    request.remote_address = remote;
    request.rkey = rkey;
    request.compare_add = compare_add;
    request.swap = swap;
    request.compare_mask = compare_mask;
    request.add_or_swap_mask = add_or_swap_mask;
    return qp->post_send(request);
  }
  std::vector<WorkCompletion> sends() { return drain(send_cq); }
  std::vector<WorkCompletion> receives() { return drain(recv_cq); }
  static std::vector<WorkCompletion> drain(CompletionQueue& cq) {
    std::vector<WorkCompletion> all;
    WorkCompletion one;
    while (cq.poll(&one, 1) == 1) all.push_back(one);
    return all;
  }

  ProtectionDomain domain;
  CompletionQueue send_cq;
  CompletionQueue recv_cq;
  std::unique_ptr<QueuePair> qp;
  std::vector<QpEvent> events;
  StagingPointer staging = std::make_unique<StagingBuffer>();
  bool resume_due = false;
  uint32_t outcome = 0;  // all bits that receive calls returned
};

/// Two ends and the pipes between them.
class Pair {
 public:
  explicit Pair(uint64_t seed, QpConfig shape = End::default_shape()) : Pair(seed, shape, shape) {}
  Pair(uint64_t seed, const QpConfig& of_a, const QpConfig& of_b)
      : random(seed), a(regions, of_a), b(regions, of_b) {}
  /// In every test the FPDUs of both ends must be well formed.
  ~Pair() {
    for (const Pipe* pipe : {&a_to_b, &b_to_a}) {
      FpduScan scan(crc, mulpdu, first_msn, uwarps && !crc);
      if (is_xrc(a.qp->config().transport)) scan.expect_shared_queues();
      scan.feed(pipe->log);
      for (const std::string& finding : scan.findings()) ADD_FAILURE() << finding;
    }
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  /// Peer-to-peer start, as after an MPA exchange; `a` initiates.
  void connect(StreamConfig config = {}) {
    if (config.ord == 0) config.ord = 16;
    if (config.ird == 0) config.ird = 16;
    StreamConfig initiator = config, responder = config;
    initiator.rtr = StreamConfig::Rtr::kWrite;
    responder.wait_for_first_fpdu = true;
    crc = config.crc;
    mulpdu = config.mulpdu;
    first_msn = config.first_msn.value;
    uwarps = config.peer_is_uwarp || config.magic_stag.value != 0;
    ASSERT_TRUE(a.qp->start_stream(initiator));
    ASSERT_TRUE(b.qp->start_stream(responder));
  }

  /// One turn of an end: it may write and it may read, each cut anywhere.
  bool step(End& end, Pipe& out, Pipe& in) {
    bool moved = false;
    if (auto turn = end.qp->transmit_side().begin()) {
      auto window = end.qp->transmitter().next_iovecs();
      if (!window.empty()) {
        const size_t done = out.write(window, limit());
        if (!end.qp->transmitter().sent(done)) {
          EXPECT_TRUE(end.qp->transmitter().next_iovecs().empty()) << "sent() promised it";
        }
        moved |= done > 0;
      }
      (void)turn.end();
    }
    end.complete_deferred();
    moved |= end.resume();
    const bool reads = !end.qp->receiver().rnr_blocked() || end.qp->receiver().reads_ahead();
    if (reads && !in.bytes.empty()) {
      const auto lock = end.qp->receive_side().lock_exclusive();
      auto window = end.qp->receiver().next_iovecs(end.staging);
      const size_t done = in.read(window, limit());
      end.outcome |= end.qp->receiver().received(end.staging, done);
      if (!end.staging) end.staging = std::make_unique<StagingBuffer>();
      moved |= done > 0;
    }
    if (end.qp->flush_due()) {
      end.qp->flush();
      moved = true;
    }
    return moved;
  }
  /// Runs until no end makes progress.
  void run() {
    for (int quiet = 0; quiet < 4;) {
      bool moved = false;
      if (pick(random, 0, 1) == 0) {
        moved |= step(a, a_to_b, b_to_a);
        moved |= step(b, b_to_a, a_to_b);
      } else {
        moved |= step(b, b_to_a, a_to_b);
        moved |= step(a, a_to_b, b_to_a);
      }
      quiet = moved ? 0 : quiet + 1;
    }
  }
  size_t limit() { return chunk_max == 0 ? ~size_t{0} : pick(random, 1, chunk_max); }

  MemoryRegion* reg(End& end, GuardedMemory& memory, uint32_t access) {
    auto region = regions.add(end.domain, memory.data(), memory.size(), memory.address(), access);
    EXPECT_TRUE(region.ok());
    return *region;
  }
  static Sge sge(GuardedMemory& memory, MemoryRegion* region, size_t offset, size_t length) {
    return {memory.address() + offset, static_cast<uint32_t>(length), region->key.load()};
  }

  Random random;
  size_t chunk_max = 0;  // 0: no limit
  bool crc = false;
  size_t mulpdu = 65535;
  uint32_t first_msn = 1;
  bool uwarps = false;  // each end knows that the other is uwarp
  RegionTable regions;
  End a, b;
  Pipe a_to_b, b_to_a;
};

inline constexpr uint32_t kAllAccess =
    kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic;

}  // namespace uwarp::sim
