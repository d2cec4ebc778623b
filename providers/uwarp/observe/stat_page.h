// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The process's page of counters (counters/page_layout.h): memory without a name in any file
// system, found by uwarp-stat among the open files of its process, sealed so that no process can
// shorten it. Other processes of the user can write to it: so nothing that leads to memory is read
// from it, and places and numbers of slots are constants or kept here. Hands out slots. Where it
// cannot or shall not be shown (UWARP_STAT=0) it is plain memory, and the counting goes on for the
// files in sysfs.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "counters/page_layout.h"
#include "os/engine_fds.h"

namespace uwarp {

/// Sums over all queue pairs that a device has or had.
struct DeviceTotals {
  TransmitCounters transmit;
  ReceiveCounters receive;
  StreamCounters stream;
  uint64_t link_downs = 0;
};

class StatPage {
 public:
  /// `shown`: to uwarp-stat. Throws std::bad_alloc.
  explicit StatPage(bool shown);
  ~StatPage();
  /// In a forked child: what is stored from now on stays in the child. No locks, no memory.
  void leave_to_parent();

  /// Index of the device's slot, made at first use; the last slot is shared by those beyond.
  uint32_t device(std::string_view verbs_name);
  DeviceTotals totals(std::string_view verbs_name);
  /// The totals of each device as a line for people. None if another thread holds the lock: exit()
  /// may have interrupted it, or this one.
  std::vector<std::string> totals_at_exit();
  /// The device's port is up or down. May be repeated: only a change from up to down is counted.
  void note_link(std::string_view verbs_name, bool up);

  /// A free slot, its counters 0; one in memory of its own when there is no more. Throws
  /// std::bad_alloc. Give it back.
  template <typename Slot>
  Slot& take();
  template <typename Slot>
  void give_back(Slot& slot);

  /// Index in its table; kNoSlot for one that cannot be seen.
  template <typename Slot>
  uint32_t index_of(const Slot& slot) const {
    constexpr auto kTable = static_cast<size_t>(table_of<Slot>());
    const auto at = reinterpret_cast<uintptr_t>(&slot) - reinterpret_cast<uintptr_t>(memory_) -
                    table_offset(kTable);
    if (at >= kPageSlots[kTable] * sizeof(Slot)) return kNoSlot;
    return static_cast<uint32_t>(at / sizeof(Slot));
  }

  const PageHeader& header() const { return *header_; }
  /// Where uwarp-stat finds it; -1: nowhere.
  int fd() const { return fd_.get(); }

 private:
  template <typename Slot>
  static constexpr PageTable table_of() {
    if constexpr (std::is_same_v<Slot, DeviceSlot>) return PageTable::kDevices;
    if constexpr (std::is_same_v<Slot, QueuePairSlot>) return PageTable::kQueuePairs;
    if constexpr (std::is_same_v<Slot, CompletionSlot>) return PageTable::kCompletionQueues;
    return PageTable::kRegions;
  }
  TableEntry& table(PageTable which) const { return header_->tables[static_cast<size_t>(which)]; }
  template <typename Slot>
  Slot& slot(uint32_t index) const {
    constexpr auto kTable = static_cast<size_t>(table_of<Slot>());
    return reinterpret_cast<Slot*>(memory_ + table_offset(kTable))[index];
  }
  uint32_t device_locked(std::string_view verbs_name) REQUIRES(mutex_);
  DeviceTotals totals_locked(uint32_t device) REQUIRES(mutex_);
  void note_used_locked(PageTable which, uint32_t used) REQUIRES(mutex_);
  uint32_t take_index_locked(PageTable which) REQUIRES(mutex_);

  std::byte* memory_ = nullptr;
  EngineFd fd_;
  PageHeader* header_ = nullptr;

  Mutex mutex_;
  // No slot from here on was ever taken.
  std::array<uint32_t, kPageTables> used_ GUARDED_BY(mutex_){};
  std::array<std::vector<uint32_t>, kPageTables> free_ GUARDED_BY(mutex_);
  std::unordered_set<QueuePairSlot*> homeless_ GUARDED_BY(mutex_);  // beyond the table
};

/// A slot for as long as it lives. Move-only; empty by default.
template <typename Slot>
class SlotLease {
 public:
  SlotLease() = default;
  explicit SlotLease(StatPage& page) : page_(&page), slot_(&page.take<Slot>()) {}
  SlotLease(SlotLease&& other) noexcept
      : page_(other.page_), slot_(std::exchange(other.slot_, nullptr)) {}
  SlotLease& operator=(SlotLease&& other) noexcept {
    std::swap(page_, other.page_);
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~SlotLease() {
    if (slot_ != nullptr) page_->give_back(*slot_);
  }
  Slot* get() const { return slot_; }
  Slot* operator->() const { return slot_; }
  Slot& operator*() const { return *slot_; }
  /// Leaves the slot behind: in a forked child it is the parent's.
  void abandon() { slot_ = nullptr; }

 private:
  StatPage* page_ = nullptr;
  Slot* slot_ = nullptr;
};

}  // namespace uwarp
