// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "page_reader.h"

#include <arpa/inet.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

namespace stat_view {

using uwarp::PageHeader;
using uwarp::PageTable;
using uwarp::SlotAddress;
using uwarp::TableEntry;

const std::array<const char*, uwarp::kMessageKinds> kMessageNames = {
    "send",           "write",           "read_request", "read_response",
    "atomic_request", "atomic_response", "immediate",    "terminate"};

uint64_t Direction::all_messages() const {
  uint64_t sum = 0;
  for (const uint64_t count : messages) sum += count;
  return sum;
}

namespace {

void add(const Direction& from, Direction& to) {
  to.bytes += from.bytes;
  to.fpdus += from.fpdus;
  for (size_t i = 0; i < to.messages.size(); ++i) to.messages[i] += from.messages[i];
}

}  // namespace

void Traffic::add(const Traffic& other) {
  stat_view::add(other.sent, sent);
  stat_view::add(other.received, received);
  waits += other.waits;
  direct += other.direct;
  direct_unreachable += other.direct_unreachable;
  direct_refused += other.direct_refused;
  flushed_sends += other.flushed_sends;
  held += other.held;
  rnr_timeouts += other.rnr_timeouts;
  dropped += other.dropped;
  lost_sends += other.lost_sends;
  refused += other.refused;
  crc_errors += other.crc_errors;
  flushed_receives += other.flushed_receives;
  stream.connections += other.stream.connections;
  stream.fins += other.stream.fins;
  stream.resets += other.stream.resets;
  stream.timeouts += other.stream.timeouts;
  stream.failures += other.stream.failures;
}

namespace {

/// How often a slot is read again because it has changed meanwhile. There is a limit because a
/// process that ends or is stopped while it writes a slot leaves it in that state.
constexpr int kTries = 100;
/// How often all queue pairs are read again because some of them were destroyed meanwhile, and the
/// pause before that: the process may have lost its core in between.
constexpr int kLooks = 20;
constexpr std::chrono::milliseconds kBetweenLooks(1);

/// A copy of something in the page, read word by word so that no counter is torn. Each word is
/// read with acquire, so what is read after the copy is newer than the copy. (One fence would do
/// the same, but ThreadSanitizer does not understand fences.)
template <typename T>
class Copy {
 public:
  static_assert(sizeof(T) % 8 == 0);
  explicit Copy(const std::byte* from) {
    for (size_t i = 0; i < sizeof(T) / 8; ++i) {
      const uint64_t word =
          __atomic_load_n(reinterpret_cast<const uint64_t*>(from) + i, __ATOMIC_ACQUIRE);
      std::memcpy(bytes_ + 8 * i, &word, 8);
    }
  }
  const T* operator->() const { return reinterpret_cast<const T*>(bytes_); }
  const T& operator*() const { return *operator->(); }

 private:
  alignas(T) std::byte bytes_[sizeof(T)];
};

uint32_t sequence_at(const std::byte* slot) {
  return __atomic_load_n(reinterpret_cast<const uint32_t*>(slot), __ATOMIC_ACQUIRE);
}

/// Null when the slot changes all the time.
template <typename Slot>
std::optional<Copy<Slot>> settled_copy(const std::byte* at) {
  for (int i = 0; i < kTries; ++i) {
    const uint32_t before = sequence_at(at);
    if (before % 2 != 0) continue;
    const Copy<Slot> copy(at);
    if (sequence_at(at) == before) return copy;
  }
  return std::nullopt;
}

struct MappedTable {
  const std::byte* first = nullptr;
  size_t step = 0;
  size_t used = 0;
};

/// Where the tables lie, taken from the header once and checked.
using Tables = std::array<MappedTable, uwarp::kPageTables>;

class PageReader {
 public:
  PageReader(std::span<const std::byte> page, Process& process) : page_(page), process_(process) {}

  std::string read(size_t& slots_left) {
    if (page_.size() < PageHeader::kBytes) return "too small";
    const Copy<PageHeader> header(page_.data());
    if (header->magic.load() != PageHeader::kMagic) return "not a page of counters";
    if (header->version != PageHeader::kVersion)
      return "layout " + std::to_string(header->version) + ", which this uwarp-stat does not know";
    process_.own_pid = header->pid;
    process_.instance = header->instance;
    process_.started_ns = header->started_ns;
    process_.roce = header->roce != 0;
    process_.release = text(header->release, sizeof header->release);
    process_.program = text(header->program, sizeof header->program);
    for (const TableEntry& place : header->tables) process_.homeless += place.homeless.load();
    Tables tables;
    if (std::string why = find_tables(*header, tables); !why.empty()) return why;
    size_t used = 0;
    for (const MappedTable& table : tables) used += table.used;
    if (used > slots_left) return "the processes of its user have too many objects";
    slots_left -= used;
    read_tables(tables);
    return {};
  }

