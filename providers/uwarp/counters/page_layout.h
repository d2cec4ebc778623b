// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The memory in which a process shows what it is doing: a header and tables of slots, laid out for
// readers of other versions (docs/observability.md has the bytes). Only this process should write
// it. It reads counts only, to go on counting, so a wrong value in it does no harm here.
//
// A counter has one writer at a time and is changed by a plain load and store. What describes a
// slot is guarded by a sequence number, odd while it changes.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace uwarp {

/// Counts without ever going back; one writer at a time, any number of readers.
class Counter {
 public:
  Counter() = default;
  Counter(const Counter& other) : value_(other.get()) {}
  void add(uint64_t count) { set(get() + count); }
  void set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};
static_assert(sizeof(Counter) == 8 && std::atomic<uint64_t>::is_always_lock_free);

/// Kinds of RDMAP messages that are counted apart.
enum class MessageKind : uint8_t {
  kSend,
  kWrite,
  kReadRequest,
  kReadResponse,
  kAtomicRequest,
  kAtomicResponse,
  kImmediate,
  kTerminate,
};
inline constexpr size_t kMessageKinds = 8;

/// Written by the thread that holds the transmit side of the queue pair.
struct alignas(128) TransmitCounters {
  Counter bytes;  // of FPDUs that are with the kernel, batch by batch, and of direct Writes
  Counter fpdus;
  Counter waits;    // times that the socket took no more
  Counter posted;   // requests posted, as of the last batch ...
  Counter retired;  // ... and finished
  Counter flushed;
  Counter dropped;                  // datagrams for which there was no way
  Counter direct;                   // Reads and Writes that needed no thread of the peer
  Counter messages[kMessageKinds];  // that were begun

  void count(MessageKind kind) { messages[static_cast<size_t>(kind)].add(1); }
};
static_assert(sizeof(TransmitCounters) == 128);

/// Written by the thread that holds the receive side.
struct alignas(128) ReceiveCounters {
  Counter bytes;
  Counter fpdus;         // whole ones
  Counter held;          // times that a message found no receive
  Counter rnr_timeouts;  // ... and none came in time
  Counter crc_errors;
  Counter flushed;
  Counter dropped;  // messages without acknowledgement that found no receive, or one too short
  Counter refused;  // datagrams with another Q_Key, or in no state for them
  Counter messages[kMessageKinds];  // that have come whole

  void count(MessageKind kind, uint64_t whole) { messages[static_cast<size_t>(kind)].add(whole); }
};
static_assert(sizeof(ReceiveCounters) == 128);

/// Written under both sides.
struct alignas(64) StreamCounters {
  Counter connections;  // streams begun
  Counter fins;         // ended by the peer's FIN
  Counter resets;       // ... by its RST
  Counter timeouts;     // ... by its silence
  Counter failures;     // queue pairs that went to ERR with a failure
  // By the thread that holds the transmit side: Reads and Writes by shared memory that needed a
  // thread of the peer because ...
  Counter direct_unreachable;  // ... its memory was out of reach
  Counter direct_refused;      // ... its key, or memory of either side, did not permit a copy
  Counter reserved;
};
static_assert(sizeof(StreamCounters) == 64);

/// Every slot begins with it.
struct SlotHead {
  std::atomic<uint32_t> sequence{0};  // odd: being described
  std::atomic<uint32_t> live{0};      // 0: free
};

/// 16 bytes of an IPv6 or IPv4-mapped address, and a port in host order.
struct SlotAddress {
  uint8_t bytes[16] = {};
  uint32_t port = 0;
  uint32_t reserved = 0;
};

struct alignas(128) DeviceSlot {
  SlotHead head;
  char name[64] = {};  // of the verbs device, ends with a zero
  Counter link_downs;
  std::atomic<uint32_t> link{0};  // 0: not known yet, 1: up, 2: down
  // Of queue pairs that are gone.
  TransmitCounters transmit;
  ReceiveCounters receive;
  StreamCounters stream;
};

struct alignas(128) QueuePairSlot {
  SlotHead head;
  // Described when it is made, when it is connected and when that ends.
  uint32_t number = 0;
  uint32_t device = 0;        // index of the DeviceSlot
  uint64_t created_ns = 0;    // CLOCK_REALTIME, as all times here
  uint64_t connected_ns = 0;  // 0: no stream
  uint32_t send_depth = 0;
  uint32_t receive_depth = 0;
  uint32_t send_queue = 0;  // indices of the CompletionSlots; kNoSlot if they have none
  uint32_t receive_queue = 0;
  uint32_t flags = 0;  // Flag
  uint16_t mulpdu = 0;
  uint16_t ord = 0;
  uint16_t ird = 0;
  uint16_t reserved = 0;
  SlotAddress local;
  SlotAddress peer;
  std::atomic<uint32_t> state{0};  // QpState; not under the sequence
  TransmitCounters transmit;
  ReceiveCounters receive;
  StreamCounters stream;
  char identity[64] = {};  // that the peer has proved by TLS, its first bytes; ends with a zero

