// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A thread writes nonsense into the control words and records of both rings while two sides stream.
// Each call must return, must touch only its own memory and the rings, and must report either
// progress or the end of the stream. tests/fuzz/ring_fuzz.cc does the same step by step.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <random>
#include <thread>
#include <vector>

#include "base/tuning.h"
#include "carrier/byte_ring.h"
#include "unit/carrier/carrier_end.h"

namespace uwarp {
namespace {

class Scribbler {
 public:
  Scribbler(const StreamParts& parts, uint32_t seed)
      : memory_(mapped_again(parts.memory)), random_(seed), thread_([this] {
          while (!over_.load(std::memory_order_relaxed)) {
            spoil();
            for (uint32_t pause = random_() % 2000; pause != 0; --pause) Atomics::cpu_relax();
          }
        }) {}
  ~Scribbler() {
    over_.store(true);
    thread_.join();
  }

 private:
  void spoil() {
    RingControl& control = reinterpret_cast<RingControl*>(memory_.base())[random_() % 2];
    std::atomic<uint64_t>& position = random_() % 2 == 0 ? control.head : control.tail;
    switch (random_() % 8) {
      case 0:
        return position.store(uint64_t{random_()} << 32 | random_());
      case 1:
        return position.store(position.load() + (uint64_t{random_() % 4} << 32));
      case 2:
        return position.store(position.load() + random_() % 4096 - 2048);
      case 3:
        return control.reader_sleeps.store(random_() % 2);
      case 4:
        return control.writer_sleeps.store(random_() % 2);
      case 5:
        return control.can_pull.store(random_() % 2);
      case 6:
        return control.withdrawn.store(random_() % 64 == 0);
      default:
        break;
    }
    const uint32_t at = random_() % (1 << 14) * kRingStep;
    const RingRecord record{random_() % 4 == 0 ? static_cast<uint32_t>(random_()) : 64,
                            static_cast<uint32_t>(random_() % 4)};
    std::memcpy(memory_.base() + 4096 + (random_() % 2) * size_t{RingCarrier::kRingBytes} + at,
                &record, sizeof record);
  }

  SharedMemory memory_;
  std::mt19937 random_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

bool may_go_on(ssize_t count) {
  EXPECT_NE(count, 0);
  if (count > 0 || count == -EAGAIN) return true;
  EXPECT_TRUE(count == -EPROTO || count == -ECONNRESET) << count;
  return false;
}

/// Sends and receives until the stream has ended, or `calls` calls have been made.
void stream(CarrierEnd& end, uint32_t seed, int calls) {
  std::mt19937 random(seed);
  std::vector<char> out(3 * tuning::kPullBytes), in(100'000);
  size_t sent = 0;  // of `out`
  for (bool on = true; on && calls > 0; --calls) {
    if (random() % 2 == 0) {
      const size_t header = 40;
      const iovec all[] = {{out.data(), header}, {out.data() + header, out.size() - header}};
      const iovec rest[] = {{out.data() + sent, out.size() - sent}};
      const ssize_t count = sent < header ? end.send(all) : end.send(rest);
      on = may_go_on(count);
      if (count > 0) {
        ASSERT_LE(static_cast<size_t>(count), out.size() - (sent < header ? 0 : sent));
        sent = sent < header ? static_cast<size_t>(count) : sent + static_cast<size_t>(count);
        if (sent == out.size()) sent = 0;
      }
    } else {
      const size_t first = 1 + random() % 30'000, second = 1 + random() % 30'000;
      const iovec room[] = {{in.data(), first}, {in.data() + first, second}};
      const ssize_t count = end.receive(room);
      on = may_go_on(count);
      ASSERT_LE(count, static_cast<ssize_t>(first + second));
    }
    if (random() % 500 == 0) end.set_muted(random() % 2 == 0);
  }
}

TEST(HostileRing, InvalidControlWordsWhileBothStream) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a side that accepts a wrong position races, by design";
#endif
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    StreamParts parts(seed % 3 == 0 ? Way::kRingByCopies : Way::kRing);
    StreamPair ends(parts);
    Scribbler scribbler(parts, seed);
    std::thread other([&] { stream(ends.second, 2 * seed, 2000); });
    stream(ends.first, 2 * seed + 1, 2000);
    other.join();
  }
}

// Bytes before the wrong position are delivered. A later call must not accept the position that was
// refused.
TEST(HostileRing, APositionThatWasRefusedStaysSo) {
  for (const uint32_t wrong : {3u, 4096u, 0u - 64u}) {
    RingControl control;
    alignas(8) std::byte bytes[1024] = {};
    RingReader reader(control, bytes, sizeof bytes);
    const RingRecord large{1 << 20, RingRecord::kBytes}, one{1, RingRecord::kBytes};
    for (size_t at = 0; at != sizeof bytes; at += kRingStep)
      std::memcpy(bytes + at, at == 0 ? &one : &large, kRingStep);
    control.head.store(RingPosition{0, 2 * kRingStep}.word());
    ASSERT_TRUE(reader.begin());
    reader.advance(1);
    control.head.store(RingPosition{0, 2 * kRingStep + wrong}.word());
    for (int i = 0; i < 3; ++i) {
      EXPECT_FALSE(reader.begin());
      EXPECT_FALSE(reader.poll());
      EXPECT_TRUE(reader.broken());
    }
    control.head.store(RingPosition{1, 4 * kRingStep}.word());
    EXPECT_FALSE(reader.begin()) << "nor what looks right afterwards";
    EXPECT_FALSE(reader.begin());
  }
}

// A writer that sends only skip records must not keep the reader busy for ever.
TEST(HostileRing, SkipsOnlyAreNoStream) {
  RingControl control;
  alignas(8) std::byte bytes[1024] = {};
  RingReader reader(control, bytes, sizeof bytes);
  const RingRecord skip{0, RingRecord::kSkip};
  for (size_t at = 0; at != sizeof bytes; at += kRingStep)
    std::memcpy(bytes + at, &skip, sizeof skip);
  control.head.store(RingPosition{0, kRingStep}.word());
  EXPECT_FALSE(reader.begin());
  EXPECT_FALSE(reader.broken()) << "one is as it should be";
  control.head.store(RingPosition{0, 4 * kRingStep}.word());
  EXPECT_FALSE(reader.begin());
  EXPECT_TRUE(reader.broken());
}

}  // namespace
}  // namespace uwarp
