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
// - return wakes_reader();
// + const bool sleeps = wakes_reader();
// + control_.head.store(at_.word(), std::memory_order_seq_cst);
// + return sleeps;
//
// Mutant rings_before_it_shows: carrier/byte_ring.h
// - control_.other_placed.store(bytes, std::memory_order_seq_cst);
// - return wakes_reader();
// + const bool sleeps = wakes_reader();
// + control_.other_placed.store(bytes, std::memory_order_seq_cst);
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

/// A requester sleeps until the target has placed all that it wrote. Of each message the target
/// shows that, and then answers, but not the last one.
template <class Control, class Writer, class Reader>
struct Acknowledged : Scenario {
  explicit Acknowledged(uint32_t messages) : messages(messages) {}

  void start(Threads& threads) override {
    threads.add("requester", [this] { request(); });
    threads.add("target", [this] { serve(); });
  }
  void request() {
    for (uint32_t i = 0; i != messages; ++i) {
      writer.put(RingRecord::kBytes, sizeof(uint32_t));
      if (writer.publish()) target_bell.fetch_add(1);
    }
    for (uint64_t answers = 0, placed = 0; placed != messages;) {
      while (answer_reader.begin()) {
        answer_reader.advance(answer_reader.left());
        ++answers;
      }
      const bool sleeps = answer_reader.begin_sleep();
      if (answer_reader.take_placed()) {
        placed = answers_control.other_placed.load();
      } else if (sleeps) {
        block_until([this] { return requester_bell.peek() != heard; }, "the bell");
        heard = requester_bell.load();
      }
      check(answers <= placed, "an answer came before the news");
    }
  }
  void serve() {
    for (uint32_t i = 0; i != messages;) {
      if (!reader.begin()) {
        if (reader.begin_sleep()) wait_for(target_bell, target_heard);
        continue;
      }
      reader.advance(reader.left());
      ++i;
      if (answer_writer.show_placed(i)) requester_bell.fetch_add(1);
      if (i == messages) return;
      answer_writer.put(RingRecord::kBytes, sizeof(uint32_t));
      if (answer_writer.publish()) requester_bell.fetch_add(1);
    }
  }
  static void wait_for(Atomic<int>& bell, int& heard) {
    block_until([&] { return bell.peek() != heard; }, "the bell");
    heard = bell.load();
  }

  const uint32_t messages;
  Control control, answers_control;
  alignas(8) std::byte bytes[kBytes] = {}, answer_bytes[kBytes] = {};
  Writer writer{control, bytes, kBytes}, answer_writer{answers_control, answer_bytes, kBytes};
  Reader reader{control, bytes, kBytes}, answer_reader{answers_control, answer_bytes, kBytes};
  Atomic<int> requester_bell{0}, target_bell{0};
  int heard = 0, target_heard = 0;
};

constexpr Property kAcknowledged{
    "acknowledged ring", "News of what is placed comes before answers, and wakes who sleeps.", 3};
#define ACKNOWLEDGED(name) Acknowledged<name::RingControl, name::RingWriter, name::RingReader>

TEST(ByteRing, NewsOfWhatIsPlacedComesBeforeAnswers) {
  expect_holds<Acknowledged<RingControl, RingWriter, RingReader>>(kAcknowledged, 2u);
}
TEST(ByteRing, MutantsOfThatAreFound) {
  expect_found<ACKNOWLEDGED(rings_before_it_shows)>(kAcknowledged, "sleep", 2u);
}

}  // namespace
}  // namespace uwarp::model
