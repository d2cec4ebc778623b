// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Pages of counters as a process makes them, and what uwarp-stat makes of these and of others that
// were cut, changed or made up.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "json.h"
#include "observe/stat_page.h"
#include "page_reader.h"
#include "processes.h"
#include "rates.h"
#include "tables.h"
#include "user_shares.h"

namespace stat_view {
namespace {

using namespace uwarp;

/// Slots that may be read, where the test is about something else.
constexpr size_t kPlenty = 1 << 20;

/// A page with something of everything on it.
class Page : public ::testing::Test {
 protected:
  Page() : page_(true), lease_(page_), queue_(page_), region_(page_) {
    const uint32_t device = page_.device("uwarp_lo");
    page_.note_link("uwarp_lo", true);
    describe_qp(*lease_, device);
    {
      const SlotChange change(queue_->head);
      queue_->device = device;
      queue_->head.live.store(1);
    }
    queue_->capacity.store(64);
    queue_->pushed.add(5);
    queue_->polled.add(3);
    const SlotChange change(region_->head);
    region_->bytes = 4096;
    region_->address = 0x1000;
    region_->access = 3;
    region_->head.live.store(1);
  }

  static void describe_qp(QueuePairSlot& slot, uint32_t device) {
    const SlotChange change(slot.head);
    slot.number = 0x123456;
    slot.device = device;
    slot.created_ns = 7;
    slot.connected_ns = 9;
    slot.send_depth = 128;
    slot.flags = QueuePairSlot::kRdmaCm | QueuePairSlot::kCrc | QueuePairSlot::kSharedMemory;
    const uint8_t mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7};
    std::memcpy(slot.peer.bytes, mapped, sizeof mapped);
    slot.peer.port = 4791;
    slot.state.store(3);
    slot.transmit.bytes.add(1000);
    slot.transmit.count(MessageKind::kWrite);
    slot.transmit.posted.set(10);
    slot.transmit.retired.set(8);
    slot.receive.held.add(2);
    slot.receive.dropped.add(3);
    slot.head.live.store(1);
  }

  MappedPage mapped() {
    std::string why;
    auto page = MappedPage::map(page_.fd(), why);
    EXPECT_TRUE(page.has_value()) << why;
    return std::move(*page);
  }
  Process read() {
    const MappedPage page = mapped();
    Process process;
    size_t slots_left = kPlenty;
    EXPECT_EQ(read_page(page.bytes(), process, slots_left), "");
    return process;
  }

