// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Both directions of a stream between two processes of one kernel and user, through shared memory:
// what carries bytes instead of TCP once both have agreed. Small pieces are copied into the ring
// and out of it. Of large ones the ring has the address, and the reader copies them straight out of
// the writer's memory into their place (PeerMemory), where each side may read the other's.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/lent_memory.h"
#include "base/remote_memory.h"
#include "base/result.h"
#include "base/tuning.h"
#include "carrier/access_gate.h"
#include "carrier/byte_ring.h"
#include "carrier/peer_memory.h"
#include "carrier/shared_memory.h"
#include "carrier/tcp_socket.h"
#include "carrier/wakeup_socket.h"
#include "os/engine_fds.h"
#include "os/errands.h"

namespace uwarp {

class RingCarrier final : public LentMemory, public RemoteMemory {
 public:
  /// Of each direction.
  static constexpr uint32_t kRingBytes = 1 << 20;
  /// Of the memory that both share.
  static constexpr size_t kSharedBytes = 4096 + 2 * size_t{kRingBytes};

  /// `creator`: of the memory, which is the first to write into the first ring. `wakeup`: our end.
  /// `errands` outlive it.
  RingCarrier(SharedMemory memory, bool creator, WakeupSocket wakeup,
              std::shared_ptr<PeerMemory> peer, Errands& errands);
  ~RingCarrier() override;

  /// To be watched for WakeupSocket::kEdges, which come when there is something to receive, or room
  /// to send, that was waited for, and now and then for nothing.
  int wakeup_fd() const { return parts_->wakeup.fd(); }
  int memory_fd() const { return parts_->memory.fd(); }
  /// The other process has it: it is not needed any more.
  void close_memory_fd() { parts_->memory.close_fd(); }

  // ---- Rights over the peer's memory. One thread at a time.
  /// Looks for our peer's secret in process `pid`, and lays it where the peer finds it. May
  /// wait for the peer: an Errand does this.
  void ask_peer(pid_t pid, const PeerMemory::Place& place);
  /// The peer's answer is right. Once both have answered, large pieces are copied once if it
  /// `pays`.
  bool take_answer(bool pays = true);

  // ---- Reads and Writes without a thread of the other side (RemoteMemory).
  /// Once: what the peer still uses when the connection ends is kept in `gates`.
  void join(AccessGates& gates);
  /// The TCP socket beside the ring, whose end says that the peer's process may be another one; -1:
  /// none any more. Both sides of the queue pair held.
  void set_socket(int socket);
  /// Ours, which is not to be opened before may_open_gate().
  const std::shared_ptr<AccessGate>& gate() const { return gate_; }
  /// The peer may read our memory anyway, and we the peer's.
  bool may_open_gate() const { return peer_->readable() && *peer_->process(); }
  bool reachable() const override { return peer_->regions() != nullptr && use_.is_open(); }
  bool settled() const override { return writer_.placed(); }
  bool await_settled() override;
  bool suits_bulk() const override { return pays_.load(std::memory_order_relaxed); }
  bool attended() const override { return out_.reader_sleeps.load(std::memory_order_relaxed) == 0; }
  size_t copy(const RemoteCopy& copy) override;

  // ---- Receive side. Counts as those of TcpSocket; no end of the stream is told here.
  /// -EAGAIN: nothing there, and the bell will ring unless quiet. -EPROTO: the peer has written
  /// something impossible. Never -EFAULT: memory of the peer that is not there is -ECONNRESET.
  ssize_t receive(std::span<const iovec> buffer);
  /// The same once epoll has said that `tcp` has ended or failed: its end, as it counts there,
  /// comes behind all that was written before.
  ssize_t receive_to_end(std::span<const iovec> buffer, TcpSocket& tcp);
  /// The processor on which the peer wrote last.
  int incoming_cpu() const {
    return static_cast<int>(in_.writer_cpu.load(std::memory_order_relaxed));
  }
  /// All that has been received is placed and completed.
  void note_placed();
  /// ... which has not been said yet.
  bool unplaced() const { return reader_.unplaced(); }
  /// So many bytes of what came by the ring are placed and completed. True: the peer wants to be
  /// told that, and is.
  bool tell_placed(uint64_t bytes);
  /// The peer wants to be told so.
  bool peer_wants_placed() const { return in_.wants_placed.load(std::memory_order_relaxed) != 0; }
  /// From now on the peer tells how much it has placed, if it can.
  void want_placed() { out_.wants_placed.store(1, std::memory_order_relaxed); }
  /// It has placed more since the last call. Once receive() has found nothing it will ring.
  bool peer_placed() { return reader_.take_placed(); }
  /// It rings from now on, although what has come is not read.
  void await_peer_placed() {
    if (!quiet_.load(std::memory_order_relaxed)) (void)reader_.begin_sleep();
  }
  /// The peer has not read all that was sent.
  bool unread() const {
    return out_.head.load(std::memory_order_relaxed) != out_.tail.load(std::memory_order_relaxed);
  }
  /// Wakes a peer that does not read: its application polled until a moment ago, so that no bell
  /// was due, and its helper thread assumes that it still does.
  void nudge();
  /// True: a thread looks all the time, so the bell need not ring. False: it rings, also for what
  /// is there already.
  void set_muted(bool on);