 private:
  void read_tables(const Tables& tables) {
    read_traffic(tables);
    read_table<uwarp::CompletionSlot>(tables, PageTable::kCompletionQueues);
    read_table<uwarp::RegionSlot>(tables, PageTable::kRegions);
  }

  /// Reads devices and queue pairs. A queue pair that is destroyed adds its counts to its device,
  /// whose description changes meanwhile. If the device was read before, or cannot be read, these
  /// counts may be missing or there twice: then all are read again.
  void read_traffic(const Tables& tables) {
    const uint64_t unsettled = process_.unsettled;
    for (int i = 0; i < kLooks; ++i) {
      process_.devices.clear();
      process_.queue_pairs.clear();
      process_.unsettled = unsettled;
      read_table<uwarp::DeviceSlot>(tables, PageTable::kDevices);
      const std::vector<Traffic> gone = traffic_of_devices(process_);
      read_table<uwarp::QueuePairSlot>(tables, PageTable::kQueuePairs);
      Process now;
      PageReader(page_, now).read_table<uwarp::DeviceSlot>(tables, PageTable::kDevices);
      const bool settled = process_.unsettled == unsettled && now.unsettled == 0;
      if (settled && traffic_of_devices(now) == gone) break;
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }

  static std::vector<Traffic> traffic_of_devices(const Process& process) {
    std::vector<Traffic> each;
    for (const Device& device : process.devices) each.push_back(device.traffic);
    return each;
  }

  /// Empty, or what is wrong with the tables. Whatever the page says: no table has more slots than
  /// uwarp makes, and no byte of the page is read as part of two.
  std::string find_tables(const PageHeader& header, Tables& tables) const {
    for (size_t i = 0; i < tables.size(); ++i) {
      const TableEntry& place = header.tables[i];
      const uint64_t step = place.slot_bytes;
      if (place.slots > uwarp::kPageSlots[i])
        return "damaged: a table has more slots than uwarp makes";
      if (step < uwarp::kPageSlotBytes[i] || step > page_.size() || step % 8 != 0 ||
          place.offset < PageHeader::kBytes || place.offset % 8 != 0 ||
          place.offset > page_.size() || place.slots * step > page_.size() - place.offset)
        return "damaged: a table lies outside";
      tables[i] = {page_.data() + place.offset, step,
                   std::min<size_t>(place.used.load(), place.slots)};
    }
    return overlap(tables) ? "damaged: two tables overlap" : "";
  }

  static bool overlap(Tables tables) {
    std::sort(tables.begin(), tables.end(),
              [](const MappedTable& a, const MappedTable& b) { return a.first < b.first; });
    for (size_t i = 1; i < tables.size(); ++i)
      if (tables[i].first < tables[i - 1].first + tables[i - 1].used * tables[i - 1].step)
        return true;
    return false;
  }

  template <typename Slot>
  void read_table(const Tables& tables, PageTable which) {
    const MappedTable& table = tables[static_cast<size_t>(which)];
    for (size_t i = 0; i < table.used; ++i) {
      const auto slot = settled_copy<Slot>(table.first + i * table.step);
      if (!slot) {
        ++process_.unsettled;
      } else if ((*slot)->head.live.load() != 0) {
        take(**slot, static_cast<uint32_t>(i));
      }
    }
  }

  static std::string text(const char* from, size_t size) {
    return std::string(from, strnlen(from, size));
  }

  std::string device_name(uint32_t index) const {
    return index < process_.devices.size() ? process_.devices[index].name : "?";
  }

  static std::string address_text(const SlotAddress& address) {
    static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    const bool v4 = std::memcmp(address.bytes, kMapped, sizeof kMapped) == 0;
    char out[INET6_ADDRSTRLEN] = "";
    inet_ntop(v4 ? AF_INET : AF_INET6, address.bytes + (v4 ? sizeof kMapped : 0), out, sizeof out);
    return out;
  }
  static std::string socket_text(const SlotAddress& address) {
    if (address.port == 0) return {};
    const std::string host = address_text(address);
    const bool v6 = host.find(':') != std::string::npos;
    return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(address.port & 0xffff);
  }

  template <typename Slot>
  static Traffic traffic_of(const Slot& slot) {
    Traffic traffic;
    traffic.sent.bytes = slot.transmit.bytes.get();
    traffic.sent.fpdus = slot.transmit.fpdus.get();
    traffic.received.bytes = slot.receive.bytes.get();
    traffic.received.fpdus = slot.receive.fpdus.get();
    for (size_t i = 0; i < uwarp::kMessageKinds; ++i) {
      traffic.sent.messages[i] = slot.transmit.messages[i].get();
      traffic.received.messages[i] = slot.receive.messages[i].get();
    }
    traffic.waits = slot.transmit.waits.get();
    traffic.direct = slot.transmit.direct.get();
    traffic.direct_unreachable = slot.stream.direct_unreachable.get();
    traffic.direct_refused = slot.stream.direct_refused.get();
    traffic.flushed_sends = slot.transmit.flushed.get();
    traffic.held = slot.receive.held.get();
    traffic.rnr_timeouts = slot.receive.rnr_timeouts.get();
    traffic.dropped = slot.receive.dropped.get();
    traffic.lost_sends = slot.transmit.dropped.get();
    traffic.refused = slot.receive.refused.get();
    traffic.crc_errors = slot.receive.crc_errors.get();
    traffic.flushed_receives = slot.receive.flushed.get();
    traffic.stream = {slot.stream.connections.get(), slot.stream.fins.get(),
                      slot.stream.resets.get(), slot.stream.timeouts.get(),
                      slot.stream.failures.get()};
    return traffic;
  }

  void take(const uwarp::DeviceSlot& slot, uint32_t index) {
    if (process_.devices.size() <= index) process_.devices.resize(index + 1);
    Device& device = process_.devices[index];
    device.name = text(slot.name, sizeof slot.name);
    const uint32_t link = slot.link.load();
    device.link = link == 1 ? "up" : link == 2 ? "down" : "";
    device.link_downs = slot.link_downs.get();
    device.traffic = traffic_of(slot);
  }

  void take(const uwarp::CompletionSlot& slot, uint32_t index) {
    CompletionQueue queue;
    queue.index = index;
    queue.device = device_name(slot.device);
    queue.capacity = slot.capacity.load();
    queue.created_ns = slot.created_ns;
    queue.pushed = slot.pushed.get();
    queue.polled = slot.polled.get();
    queue.failed = slot.failed.get();
    queue.events = slot.events.get();
    queue.overruns = slot.overruns.get();
    process_.completion_queues.push_back(std::move(queue));
  }

  void take(const uwarp::RegionSlot& slot, uint32_t) {
    process_.regions.push_back(
        {device_name(slot.device), slot.address, slot.bytes, slot.access, slot.created_ns});
  }

  void take(const uwarp::QueuePairSlot& slot, uint32_t) {
    static constexpr const char* kStates[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    QueuePair qp;
    qp.number = slot.number;
    qp.device = device_name(slot.device);
    const uint32_t state = slot.state.load();
    qp.state = state < std::size(kStates) ? kStates[state] : "?";
    qp.created_ns = slot.created_ns;
    qp.connected_ns = slot.connected_ns;
    qp.send_depth = slot.send_depth;
    qp.receive_depth = slot.receive_depth;
    qp.send_queue = slot.send_queue;
    qp.receive_queue = slot.receive_queue;
    qp.rdma_cm = (slot.flags & uwarp::QueuePairSlot::kRdmaCm) != 0;
    qp.crc = (slot.flags & uwarp::QueuePairSlot::kCrc) != 0;
    qp.shared_memory = (slot.flags & uwarp::QueuePairSlot::kSharedMemory) != 0;
    qp.shared_receive = (slot.flags & uwarp::QueuePairSlot::kSharedReceive) != 0;
    qp.mulpdu = slot.mulpdu;
    qp.ord = slot.ord;
    qp.ird = slot.ird;
    qp.local = socket_text(slot.local);
    qp.peer = socket_text(slot.peer);
    if (slot.peer.port != 0) qp.peer_host = address_text(slot.peer);
    if ((slot.flags & uwarp::QueuePairSlot::kTls) != 0)
      qp.identity = text(slot.identity, sizeof slot.identity);
    const uint64_t posted = slot.transmit.posted.get();
    const uint64_t retired = slot.transmit.retired.get();
    qp.outstanding = posted > retired ? posted - retired : 0;
    qp.traffic = traffic_of(slot);
    if (slot.device < process_.devices.size())
      process_.devices[slot.device].traffic.add(qp.traffic);
    process_.queue_pairs.push_back(std::move(qp));
  }

  const std::span<const std::byte> page_;
  Process& process_;
};

}  // namespace

std::string read_page(std::span<const std::byte> page, Process& process, size_t& slots_left) {
  return PageReader(page, process).read(slots_left);
}

}  // namespace stat_view