  StatPage page_;
  SlotLease<QueuePairSlot> lease_;
  SlotLease<CompletionSlot> queue_;
  SlotLease<RegionSlot> region_;
};

TEST_F(Page, ReadsWhatWasWritten) {
  const Process process = read();
  EXPECT_EQ(process.own_pid, static_cast<uint32_t>(getpid()));
  EXPECT_NE(process.instance, 0u);
  EXPECT_EQ(process.program, program_invocation_short_name);
  EXPECT_EQ(process.homeless, 0u);
  EXPECT_EQ(process.unsettled, 0u);
  ASSERT_EQ(process.devices.size(), 1u);
  EXPECT_EQ(process.devices[0].name, "uwarp_lo");
  EXPECT_EQ(process.devices[0].link, "up");
  EXPECT_EQ(process.devices[0].traffic.sent.bytes, 1000u);
  ASSERT_EQ(process.queue_pairs.size(), 1u);
  const QueuePair& qp = process.queue_pairs[0];
  EXPECT_EQ(qp.number, 0x123456u);
  EXPECT_EQ(qp.device, "uwarp_lo");
  EXPECT_EQ(qp.state, "RTS");
  EXPECT_EQ(qp.peer, "192.0.2.7:4791");
  EXPECT_EQ(qp.local, "");
  EXPECT_TRUE(qp.rdma_cm);
  EXPECT_TRUE(qp.crc);
  EXPECT_TRUE(qp.shared_memory);
  EXPECT_FALSE(qp.shared_receive);
  EXPECT_EQ(qp.outstanding, 2u);
  EXPECT_EQ(qp.traffic.sent.all_messages(), 1u);
  EXPECT_EQ(qp.traffic.held, 2u);
  EXPECT_EQ(qp.traffic.dropped, 3u);
  ASSERT_EQ(process.completion_queues.size(), 1u);
  EXPECT_EQ(process.completion_queues[0].waiting(), 2u);
  ASSERT_EQ(process.regions.size(), 1u);
  EXPECT_EQ(process.regions[0].bytes, 4096u);
}

TEST_F(Page, DeviceKeepsWhatItsQueuePairsDid) {
  lease_ = {};
  const Process process = read();
  EXPECT_TRUE(process.queue_pairs.empty());
  EXPECT_EQ(process.devices.at(0).traffic.sent.bytes, 1000u);
  EXPECT_EQ(process.devices.at(0).traffic.held, 2u);
  EXPECT_EQ(process.devices.at(0).traffic.dropped, 3u);
  const DeviceTotals totals = page_.totals("uwarp_lo");
  EXPECT_EQ(totals.transmit.bytes.get(), 1000u);
  // The slot begins anew for the next one.
  SlotLease<QueuePairSlot> next(page_);
  EXPECT_EQ(page_.index_of(*next), 0u);
  EXPECT_EQ(next->transmit.bytes.get(), 0u);
  EXPECT_EQ(page_.totals("uwarp_lo").transmit.bytes.get(), 1000u);
}

TEST_F(Page, RepeatedLinkDownIsCountedOnce) {
  for (const bool up : {true, false, false, true, true, false}) page_.note_link("uwarp_lo", up);
  EXPECT_EQ(page_.totals("uwarp_lo").link_downs, 2u);
  EXPECT_EQ(read().devices.at(0).link, "down");
}

TEST_F(Page, MoreThanThereIsRoomFor) {
  constexpr uint32_t kCapacity = kPageSlots[static_cast<size_t>(PageTable::kCompletionQueues)];
  std::vector<SlotLease<CompletionSlot>> leases;
  for (uint32_t i = 0; i < kCapacity + 3; ++i) leases.emplace_back(page_);
  EXPECT_EQ(page_.index_of(*leases.back()), kNoSlot);
  leases.back()->pushed.add(1);
  EXPECT_EQ(read().homeless, 4u);  // one slot is the fixture's
  leases.clear();
  EXPECT_EQ(read().homeless, 0u);
  SlotLease<CompletionSlot> next(page_);
  EXPECT_NE(page_.index_of(*next), kNoSlot);
}

TEST_F(Page, QueuePairsBeyondTheTableCount) {
  constexpr uint32_t kCapacity = kPageSlots[static_cast<size_t>(PageTable::kQueuePairs)];
  std::vector<SlotLease<QueuePairSlot>> leases;
  for (uint32_t i = 0; i < kCapacity; ++i) leases.emplace_back(page_);
  ASSERT_EQ(page_.index_of(*leases.back()), kNoSlot);
  describe_qp(*leases.back(), 0);
  EXPECT_EQ(page_.totals("uwarp_lo").transmit.bytes.get(), 2000u);
  leases.clear();
  EXPECT_EQ(page_.totals("uwarp_lo").transmit.bytes.get(), 2000u);
}

TEST_F(Page, AHiddenPageCountsToo) {
  StatPage hidden(false);
  EXPECT_EQ(hidden.fd(), -1);
  SlotLease<QueuePairSlot> lease(hidden);
  describe_qp(*lease, hidden.device("uwarp_lo"));
  EXPECT_EQ(hidden.totals("uwarp_lo").transmit.bytes.get(), 1000u);
}

// No process that has the file can make it shorter or longer while a reader uses it.
TEST_F(Page, CannotBeCut) {
  EXPECT_NE(ftruncate(page_.fd(), 4096), 0);
  EXPECT_NE(ftruncate(page_.fd(), 1 << 30), 0);
}

TEST_F(Page, UnsealedMemoryIsNotTouched) {
  const int fd = memfd_create(kPageName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(ftruncate(fd, 1 << 20), 0);
  std::string why;
  EXPECT_FALSE(MappedPage::map(fd, why).has_value());
  EXPECT_EQ(why, "not sealed");
  close(fd);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_FALSE(MappedPage::map(null, why).has_value());
  close(null);
}

/// The page as it is now, in memory that may be changed.
std::vector<uint64_t> words_of(std::span<const std::byte> page) {
  std::vector<uint64_t> words(page.size() / 8);
  std::memcpy(words.data(), page.data(), words.size() * 8);
  return words;
}

/// All that is done with what was read; must survive anything.
std::string use(std::span<const std::byte> page) {
  Snapshot snapshot;
  snapshot.monotonic_ns = 2'000'000'000;
  Process process;
  process.pid = 1;
  size_t slots_left = kPlenty;
  const std::string why = read_page(page, process, slots_left);
  if (!why.empty()) return why;
  snapshot.processes.push_back(std::move(process));
  Snapshot before;
  before.monotonic_ns = 1'000'000'000;
  const RateTable rates(&before, snapshot);
  EXPECT_FALSE(to_json(snapshot, rates).empty());
  for (const ViewName& view : kViews) {
    for (const std::string& line : table_of(snapshot, rates, view.view))
      for (const char c : line) EXPECT_TRUE(c >= 0x20 && c <= 0x7e);
  }
  EXPECT_FALSE(summary_of(snapshot, rates).empty());
  return {};
}

TEST_F(Page, CutPages) {
  const MappedPage page = mapped();
  const std::vector<uint64_t> words = words_of(page.bytes());
  const auto* bytes = reinterpret_cast<const std::byte*>(words.data());
  for (size_t size = 0; size < PageHeader::kBytes + 1024; size += 8)
    EXPECT_NE(use({bytes, size}), "") << size;
  EXPECT_EQ(use({bytes, PageHeader::kBytes - 1}), "too small");
  EXPECT_EQ(use({bytes, words.size() * 8 / 2}), "damaged: a table lies outside");
  EXPECT_EQ(use({bytes, words.size() * 8}), "");
}

TEST_F(Page, OtherLayouts) {
  const MappedPage page = mapped();
  std::vector<uint64_t> words = words_of(page.bytes());
  auto* header = reinterpret_cast<PageHeader*>(words.data());
  const auto bytes = std::as_bytes(std::span(words));
  header->version = 2;
  EXPECT_EQ(use(bytes), "layout 2, which this uwarp-stat does not know");
  header->version = 1;
  header->magic.store(1);
  EXPECT_EQ(use(bytes), "not a page of counters");
}

// A later version of the same layout may append to the header's page and to each slot.
TEST_F(Page, LargerSlotsOfALaterVersion) {
  const MappedPage page = mapped();
  std::vector<uint64_t> words = words_of(page.bytes());
  auto* header = reinterpret_cast<PageHeader*>(words.data());
  TableEntry& place = header->tables[static_cast<size_t>(PageTable::kQueuePairs)];
  place.slot_bytes += 128;
  place.slots = 16;
  Process process;
  size_t slots_left = kPlenty;
  ASSERT_EQ(read_page(std::as_bytes(std::span(words)), process, slots_left), "");
  ASSERT_EQ(process.queue_pairs.size(), 1u);
  EXPECT_EQ(process.queue_pairs[0].number, 0x123456u);
}

TEST_F(Page, DamagedTables) {
  const MappedPage page = mapped();
  const std::vector<uint64_t> good = words_of(page.bytes());
  const auto damaged = [&](auto change) {
    std::vector<uint64_t> words = good;
    auto* header = reinterpret_cast<PageHeader*>(words.data());
    change(header->tables[static_cast<size_t>(PageTable::kQueuePairs)]);
    return use(std::as_bytes(std::span(words)));
  };
  const std::string outside = "damaged: a table lies outside";
  EXPECT_EQ(damaged([](TableEntry& t) { t.offset = ~uint64_t{7}; }), outside);
  EXPECT_EQ(damaged([](TableEntry& t) { t.offset += 4; }), outside);
  EXPECT_EQ(damaged([](TableEntry& t) { t.offset = 8; }), outside);
  EXPECT_EQ(damaged([](TableEntry& t) { ++t.slots; }),
            "damaged: a table has more slots than uwarp makes");
  EXPECT_EQ(damaged([](TableEntry& t) { t.slot_bytes = 0; }), outside);
  EXPECT_EQ(damaged([](TableEntry& t) { t.slot_bytes = ~uint32_t{7}; }), outside);
  // Those behind it, if all of them are in use and longer than they are here, or if it begins
  // there.
  const auto overlaps = [&](auto change) {
    EXPECT_EQ(damaged(change), "damaged: two tables overlap");
  };
  overlaps([](TableEntry& t) { t.slot_bytes += 8, t.used.store(t.slots); });
  overlaps([](TableEntry& t) { t.offset = PageHeader::kBytes; });
  // More in use than there are slots: all of them are looked at, and no more.
  EXPECT_EQ(damaged([](TableEntry& t) { t.used.store(~uint32_t{0}); }), "");
}

// A page costs its reader what it says is in use, also where nothing lives there.
TEST_F(Page, MoreSlotsThanMayBeRead) {
  const MappedPage page = mapped();
  size_t slots_left = 4;
  Process process;
  EXPECT_EQ(read_page(page.bytes(), process, slots_left), "");
  EXPECT_EQ(slots_left, 0u);
  slots_left = 3;
  Process again;
  EXPECT_EQ(read_page(page.bytes(), again, slots_left),
            "the processes of its user have too many objects");
  EXPECT_EQ(slots_left, 3u);
  EXPECT_TRUE(again.queue_pairs.empty());
}

// Another process of the user can write to the page. Counts become wrong then, and nothing else.
TEST_F(Page, OverwrittenPageLeadsNowhere) {
  void* mapped = mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, page_.fd(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::memset(mapped, 0xff, page_bytes());
  EXPECT_EQ(page_.index_of(*lease_), 0u);
  page_.note_link("uwarp_lo", true);
  EXPECT_EQ(page_.device("uwarp_lo"), 1u);  // its name is gone
  (void)page_.totals("uwarp_lo");
  SlotLease<QueuePairSlot> next(page_);
  EXPECT_EQ(page_.index_of(*next), 1u);
  std::memset(mapped, 0xff, page_bytes());
  next = {};
  lease_ = {};
  queue_ = {};
  region_ = {};
  EXPECT_EQ(page_.index_of(*SlotLease<RegionSlot>(page_)), 0u);
  munmap(mapped, page_bytes());
}

// One whose process was stopped in the middle of a description.
TEST_F(Page, SlotThatNeverSettles) {
  lease_->head.sequence.fetch_add(1);
  const Process process = read();
  EXPECT_EQ(process.unsettled, 1u);
  EXPECT_TRUE(process.queue_pairs.empty());
  lease_->head.sequence.fetch_add(1);
  EXPECT_EQ(read().queue_pairs.size(), 1u);
}

TEST_F(Page, RandomBytes) {
  std::mt19937_64 random(20240607);
  const MappedPage page = mapped();
  const std::vector<uint64_t> good = words_of(page.bytes());
  std::vector<uint64_t> words = good;
  const auto* tables = reinterpret_cast<const PageHeader*>(good.data())->tables;
  for (int round = 0; round < 300; ++round) {
    words.assign(good.begin(), good.end());
    // Anywhere in the header, and in the first slots of each table.
    for (int i = 0; i < 8; ++i) words[1 + random() % 60] = random();
    for (size_t table = 0; table < kPageTables; ++table) {
      const size_t first = tables[table].offset / 8;
      for (int i = 0; i < 16; ++i) words[first + random() % 64] = random();
    }
    if (round % 2 == 0) std::memcpy(words.data(), good.data(), 16);
    if (round % 4 == 0) std::memcpy(words.data(), good.data(), sizeof(PageHeader));
    (void)use(std::as_bytes(std::span(words)));
  }
  for (int round = 0; round < 20; ++round) {
    std::vector<uint64_t> noise(4096);
    for (uint64_t& word : noise) word = random();
    const uint64_t magic = PageHeader::kMagic;
    if (round % 2 == 0) std::memcpy(noise.data(), &magic, 8);
    (void)use(std::as_bytes(std::span(noise)));
  }
}

// A description is seen whole or not at all, however often it changes.
TEST_F(Page, DescriptionsAreSeenWhole) {
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint32_t i = 1; !stop.load(); ++i) {
      const SlotChange change(lease_->head);
      __atomic_store_n(&lease_->number, i, __ATOMIC_RELAXED);
      __atomic_store_n(&lease_->created_ns, uint64_t{i}, __ATOMIC_RELAXED);
      __atomic_store_n(&lease_->send_depth, i, __ATOMIC_RELAXED);
    }
  });
  const MappedPage page = mapped();
  for (int i = 0; i < 2000; ++i) {
    Process process;
    size_t slots_left = kPlenty;
    ASSERT_EQ(read_page(page.bytes(), process, slots_left), "");
    for (const QueuePair& qp : process.queue_pairs) {
      if (qp.created_ns == 7) continue;  // from before
      EXPECT_EQ(qp.number, qp.created_ns);
      EXPECT_EQ(qp.send_depth, qp.created_ns);
    }
  }
  stop.store(true);
  writer.join();
}

