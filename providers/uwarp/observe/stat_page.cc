// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "observe/stat_page.h"

#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <optional>

#include "base/log.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/settings.h"
#include "os/clock.h"
#include "os/sealed_memory.h"

namespace uwarp {
namespace {

constexpr uint32_t kLinkUp = 1, kLinkDown = 2;  // DeviceSlot::link

void copy_text(std::string_view text, char* out, size_t size) {
  const size_t length = std::min(text.size(), size - 1);
  std::memcpy(out, text.data(), length);
  std::memset(out + length, 0, size - length);
}

template <typename Counters>
void add_up(const Counters& from, Counters& to) {
  constexpr size_t kCount = sizeof(Counters) / sizeof(Counter);
  const auto* source = reinterpret_cast<const Counter*>(&from);
  auto* target = reinterpret_cast<Counter*>(&to);
  for (size_t i = 0; i < kCount; ++i) target[i].add(source[i].get());
}

/// The device is told before the slot is live.
bool belongs_to(const QueuePairSlot& slot, uint32_t device) {
  return slot.head.live.load(std::memory_order_acquire) != 0 && slot.device == device;
}

std::string_view name_of(const DeviceSlot& slot) {
  return {slot.name, strnlen(slot.name, sizeof slot.name)};
}

uint64_t all_messages(const auto& direction) {
  uint64_t sum = 0;
  for (const Counter& kind : direction.messages) sum += kind.get();
  return sum;
}

std::string amount(uint64_t count, const char* one) {
  return std::to_string(count) + ' ' + one + (count == 1 ? "" : "s");
}

/// The words are those of uwarp-stat(1).
std::string line_of(std::string_view device, const DeviceTotals& t) {
  return "uwarp: " + std::string(program_invocation_short_name) + '[' +
         std::to_string(syscall(SYS_getpid)) + "] " + std::string(device) + ": sent " +
         amount(t.transmit.bytes.get(), "byte") + " in " +
         amount(all_messages(t.transmit), "message") + ", received " +
         amount(t.receive.bytes.get(), "byte") + " in " +
         amount(all_messages(t.receive), "message") + "; " +
         amount(t.stream.connections.get(), "connection") + ", " +
         amount(t.stream.failures.get(), "failure") + ", WAITS " +
         std::to_string(t.transmit.waits.get()) + ", HELD " + std::to_string(t.receive.held.get());
}

template <typename Source, typename Target>
void add_all(const Source& from, Target& to) {
  add_up(from.transmit, to.transmit);
  add_up(from.receive, to.receive);
  add_up(from.stream, to.stream);
}

}  // namespace

StatPage::StatPage(bool shown) {
  // A program with more rights than its user shows nothing.
  if (shown && getauxval(AT_SECURE) == 0) {
    fd_ = make_sealed_memory(kPageName, page_bytes());
    if (!fd_) log_event("uwarp-stat cannot show this process: no memfd: %s", std::strerror(errno));
  }
  const int flags = fd_ ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* mapped = mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, flags, fd_.get(), 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<std::byte*>(mapped);
  header_ = new (memory_) PageHeader;
  for (size_t i = 0; i < kPageTables; ++i) {
    TableEntry& place = header_->tables[i];
    place.offset = table_offset(i);
    place.slot_bytes = static_cast<uint32_t>(kPageSlotBytes[i]);
    place.slots = kPageSlots[i];
  }
  header_->page_bytes = page_bytes();
  header_->pid = static_cast<uint32_t>(syscall(SYS_getpid));
  header_->roce = settings().persona == Persona::kRoce ? 1 : 0;
  header_->started_ns = wall_clock_ns();
  header_->instance = random_word();
  copy_text(UWARP_VERSION, header_->release, sizeof header_->release);
  copy_text(program_invocation_short_name, header_->program, sizeof header_->program);
  header_->magic.store(PageHeader::kMagic, std::memory_order_release);
}

StatPage::~StatPage() { munmap(memory_, page_bytes()); }

void StatPage::leave_to_parent() {
  constexpr int kEmpty = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (fd_) (void)mmap(memory_, page_bytes(), PROT_READ | PROT_WRITE, kEmpty, -1, 0);
}

uint32_t StatPage::device(std::string_view verbs_name) {
  const Lock guard(mutex_);
  return device_locked(verbs_name);
}

uint32_t StatPage::device_locked(std::string_view verbs_name) {
  const uint32_t used = used_[static_cast<size_t>(PageTable::kDevices)];
  for (uint32_t i = 0; i < used; ++i)
    if (verbs_name == name_of(slot<DeviceSlot>(i))) return i;
  if (used == kPageSlots[static_cast<size_t>(PageTable::kDevices)]) return used - 1;
  auto* made = new (&slot<DeviceSlot>(used)) DeviceSlot;
  {
    const SlotChange change(made->head);
    copy_text(verbs_name, made->name, sizeof made->name);
    made->head.live.store(1, std::memory_order_relaxed);
  }
  note_used_locked(PageTable::kDevices, used + 1);
  return used;
}

// What is shown is published; what is counted with is used_, which no other process can change.
void StatPage::note_used_locked(PageTable which, uint32_t used) {
  used_[static_cast<size_t>(which)] = used;
  table(which).used.store(used, std::memory_order_release);
}

DeviceTotals StatPage::totals(std::string_view verbs_name) {
  const Lock guard(mutex_);
  return totals_locked(device_locked(verbs_name));
}

DeviceTotals StatPage::totals_locked(uint32_t index) {
  DeviceTotals sum;
  const auto& device = slot<DeviceSlot>(index);
  sum.link_downs = device.link_downs.get();
  add_all(device, sum);
  const uint32_t used = used_[static_cast<size_t>(PageTable::kQueuePairs)];
  for (uint32_t i = 0; i < used; ++i) {
    const auto& live = slot<QueuePairSlot>(i);
    if (belongs_to(live, index)) add_all(live, sum);
  }
  for (const QueuePairSlot* live : homeless_)
    if (belongs_to(*live, index)) add_all(*live, sum);
  return sum;
}

std::vector<std::string> StatPage::totals_at_exit() {
  std::vector<std::string> lines;
  if (!mutex_.try_lock()) return lines;
  const Lock guard(mutex_, std::adopt_lock);
  const uint32_t used = used_[static_cast<size_t>(PageTable::kDevices)];
  for (uint32_t i = 0; i < used; ++i)
    lines.push_back(line_of(name_of(slot<DeviceSlot>(i)), totals_locked(i)));
  return lines;
}

void StatPage::note_link(std::string_view verbs_name, bool up) {
  const Lock guard(mutex_);
  DeviceSlot& device = slot<DeviceSlot>(device_locked(verbs_name));
  const uint32_t before = device.link.load(std::memory_order_relaxed);
  if (before == kLinkUp && !up) device.link_downs.add(1);
  device.link.store(up ? kLinkUp : kLinkDown, std::memory_order_relaxed);
}

// kNoSlot when all are taken.
uint32_t StatPage::take_index_locked(PageTable which) {
  auto& free = free_[static_cast<size_t>(which)];
  if (!free.empty()) {
    const uint32_t index = free.back();
    free.pop_back();
    return index;
  }
  const uint32_t used = used_[static_cast<size_t>(which)];
  if (used == kPageSlots[static_cast<size_t>(which)]) return kNoSlot;
  // Giving back must not need memory.
  if (free.capacity() <= used) free.reserve(std::max<size_t>(64, 2 * free.capacity()));
  return used;
}

template <typename Slot>
Slot& StatPage::take() {
  const Lock guard(mutex_);
  const uint32_t index = take_index_locked(table_of<Slot>());
  if (index == kNoSlot) {
    TableEntry& place = table(table_of<Slot>());
    auto made = std::make_unique<Slot>();
    if constexpr (std::is_same_v<Slot, QueuePairSlot>) homeless_.insert(made.get());
    place.homeless.store(place.homeless.load(std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
    return *made.release();
  }
  if (index == used_[static_cast<size_t>(table_of<Slot>())]) {
    new (&slot<Slot>(index)) Slot;
    note_used_locked(table_of<Slot>(), index + 1);
  }
  return slot<Slot>(index);
}

template <typename Slot>
void StatPage::give_back(Slot& gone) {
  const Lock guard(mutex_);
  std::optional<SlotChange> moving;  // a reader would find the counts twice
  if constexpr (std::is_same_v<Slot, QueuePairSlot>) {
    // The index may have been overwritten by another process: never beyond the table.
    auto& device = slot<DeviceSlot>(gone.device % kPageSlots[0]);
    moving.emplace(device.head);
    add_all(gone, device);
    homeless_.erase(&gone);
  }
  // The counters have been read out. A reader finds no live slot meanwhile.
  const uint32_t index = index_of(gone);
  if (index == kNoSlot) {
    TableEntry& place = table(table_of<Slot>());
    place.homeless.store(place.homeless.load(std::memory_order_relaxed) - 1,
                         std::memory_order_relaxed);
    delete &gone;
    return;
  }
  {
    const SlotChange change(gone.head);
    gone.head.live.store(0, std::memory_order_relaxed);
    const uint32_t sequence = gone.head.sequence.load(std::memory_order_relaxed);
    Slot fresh;
    fresh.head.sequence.store(sequence, std::memory_order_relaxed);
    std::memcpy(static_cast<void*>(&gone), static_cast<const void*>(&fresh), sizeof gone);
  }
  free_[static_cast<size_t>(table_of<Slot>())].push_back(index);
}

template QueuePairSlot& StatPage::take<QueuePairSlot>();
template CompletionSlot& StatPage::take<CompletionSlot>();
template RegionSlot& StatPage::take<RegionSlot>();
template void StatPage::give_back(QueuePairSlot& gone);
template void StatPage::give_back(CompletionSlot& gone);
template void StatPage::give_back(RegionSlot& gone);

}  // namespace uwarp
