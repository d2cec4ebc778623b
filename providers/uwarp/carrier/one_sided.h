// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Revocation of memory that a peer on this host reads and writes by itself. The peer says what it
// is about to use before it looks whether it may; the owner says that it may not before it looks
// what is used. So one of the two sees the other, and memory is let go of only once no copy is
// under way.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/atomics.h"
#include "memory/region_directory.h"

namespace uwarp {

/// In memory that both processes share, one for each direction. Zero at first.
struct OneSidedControl {
  // By the target. The domain whose regions may be used, an address, with the two rights in its
  // lowest bits; 0: shut.
  alignas(64) Atomic<uint64_t> gate{0};
  // By the requester: the entry of the target's directory that it uses, and one more, below a count
  // of uses; 0: none.
  alignas(64) Atomic<uint64_t> in_use{0};
};

/// The requester's half. One thread at a time.
class RemoteUse {
 public:
  explicit RemoteUse(OneSidedControl& control) : control_(control) {}

  /// Until end() the target keeps what the entry leads to, if it stands there after this. What
  /// admits() and PeerRegions::read() say after this holds until end().
  void begin(uint32_t entry) {
    control_.in_use.store(uint64_t{++uses_} << 32 | (uint64_t{entry} + 1));
  }
  void end() { control_.in_use.store(0, std::memory_order_release); }

  bool is_open() const { return control_.gate.load(std::memory_order_relaxed) != 0; }
  /// The target lets us use regions of the domain that `domain` names, with the right `access`.
  bool admits(uint64_t domain, uint32_t access) const;

 private:
  OneSidedControl& control_;
  uint32_t uses_ = 0;
};

/// The target's half.
class TargetGate {
 public:
  static constexpr uint32_t kAnything = ~uint32_t{0};

  explicit TargetGate(OneSidedControl& control) : control_(control) {}

  void open(const void* domain, uint32_t access);
  void shut() { control_.gate.store(0); }
  /// What the peer is doing, if it uses `entry`, or if that is kAnything any entry; else 0. After
  /// the entry was taken out of the directory, or shut().
  uint64_t use_of(uint32_t entry) const {
    const uint64_t use = control_.in_use.load();
    const auto named = static_cast<uint32_t>(use);
    return named != 0 && (entry == kAnything || named == entry + 1) ? use : 0;
  }
  /// It still does that. What it does next it has looked at since.
  bool goes_on(uint64_t use) const { return use != 0 && control_.in_use.load() == use; }

 private:
  OneSidedControl& control_;
};

namespace one_sided_detail {
constexpr uint64_t kWriteBit = 1, kReadBit = 2;
constexpr uint64_t rights_of(uint32_t access) {
  return ((access & kAccessRemoteWrite) != 0 ? kWriteBit : 0) |
         ((access & kAccessRemoteRead) != 0 ? kReadBit : 0);
}
}  // namespace one_sided_detail

inline bool RemoteUse::admits(uint64_t domain, uint32_t access) const {
  const uint64_t rights = one_sided_detail::rights_of(access);
  const uint64_t gate = control_.gate.load();
  return (gate & ~uint64_t{7}) == domain && domain != 0 && (gate & rights) == rights;
}

inline void TargetGate::open(const void* domain, uint32_t access) {
  control_.gate.store(reinterpret_cast<uintptr_t>(domain) | one_sided_detail::rights_of(access));
}

}  // namespace uwarp