// Between the two steps in which a queue pair's counts move to its device they are there twice.
TEST_F(Page, CountsThatMoveAreWaitedFor) {
  void* const at = mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, page_.fd(), 0);
  ASSERT_NE(at, MAP_FAILED);
  auto& device = *reinterpret_cast<DeviceSlot*>(
      static_cast<std::byte*>(at) + table_offset(static_cast<size_t>(PageTable::kDevices)));
  std::optional<SlotChange> moving(std::in_place, device.head);
  device.transmit.bytes.add(1000);
  std::thread rest([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    {
      const SlotChange change(lease_->head);
      lease_->head.live.store(0);
    }
    moving.reset();
  });
  const Process process = read();
  rest.join();
  ASSERT_EQ(process.devices.size(), 1u);
  EXPECT_EQ(process.devices[0].traffic.sent.bytes, 1000u);
  munmap(at, page_bytes());
}

// What queue pairs did is with them or with their device, whenever they go.
TEST_F(Page, TotalsNeverGoBackWhileQueuePairsGo) {
  std::vector<SlotLease<RegionSlot>> others;  // a look takes its time
  for (int i = 0; i < 500; ++i) others.emplace_back(page_);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop.load()) {
      SlotLease<QueuePairSlot> lease(page_);
      describe_qp(*lease, 0);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  const MappedPage page = mapped();
  uint64_t before = 0;
  int went_back = 0;
  for (int i = 0; i < 5000; ++i) {
    Process process;
    size_t slots_left = kPlenty;
    EXPECT_EQ(read_page(page.bytes(), process, slots_left), "");
    const uint64_t total = process.devices.at(0).traffic.sent.bytes;
    if (total < before) ++went_back;
    before = total;
  }
  stop.store(true);
  writer.join();
  EXPECT_EQ(went_back, 0);
}