  // ---- Transmit side.
  /// Bytes of the front of `bytes` that need not be kept any more; what is behind may have been
  /// written already, and must come again as it is. -EAGAIN: none at the moment. -EPROTO.
  ssize_t send(std::span<const iovec> bytes);
  /// What send() has written and not given back must not be read by the peer any more: the memory
  /// is about to become another's. If there is such, the stream cannot go on.
  void withdraw() override;
  /// Called now and then: once nothing has been sent since the last call, and all has been read,
  /// has memory of the ring given back to the system. False: not yet.
  bool trim();
  /// What send() would give back now if it wrote nothing. space_came() stays true.
  size_t give_back() override;
  /// A peer that writes into this ring itself may have any number named, and loses requests by it.
  uint64_t read_bytes() const override;
  /// A hostile one loses no more by it than by read_bytes().
  uint64_t placed_bytes() const override {
    return in_.other_placed.load(std::memory_order_acquire);
  }

  // ---- Any thread.
  /// send() found no room, and there may be some now; or what await_settled() waits for has come.
  bool space_came() const {
    return (waits_for_space_.load(std::memory_order_acquire) &&
            (read_on() || parts_->trimmed.load(std::memory_order_acquire))) ||
           (waits_for_place_.load(std::memory_order_acquire) &&
            out_.placed.load(std::memory_order_acquire) == settles_at_.load());
  }
  /// The peer has read on where we lend it memory: give_back() may find some.
  bool may_give_back() const { return lends_.load(std::memory_order_relaxed) && read_on(); }

 private:
  /// A piece of our memory that the peer has not read yet.
  struct Lent {
    uint64_t begin = 0;  // bytes of the stream before it
    RingPosition end;    // of its record
  };
  static constexpr size_t kMostLent = 64;
  /// Of the largest record. This much room becomes free at a time.
  static constexpr size_t kRecordBytes = 64 << 10;
  static constexpr uint32_t kShortEnd = 64;

  bool read_on() const {
    return out_.tail.load(std::memory_order_relaxed) != tail_seen_.load(std::memory_order_relaxed);
  }
  size_t copy_in_use(const RemoteCopy& copy, uint32_t entry);
  bool take_back();
  bool check_trimmed();
  ssize_t take(std::span<const iovec> buffer);
  bool poll_writer();
  ssize_t write(std::span<const iovec> bytes);
  /// Lets the reader see what has been written, and wakes it if it sleeps.
  void show();
  bool write_piece(const std::byte* at, size_t size, size_t& written);
  ssize_t given_back();

  /// What it shares with the thread that gives pages back to the system. That waits for as long as
  /// the peer likes, which may have the memory's file locked by a write() of its own.
  struct Parts final : Errand {
    Parts(SharedMemory memory, WakeupSocket wakeup)
        : memory(std::move(memory)), wakeup(std::move(wakeup)) {}
    void run() noexcept override;
    SharedMemory memory;
    const WakeupSocket wakeup;
    std::span<std::byte> pages;        // to give back
    std::atomic<bool> trimmed{false};  // they are back; the transmit side has not seen it yet
  };
  const std::shared_ptr<Parts> parts_;
  const std::shared_ptr<PeerMemory> peer_;
  Errands& errands_;
  RingControl& out_;
  RingControl& in_;
  std::atomic<bool> quiet_{false};

  alignas(64) RingReader reader_;
  alignas(64) RingWriter writer_;
  std::array<Lent, kMostLent> lent_;
  size_t first_lent_ = 0;
  size_t lent_count_ = 0;
  uint64_t idle_at_ = ~uint64_t{0};  // position at the last trim()
  std::atomic<bool> lends_{false};   // some are lent
  bool withdrawn_ = false;
  uint64_t written_ = 0;  // bytes of the stream
  uint64_t given_ = 0;    // ... that send() has given back
  uint64_t told_ = 0;     // tell_placed(); receive side
  std::atomic<bool> waits_for_space_{false};
  std::atomic<uint64_t> tail_seen_{0};
  RemoteUse use_;
  const std::shared_ptr<AccessGate> gate_;
  AccessGates* gates_ = nullptr;
  int socket_ = -1;                 // both sides held
  std::atomic<bool> shown_{false};  // rights are mutual
  std::atomic<bool> pays_{false};   // the kernel's copy does
  std::atomic<bool> waits_for_place_{false};
  std::atomic<bool> ended_{false};  // the peer sends no more
  std::atomic<uint64_t> settles_at_{0};
};

}  // namespace uwarp
