// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The memory of the process at the other end of a ring, which may be used only if rights are
// mutual: the kernel lets us read it, and lets the peer read ours. A peer without rights over this
// process could otherwise make one of its threads wait, with a place in memory that the peer serves
// itself (userfaultfd, files of FUSE), or have memory of third processes read by it.
//
// Each side proves its right by an answer: a random number that it has found in the other's memory.
// It lies behind another one, the label, which the peer is told: a process that has none there is
// not the peer, and its bytes go nowhere. Both lie alone at a random address, which says nothing of
// what else the process has.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "carrier/access_gate.h"
#include "carrier/shared_memory.h"
#include "memory/region_directory.h"
#include "os/errands.h"

namespace uwarp {

class PeerMemory final : public Errand {
 public:
  /// Random; good for one peer.
  struct Secret {
    uint64_t label = 0;
    uint64_t number = 0;
    /// Where the process has the directory of its regions (RegionDirectory): a descriptor, and one
    /// more; 0: nowhere.
    uint64_t directory = 0;
    bool operator==(const Secret&) const = default;
  };
  /// Where one lies, as the peer is told.
  struct Place {
    uint64_t at = 0;  // 0: nowhere
    uint64_t label = 0;
  };

  /// `shows_secret`: the peer may find ours, so that large payloads are copied once. Throws
  /// std::bad_alloc.
  explicit PeerMemory(bool shows_secret = true, int directory_fd = -1);
  ~PeerMemory() override;

  Place place() const;
  bool is_secret(uint64_t answer) const { return secret_ != nullptr && answer == secret_->number; }

  /// Looks for the peer's secret. False: the kernel does not permit it, there is no such process in
  /// our pid namespace, or it has another label there. May wait for the peer as long as that likes:
  /// to be called by an Errand, once.
  bool ask(pid_t pid, const Place& place);
  uint64_t answer() const { return theirs_.number; }
  /// Errand, once readable(): finds the directory of the peer's regions.
  void run() noexcept override;
  /// That; null while it has not been found, or where the peer shows none or the kernel cannot say
  /// whether the process lives.
  const PeerRegions* regions() const {
    return has_regions_.load(std::memory_order_acquire) ? &*regions_ : nullptr;
  }
  const std::shared_ptr<PeerProcess>& process() const { return process_; }

  /// The peer has shown that it may read ours: readable() from now on, if ask() was true.
  void peer_has_shown() { readable_.store(asked_, std::memory_order_release); }
  bool readable() const { return readable_.load(std::memory_order_acquire); }

  /// Copies between our memory and the peer's, both given in pieces; how many bytes, or a negative
  /// errno. The caller has seen that the process is still that one, and readable(); but for ask().
  ssize_t copy(bool read, std::span<const iovec> ours, std::span<const iovec> theirs) const;

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
  Secret* secret_ = nullptr;  // a page of its own; null: not shown
  // Of the peer.
  pid_t pid_ = 0;
  uint64_t at_ = 0;
  Secret theirs_;
  bool asked_ = false;
  const std::shared_ptr<PeerProcess> process_ = std::make_shared<PeerProcess>();
  SharedMemory directory_;  // of the peer
  std::optional<PeerRegions> regions_;
  std::atomic<bool> has_regions_{false};
  std::atomic<bool> readable_{false};
};

}  // namespace uwarp