TEST_F(Page, IsFoundAmongOpenFiles) {
  Processes processes(false, getpid());
  const Snapshot snapshot = processes.look();
  ASSERT_EQ(snapshot.processes.size(), 1u);
  EXPECT_EQ(snapshot.processes[0].pid, getpid());
  EXPECT_EQ(snapshot.processes[0].instance, page_.header().instance);
  EXPECT_EQ(processes.look().processes.size(), 1u);
}

// Root sees the process of another user when its number is given, without --all-users.
TEST_F(Page, IsFoundInTheProcessThatIsNamed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const StatPage own(true);  // the parent's is closed here
    const bool other = setresuid(65534, 65534, 65534) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0;
    (void)!write(ready[1], other ? "y" : "n", 1);
    pause();
    _exit(0);
  }
  char answer = 'n';
  EXPECT_EQ(::read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  const Snapshot snapshot = Processes(false, child).look();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  ASSERT_EQ(snapshot.processes.size(), 1u);
  EXPECT_EQ(snapshot.processes[0].uid, 65534u);
}

// Another user may hand its page to a process: it neither stands for the process nor hides its own.
TEST_F(Page, MadeByAnotherUserIsNotTaken) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  {
    const StatPage other(true);
    ASSERT_EQ(fchown(other.fd(), 65534, 65534), 0);
    const int first = fcntl(other.fd(), F_DUPFD_CLOEXEC, 3);  // before the engine's own
    ASSERT_LT(first, page_.fd());
    const Snapshot snapshot = Processes(false, getpid()).look();
    close(first);
    ASSERT_EQ(snapshot.processes.size(), 1u);
    EXPECT_EQ(snapshot.processes[0].instance, page_.header().instance);
    EXPECT_TRUE(snapshot.unreadable.empty());
  }
  ASSERT_EQ(fchown(page_.fd(), 65534, 65534), 0);
  const Snapshot snapshot = Processes(false, getpid()).look();
  EXPECT_TRUE(snapshot.processes.empty());
  ASSERT_EQ(snapshot.unreadable.size(), 1u);
  EXPECT_EQ(snapshot.unreadable[0].why, "made by another user, 65534");
}

