// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// carrier/byte_ring.h: two processes share a ring; each sleeps when it has nothing to do.
#include "carrier/byte_ring.h"

#include <gtest/gtest.h>

#include "model/explorer.h"
#include "mutants/byte_ring_test.h"

namespace uwarp::model {
namespace {

// Mutant sleeps_without_a_look: carrier/byte_ring.h
// - return !poll() && !broken_;
// + return !broken_;
//
// Mutant rings_before_it_publishes: carrier/byte_ring.h
// - control_.head.store(at_.word(), std::memory_order_seq_cst);
// - return control_.reader_sleeps.load(std::memory_order_seq_cst) != 0 &&
// - control_.reader_sleeps.exchange(0, std::memory_order_acq_rel) != 0;
// + const bool sleeps = control_.reader_sleeps.load(std::memory_order_seq_cst) != 0 &&
// + control_.reader_sleeps.exchange(0, std::memory_order_acq_rel) != 0;
// + control_.head.store(at_.word(), std::memory_order_seq_cst);
// + return sleeps;
//
// Mutant begins_again_too_early: carrier/byte_ring.h
// - if (read_ == at_.bytes && at_.bytes != 0) begin_again();
// + if (at_.bytes != 0) begin_again();

constexpr uint32_t kBytes = 64;

/// A writer sends numbers, a reader takes them. The bells that wake them are counters.
template <class Control, class Writer, class Reader>
struct Shared : Scenario {
  explicit Shared(uint32_t messages) : messages(messages) {}

  void start(Threads& threads) override {
    threads.add("writer", [this] { write(); });
    threads.add("reader", [this] { read(); });
  }
  void write() {
    for (uint32_t i = 0; i != messages;) {
      if (!writer.poll()) return check(false, "the reader says what cannot be");
      if (writer.space(sizeof i) < sizeof i) {
        if (writer.begin_sleep()) wait(writer_bell, writer_heard);
        continue;
      }
      std::memcpy(writer.place(), &i, sizeof i);
      writer.put(RingRecord::kBytes, sizeof i);
      ++i;
      if (writer.publish()) reader_bell.fetch_add(1);
    }
  }
  void read() {
    for (uint32_t i = 0; i != messages;) {
      if (!reader.begin()) {
        check(!reader.broken(), "broken");
        if (reader.begin_sleep()) wait(reader_bell, reader_heard);
        continue;
      }
      uint32_t got;
      check(reader.left() == sizeof got, "another length");
      std::memcpy(&got, reader.data(), sizeof got);
      check(got == i, "lost, or out of order");
      reader.advance(sizeof got);
      ++i;
      if (reader.release()) writer_bell.fetch_add(1);
    }
  }
  static void wait(Atomic<int>& bell, int& heard) {
    block_until([&] { return bell.peek() != heard; }, "the bell");
    heard = bell.load();
  }

  const uint32_t messages;
  Control control;
  alignas(8) std::byte bytes[kBytes] = {};
  Writer writer{control, bytes, kBytes};
  Reader reader{control, bytes, kBytes};
  Atomic<int> reader_bell{0}, writer_bell{0};
  int reader_heard = 0, writer_heard = 0;
};

using Ring = Shared<RingControl, RingWriter, RingReader>;
#define MUTANT(name) Shared<name::RingControl, name::RingWriter, name::RingReader>

constexpr Property kRing{
    "ring", "Every message arrives once and in order, and no side sleeps while there is work.", 3};

TEST(ByteRing, NothingIsLostAndNoSideSleepsForEver) { expect_holds<Ring>(kRing, 3u); }
TEST(ByteRing, AlsoWhenItIsFull) { expect_holds<Ring>({"full ring", kRing.sentence, 2}, 7u); }
TEST(ByteRing, MutantsAreFound) {
  expect_found<MUTANT(sleeps_without_a_look)>(kRing, "sleep", 3u);
  expect_found<MUTANT(rings_before_it_publishes)>(kRing, "sleep", 3u);
  expect_found<MUTANT(begins_again_too_early)>(kRing, "", 3u);
}

}  // namespace
}  // namespace uwarp::model
