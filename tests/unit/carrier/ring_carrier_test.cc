// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Both directions between two ends in one process: copies, payloads that the reader pulls, bells,
// and memory that is withdrawn.
#include "carrier/ring_carrier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "unit/carrier/ring_ends.h"
#include "unit/eventually.h"
#include "unit/kernel_copies.h"

namespace uwarp {
namespace {

struct TwoEnds : RingEnds {
  bool first_rang() const { return first_bell.rang(); }
  bool second_rang() const { return second_bell.rang(); }
  BellWatch first_bell{first->wakeup_fd()}, second_bell{second->wakeup_fd()};
};

ssize_t send(RingCarrier& end, const std::string& text) {
  const iovec piece = {const_cast<char*>(text.data()), text.size()};
  return end.send({&piece, 1});
}
ssize_t receive(RingCarrier& end, std::string& text, size_t room) {
  text.assign(room, '?');
  const iovec piece = {text.data(), room};
  const ssize_t count = end.receive({&piece, 1});
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return count;
}
TEST(RingCarrier, SmallPiecesAreReleasedAtOnce) {
  TwoEnds ends;
  std::string got;
  EXPECT_EQ(send(*ends.first, "abc"), 3);
  EXPECT_EQ(receive(*ends.second, got, 10), 3);
  EXPECT_EQ(got, "abc");
  EXPECT_EQ(receive(*ends.second, got, 10), -EAGAIN);
  EXPECT_EQ(send(*ends.second, "back"), 4);
  EXPECT_EQ(receive(*ends.first, got, 2), 2);
  EXPECT_EQ(receive(*ends.first, got, 10), 2);
  EXPECT_EQ(got, "ck");
}

TEST(RingCarrier, LargePiecesAreReleasedOnceTheyAreRead) {
  UWARP_NEEDS_KERNEL_COPIES();
  TwoEnds ends;
  std::string got;
  const std::string large(100'000, 'L');
  EXPECT_EQ(send(*ends.first, large), -EAGAIN);
  EXPECT_EQ(send(*ends.first, large), -EAGAIN) << "it is not written twice";
  EXPECT_EQ(receive(*ends.second, got, 60'000), 60'000);
  EXPECT_EQ(send(*ends.first, large), -EAGAIN);
  EXPECT_EQ(receive(*ends.second, got, 60'000), 40'000);
  EXPECT_EQ(got, large.substr(0, 40'000));
  EXPECT_EQ(receive(*ends.second, got, 1), -EAGAIN);
  EXPECT_TRUE(ends.first->space_came());
  EXPECT_EQ(send(*ends.first, large), 100'000);
}

TEST(RingCarrier, KnowsHowFarThePeerHasRead) {
  UWARP_NEEDS_KERNEL_COPIES();
  TwoEnds ends;
  std::string got;
  EXPECT_EQ(ends.first->read_bytes(), 0u);
  EXPECT_EQ(send(*ends.first, "abc"), 3);
  EXPECT_EQ(ends.first->read_bytes(), 0u);
  EXPECT_EQ(receive(*ends.second, got, 10), 3);
  EXPECT_EQ(ends.first->read_bytes(), 3u);
  const std::string large(100'000, 'L');
  EXPECT_EQ(send(*ends.first, large), -EAGAIN);
  EXPECT_EQ(ends.first->read_bytes(), 3u);
  EXPECT_EQ(receive(*ends.second, got, 60'000), 60'000);
  EXPECT_EQ(ends.first->read_bytes(), 3u) << "a record is read to its end";
  EXPECT_EQ(receive(*ends.second, got, 60'000), 40'000);
  EXPECT_EQ(ends.first->read_bytes(), 100'003u);
  EXPECT_EQ(send(*ends.first, large), 100'000);
  EXPECT_EQ(send(*ends.first, "de"), 2);
  EXPECT_EQ(ends.first->read_bytes(), 100'003u) << "the ring has begun again";
}

// Built like frames: header, payload, header, payload.
TEST(RingCarrier, PiecesOfBothKindsComeInOrder) {
  UWARP_NEEDS_KERNEL_COPIES();
  TwoEnds ends;
  std::vector<std::string> parts;
  std::string all;
  for (int i = 0; i < 30; ++i) {
    parts.push_back(std::string(i % 2 == 0 ? 20 : 40'000, static_cast<char>('a' + i % 26)));
    all += parts.back();
  }
  std::vector<iovec> window;
  for (std::string& part : parts) window.push_back({part.data(), part.size()});
  std::string got;
  size_t sent = 0, first = 0;
  while (got.size() != all.size()) {
    const ssize_t count = ends.first->send(std::span(window).subspan(first));
    if (count > 0) {
      sent += static_cast<size_t>(count);
      size_t gone = static_cast<size_t>(count);
      while (gone != 0) {
        const size_t step = std::min(gone, window[first].iov_len);
        window[first].iov_base = static_cast<char*>(window[first].iov_base) + step;
        window[first].iov_len -= step;
        gone -= step;
        if (window[first].iov_len == 0) ++first;
      }
    }
    std::string piece;
    if (receive(*ends.second, piece, 33'333) > 0) got += piece;
  }
  EXPECT_EQ(got, all);
  while (sent != all.size()) {
    const ssize_t count = ends.first->send(std::span(window).subspan(first));
    ASSERT_GT(count, 0);
    sent += static_cast<size_t>(count);
    ++first;
  }
}

TEST(RingCarrier, OnlyASideThatWaitsIsSignalled) {
  TwoEnds ends;
  std::string got;
  ends.second->set_muted(true);
  EXPECT_EQ(receive(*ends.second, got, 1), -EAGAIN);
  EXPECT_EQ(send(*ends.first, "x"), 1);
  EXPECT_FALSE(ends.second_rang()) << "it looks all the time";
  ends.second->set_muted(false);
  EXPECT_TRUE(ends.second_rang()) << "for what was there already";
}

TEST(RingCarrier, ASleepingSideIsSignalled) {
  TwoEnds ends;
  std::string got;
  EXPECT_EQ(receive(*ends.second, got, 1), -EAGAIN);
  EXPECT_FALSE(ends.second_rang());
  EXPECT_EQ(send(*ends.first, "x"), 1);
  EXPECT_TRUE(ends.second_rang());
}

TEST(RingCarrier, AFullRingSignalsWhenThereIsRoom) {
  TwoEnds ends;
  ends.first->set_muted(false);
  const std::string piece(10'000, 'p');
  ssize_t count;
  size_t sent = 0;
  while ((count = send(*ends.first, piece)) > 0) sent += static_cast<size_t>(count);
  EXPECT_EQ(count, -EAGAIN);
  EXPECT_GT(sent, size_t{RingCarrier::kRingBytes} / 2);
  std::string got;
  EXPECT_GT(receive(*ends.second, got, 50'000), 0);
  EXPECT_TRUE(ends.first_rang());
}

TEST(RingCarrier, ANudgeRingsAPeerThatIsQuiet) {
  TwoEnds ends;
  ends.second->set_muted(true);
  EXPECT_FALSE(ends.first->unread());
  EXPECT_EQ(send(*ends.first, "x"), 1);
  EXPECT_TRUE(ends.first->unread());
  EXPECT_FALSE(ends.second_rang());
  ends.first->nudge();
  EXPECT_TRUE(ends.second_rang());
  std::string got;
  EXPECT_EQ(receive(*ends.second, got, 1), 1);
  EXPECT_FALSE(ends.first->unread());
}

// A peer without rights over this process could name a place that makes it wait.
TEST(RingCarrier, APlaceThatWasNotAskedForBreaksTheStream) {
  auto memory = SharedMemory::create(RingCarrier::kSharedBytes).value();
  auto other = mapped_again(memory.fd());
  auto bells = WakeupSocket::pair().value();
  Errands errands;
  RingCarrier reader(std::move(memory), true, std::move(bells.first),
                     std::make_unique<PeerMemory>(), errands);
  auto* const words = reinterpret_cast<RingControl*>(other.base());
  RingWriter writer(words[1], other.base() + 4096 + RingCarrier::kRingBytes,
                    RingCarrier::kRingBytes);
  const std::string large(100'000, 'L');
  ASSERT_TRUE(writer.put_place(large.data(), 100'000));
  (void)writer.publish();
  std::string got;
  EXPECT_EQ(receive(reader, got, 200'000), -EPROTO);
}

TEST(RingCarrier, RightsNeedTheAnswersOfBothSides) {
  UWARP_NEEDS_KERNEL_COPIES();
  auto memory = SharedMemory::create(RingCarrier::kSharedBytes).value();
  auto other = mapped_again(memory.fd());
  auto bells = WakeupSocket::pair().value();
  auto peer = std::make_unique<PeerMemory>();
  const PeerMemory theirs;
  const PeerMemory::Place own = peer->place();
  Errands errands;
  RingCarrier carrier(std::move(memory), true, std::move(bells.first), std::move(peer), errands);
  auto* const words = reinterpret_cast<RingControl*>(other.base());
  carrier.ask_peer(getpid(), theirs.place());
  EXPECT_TRUE(theirs.is_secret(words[1].answer.load()));
  EXPECT_FALSE(carrier.take_answer()) << "the peer has shown nothing";
  words[0].answer.store(1);
  EXPECT_FALSE(carrier.take_answer()) << "a wrong answer";
  EXPECT_EQ(words[1].can_pull.load(), 0u);
  words[0].answer.store(reinterpret_cast<const PeerMemory::Secret*>(own.at)->number);
  EXPECT_TRUE(carrier.take_answer());
  EXPECT_EQ(words[1].can_pull.load(), 1u);
}

TEST(PeerMemory, AProcessThatIsNotThereIsNotReadable) {
  PeerMemory peer;
  EXPECT_FALSE(peer.ask(0, peer.place()));
  EXPECT_FALSE(peer.ask(getpid(), {4096, 1}));
  EXPECT_FALSE(peer.ask(getpid(), {peer.place().at, peer.place().label + 1})) << "another's memory";
  EXPECT_EQ(peer.answer(), 0u);
  EXPECT_FALSE(peer.ask(getpid(), PeerMemory(false).place())) << "not shown";
  peer.peer_has_shown();
  EXPECT_FALSE(peer.readable());
}

// The number of a process that has ended may come to mean another one, which has other bytes there.
TEST(PeerMemory, NothingIsReadOfAnotherProcessThanTheOneThatWasAsked) {
  UWARP_NEEDS_KERNEL_COPIES();
  PeerMemory::Secret secret{1, 2};
  PeerMemory peer;
  ASSERT_TRUE(peer.ask(getpid(), {reinterpret_cast<uintptr_t>(&secret), 1}));
  peer.peer_has_shown();
  const uint64_t value = 7;
  uint64_t got = 0;
  const auto read = [&] {
    PeerMemory::Copy copy(peer);
    copy.from(reinterpret_cast<uintptr_t>(&value), sizeof value);
    copy.to(&got, sizeof got);
    return copy.run();
  };
  EXPECT_TRUE(read());
  EXPECT_EQ(got, 7u);
  secret.number = 3;
  EXPECT_FALSE(read());
}

TEST(RingCarrier, WithdrawnMemoryEndsTheStream) {
  UWARP_NEEDS_KERNEL_COPIES();
  TwoEnds ends;
  const std::string large(100'000, 'L');
  EXPECT_EQ(send(*ends.first, large), -EAGAIN);
  ends.first->withdraw();
  EXPECT_EQ(send(*ends.first, large), -ECONNRESET);
  std::string got;
  EXPECT_EQ(receive(*ends.second, got, 200'000), -ECONNRESET);
}

TEST(RingCarrier, NothingIsWithdrawnThatHasBeenRead) {
  UWARP_NEEDS_KERNEL_COPIES();
  TwoEnds ends;
  const std::string large(100'000, 'L');
  EXPECT_EQ(send(*ends.first, large), -EAGAIN);
  std::string got;
  EXPECT_EQ(receive(*ends.second, got, 200'000), 100'000);
  ends.first->withdraw();
  EXPECT_EQ(send(*ends.first, large), 100'000);
}

TEST(RingCarrier, MemoryThatIsNotThereEndsTheStream) {
  UWARP_NEEDS_KERNEL_COPIES();
  TwoEnds ends;
  const iovec nowhere = {reinterpret_cast<void*>(uintptr_t{4096}), 100'000};
  EXPECT_EQ(ends.first->send({&nowhere, 1}), -EAGAIN);
  std::string got;
  EXPECT_EQ(receive(*ends.second, got, 200'000), -ECONNRESET);
}

TEST(SharedMemory, IsSealed) {
  auto memory = SharedMemory::create(8192).value();
  EXPECT_NE(ftruncate(memory.fd(), 4096), 0);
  ForeignFd other_kind(open("/dev/zero", O_RDWR | O_CLOEXEC)), other_size = handed(memory.fd());
  EXPECT_FALSE(SharedMemory::adopt(other_kind, 8192).ok());
  EXPECT_FALSE(SharedMemory::adopt(other_size, 4096).ok());
}

size_t memory_bytes(const RingCarrier& end) {
  struct stat status {};
  EXPECT_EQ(fstat(end.memory_fd(), &status), 0);
  return static_cast<size_t>(status.st_blocks) * 512;
}

TEST(RingCarrier, AnIdleRingReturnsItsMemory) {
  TwoEnds ends;
  const std::string message(4096, 'm');
  std::string got;
  for (int i = 0; i < 64; ++i) ASSERT_EQ(send(*ends.first, message), 4096);
  const size_t used = memory_bytes(*ends.first);
  EXPECT_GE(used, 64u * 4096);
  EXPECT_FALSE(ends.first->trim());
  EXPECT_FALSE(ends.first->trim()) << "nothing has been read";
  for (int i = 0; i < 64; ++i) ASSERT_EQ(receive(*ends.second, got, 4096), 4096);
  EXPECT_EQ(memory_bytes(*ends.first), used);
  EXPECT_TRUE(ends.first->trim());
  EXPECT_TRUE(eventually([&] { return memory_bytes(*ends.first) <= 3u * 4096; }))
      << "positions, and a page of a ring";

  // The ring still works. It is not at rest while something has been sent since the last trim().
  // The first page serves alone until the errand that gives the others back is done.
  ASSERT_TRUE(eventually([&] {
    const ssize_t sent = send(*ends.first, message);
    return receive(*ends.second, got, 4096) == sent && sent == 4096;
  }));
  EXPECT_EQ(got, message);
  EXPECT_FALSE(ends.first->trim());
  EXPECT_TRUE(ends.first->trim());
}

// The peer can hold up the thread that gives the pages back. Until it is done the first page
// serves.
TEST(RingWriter, KeepsToItsFirstPageWhileTheOthersGoBack) {
  RingControl control;
  alignas(8) static std::byte bytes[1 << 16];
  RingWriter writer(control, bytes, sizeof bytes);
  writer.keep_to_first_page(true);
  size_t written = 0;
  while (const uint32_t fits = writer.space(1000)) {
    EXPECT_LE(writer.place() + fits, bytes + 4096);
    writer.put(RingRecord::kBytes, fits);
    written += fits;
  }
  EXPECT_GT(written, 3000u);
  EXPECT_FALSE(writer.put_place(bytes, 100'000));
  writer.keep_to_first_page(false);
  EXPECT_EQ(writer.space(1000), 1000u);
}

}  // namespace
}  // namespace uwarp