TEST(UserShares, OneUserLeavesTheOthersTheirs) {
  UserShares shares(10, 15, 1000);
  EXPECT_TRUE(shares.take(1, 8));
  EXPECT_FALSE(shares.take(1, 3));
  EXPECT_EQ(shares.left(1), 2u);
  EXPECT_TRUE(shares.take(2, 7));
  EXPECT_FALSE(shares.take(3, 1));  // of all others together
  EXPECT_TRUE(shares.take(1000, 10));
  EXPECT_FALSE(shares.take(1000, 1));
}

TEST(Processes, DropsAPageThatIsClosed) {
  Processes processes(false, getpid());
  {
    const StatPage page(true);
    EXPECT_EQ(processes.look().processes.size(), 1u);
  }
  EXPECT_TRUE(processes.look().processes.empty());
}

TEST(Rates, FromOneLookToTheNext) {
  Snapshot before, now;
  before.monotonic_ns = 1'000'000'000;
  now.monotonic_ns = 3'000'000'000;
  Process process;
  process.pid = 5;
  process.devices.resize(1);
  process.devices[0].name = "uwarp_lo";
  process.queue_pairs.resize(1);
  process.queue_pairs[0].traffic.sent.bytes = 100;
  before.processes.push_back(process);
  process.queue_pairs[0].traffic.sent.bytes = 500;
  process.devices[0].traffic.sent.bytes = 600;
  process.queue_pairs.emplace_back().number = 8;
  process.queue_pairs[1].traffic.received.messages[0] = 20;
  now.processes.push_back(process);
  const RateTable rates(&before, now);
  ASSERT_TRUE(rates.known());
  EXPECT_EQ(rates.of(process, process.queue_pairs[0]).sent_bytes, 200);
  EXPECT_EQ(rates.of(process, process.queue_pairs[1]).received_messages, 10);
  EXPECT_EQ(rates.of(process).sent_bytes, 300);
  // Another process of the same pid.
  process.instance = 9;
  EXPECT_EQ(rates.of(process, process.queue_pairs[0]).sent_bytes, 250);
  EXPECT_FALSE(RateTable(nullptr, now).known());
}