  enum Flag : uint32_t {
    kRdmaCm = 1,  // connected by rdma_cm
    kCrc = 2,
    kSharedReceive = 4,
    kSharedMemory = 8,  // what comes does so by shared memory
    kTls = 16,          // what comes by TCP is protected
  };
};
static_assert(sizeof(QueuePairSlot) == 512);

inline constexpr uint32_t kNoSlot = ~uint32_t{0};

struct alignas(128) CompletionSlot {
  SlotHead head;
  uint32_t device = 0;
  std::atomic<uint32_t> capacity{0};
  uint64_t created_ns = 0;
  // By the thread that pushes, under the queue's lock.
  alignas(64) Counter pushed;
  Counter failed;  // of these, those that are no success
  Counter events;
  Counter overruns;
  // By the thread that polls.
  alignas(64) Counter polled;
};

struct alignas(64) RegionSlot {
  SlotHead head;
  uint32_t device = 0;
  uint32_t access = 0;  // ibv_access_flags
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t created_ns = 0;
};
static_assert(sizeof(RegionSlot) == 64);

enum class PageTable : uint8_t { kDevices, kQueuePairs, kCompletionQueues, kRegions };
inline constexpr size_t kPageTables = 4;
inline constexpr std::array<size_t, kPageTables> kPageSlotBytes = {
    sizeof(DeviceSlot), sizeof(QueuePairSlot), sizeof(CompletionSlot), sizeof(RegionSlot)};
/// Slots of each table. uwarp-stat refuses a table with more, so raise PageHeader::kVersion with
/// them.
inline constexpr std::array<uint32_t, kPageTables> kPageSlots = {64, 16384, 8192, 8192};

/// Where a table lies. Readers step by slot_bytes, so that later versions can append to a slot.
struct TableEntry {
  uint64_t offset = 0;
  uint32_t slot_bytes = 0;
  uint32_t slots = 0;
  std::atomic<uint32_t> used{0};      // no slot from here on was ever taken
  std::atomic<uint32_t> homeless{0};  // live objects for which there was no slot
};
static_assert(sizeof(TableEntry) == 24);

struct PageHeader {
  static constexpr uint64_t kMagic = 0x314154'5350'575500;  // "\0UWPSTA1" in memory
  /// Raised when something that is there changes its place or meaning.
  static constexpr uint32_t kVersion = 1;
  static constexpr size_t kBytes = 4096;

  std::atomic<uint64_t> magic{0};  // stored last
  uint32_t version = kVersion;
  uint32_t header_bytes = kBytes;
  uint64_t page_bytes = 0;
  uint64_t instance = 0;  // random: tells a process from a later one of the same pid
  uint64_t started_ns = 0;
  uint32_t pid = 0;       // in its own pid namespace
  uint32_t roce = 0;      // UWARP_PERSONA=roce
  char release[16] = {};  // of uwarp
  char program[64] = {};  // ends with a zero
  TableEntry tables[kPageTables];
};
static_assert(sizeof(PageHeader) <= PageHeader::kBytes);

/// Bytes of a table in the page: whole pages of memory.
constexpr size_t table_bytes(size_t table) {
  return (kPageSlots[table] * kPageSlotBytes[table] + 4095) & ~size_t{4095};
}
/// Where it begins; of one behind the last, bytes of the whole page.
constexpr size_t table_offset(size_t table) {
  size_t offset = PageHeader::kBytes;
  for (size_t i = 0; i < table; ++i) offset += table_bytes(i);
  return offset;
}
constexpr size_t page_bytes() { return table_offset(kPageTables); }

/// The name under which the memory is found among the open files of its process.
inline constexpr const char* kPageName = "uwarp-stat";

/// Begins and ends a description; one writer at a time.
class SlotChange {
 public:
  explicit SlotChange(SlotHead& head) : head_(head) {
    head_.sequence.store(head_.sequence.load(std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    store_fence();
  }
  ~SlotChange() {
    head_.sequence.store(head_.sequence.load(std::memory_order_relaxed) + 1,
                         std::memory_order_release);
  }
  SlotChange(const SlotChange&) = delete;
  SlotChange& operator=(const SlotChange&) = delete;

 private:
  // Later stores do not come before the odd number. Readers are other processes, of which no
  // sanitizer knows.
  static void store_fence() {
#if defined(__aarch64__)
    asm volatile("dmb ishst" ::: "memory");
#else
    asm volatile("" ::: "memory");
#endif
  }
  SlotHead& head_;
};

}  // namespace uwarp
