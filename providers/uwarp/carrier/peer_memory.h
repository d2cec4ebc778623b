// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The memory of the process at the other end of a ring, which may be read only if rights are
// mutual: the kernel lets us read it, and lets the peer read ours. A peer without rights over this
// process could otherwise make one of its threads wait, with a place in memory that the peer serves
// itself (userfaultfd, files of FUSE), or have memory of third processes read by it.
//
// Each side proves its right by an answer: random bytes that it has found in the other's memory.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace uwarp {

class PeerMemory {
 public:
  /// Never zeros.
  using Secret = std::array<uint64_t, 2>;

  PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// Where the peer finds our secret, which is good for one peer.
  uint64_t secret_at() const { return reinterpret_cast<uintptr_t>(secret_.data()); }
  bool is_secret(const Secret& answer) const { return answer == secret_; }

  /// Reads the peer's secret. False: the kernel does not permit it, or there is no such process in
  /// our pid namespace. May wait for the peer as long as that likes: to be called by an Errand,
  /// once.
  bool ask(pid_t pid, uint64_t at);
  const Secret& answer() const { return answer_; }

  /// The peer has shown that it may read ours: readable() from now on, if ask() was true.
  void peer_has_shown() { readable_.store(asked_, std::memory_order_release); }
  bool readable() const { return readable_.load(std::memory_order_acquire); }

  /// Pieces of the peer's memory and where they go: one system call for all. The peer's secret is
  /// read with them, which shows that the number of the process still means that process.
  class Copy {
   public:
    explicit Copy(const PeerMemory& peer) : peer_(peer) {}
    bool full() const { return local_count_ == kMostPieces || remote_count_ == kMostPieces; }
    bool empty() const { return bytes_ == 0; }
    void from(uint64_t address, size_t bytes) {
      remote_[remote_count_++] = {reinterpret_cast<void*>(address), bytes};
      bytes_ += bytes;
    }
    void to(void* at, size_t bytes) { local_[local_count_++] = {at, bytes}; }
    /// True if all has been copied. readable().
    bool run();

   private:
    static constexpr size_t kMostPieces = 64;
    const PeerMemory& peer_;
    iovec local_[kMostPieces];
    iovec remote_[kMostPieces];
    size_t local_count_ = 1;  // the first is the secret
    size_t remote_count_ = 1;
    size_t bytes_ = 0;
  };

 private:
  Secret secret_;
  // Of the peer.
  pid_t pid_ = 0;
  uint64_t at_ = 0;
  Secret answer_{};
  bool asked_ = false;
  std::atomic<bool> readable_{false};
};

}  // namespace uwarp