// The busiest first; of two that move about the same, the one that came first.
TEST(Tables, RowsOfAboutTheSameRateKeepTheirPlaces) {
  Snapshot before, now;
  before.monotonic_ns = 1'000'000'000;
  now.monotonic_ns = 2'000'000'000;
  for (const uint32_t number : {1, 2, 3}) {
    Process process;
    process.pid = static_cast<int>(number);
    process.queue_pairs.emplace_back().number = number;
    before.processes.push_back(process);
    process.queue_pairs[0].traffic.sent.bytes = number == 3 ? 5000 : 1500 + number;
    now.processes.push_back(process);
  }
  const auto lines = table_of(now, RateTable(&before, now), View::kQueuePairs);
  ASSERT_EQ(lines.size(), 4u);
  for (size_t row = 1; const char* number : {"0x3", "0x1", "0x2"})
    EXPECT_NE(lines[row++].find(number), std::string::npos) << number;
}

TEST(Tables, Figures) {
  EXPECT_EQ(bytes_text(0), "0");
  EXPECT_EQ(bytes_text(1023), "1023");
  EXPECT_EQ(bytes_text(1536), "1.5K");
  EXPECT_EQ(bytes_text(1024), "1.0K");
  EXPECT_EQ(bytes_text(5e9), "4.7G");
  EXPECT_EQ(bytes_text(0x1p59), "512P");
  EXPECT_EQ(bytes_text(0x1p60), "1.0E");
  EXPECT_EQ(bytes_text(static_cast<double>(~uint64_t{0})), "16E");
  EXPECT_EQ(count_text(12'345), "12k");
  EXPECT_EQ(count_text(2'500'000), "2.5M");
  EXPECT_EQ(count_text(static_cast<double>(~uint64_t{0})), "18E");
  EXPECT_EQ(printable("a\x1b[2Jb\xff"), "a?[2Jb?");
}

}  // namespace
}  // namespace stat_view
