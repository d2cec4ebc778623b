// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a stream expects of its carrier, checked for each carrier: TCP, rings whose reader copies
// large payloads out of the writer's memory, and rings where that is not permitted.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/tuning.h"
#include "os/clock.h"
#include "qp/receive/receiver.h"
#include "qp/transmit/transmit_batch.h"
#include "unit/carrier/carrier_end.h"
#include "unit/eventually.h"

namespace uwarp {
namespace {

/// Bytes that differ from place to place.
std::string some_bytes(size_t size) {
  std::string text(size, '\0');
  uint32_t value = 1;
  for (char& byte : text) byte = static_cast<char>((value = value * 1664525 + 1013904223) >> 24);
  return text;
}

/// Pieces that a writer still has to send. Pieces that the carrier did not take are offered again
/// unchanged.
class Outbox {
 public:
  void add(std::string& text) { pieces_.push_back({text.data(), text.size()}); }
  void add(char* at, size_t size) { pieces_.push_back({at, size}); }
  bool empty() const { return first_ == pieces_.size(); }
  /// One call of the carrier with at most `most` pieces. Returns its result.
  ssize_t push(CarrierEnd& end, size_t most = ~size_t{0}) {
    const size_t count = std::min(most, pieces_.size() - first_);
    const ssize_t taken = end.send(std::span(pieces_).subspan(first_, count));
    for (size_t left = taken > 0 ? static_cast<size_t>(taken) : 0; left != 0;) {
      iovec& piece = pieces_[first_];
      const size_t step = std::min(left, piece.iov_len);
      piece.iov_base = static_cast<char*>(piece.iov_base) + step;
      piece.iov_len -= step;
      left -= step;
      if (piece.iov_len == 0) ++first_;
    }
    return taken;
  }
  /// Repeats until the box is empty or the carrier takes no more.
  void push_all(CarrierEnd& end) {
    while (!empty() && push(end) > 0) {
    }
  }

 private:
  std::vector<iovec> pieces_;
  size_t first_ = 0;
};

/// One call. Returns its result; the bytes are appended to `text`.
ssize_t take(CarrierEnd& end, std::string& text, std::span<const size_t> rooms) {
  std::vector<std::string> parts;
  for (const size_t room : rooms) parts.emplace_back(room, '?');
  std::vector<iovec> pieces;
  for (std::string& part : parts) pieces.push_back({part.data(), part.size()});
  const ssize_t count = end.receive(pieces);
  size_t left = count > 0 ? static_cast<size_t>(count) : 0;
  for (const std::string& part : parts) {
    text.append(part, 0, std::min(left, part.size()));
    left -= std::min(left, part.size());
  }
  return count;
}
ssize_t take(CarrierEnd& end, std::string& text, size_t room) {
  return take(end, text, std::span(&room, 1));
}
/// Reads until no more bytes are there now, or `most` bytes have been read. Returns the last
/// result.
ssize_t take_all(CarrierEnd& end, std::string& text, size_t most = ~size_t{0}) {
  ssize_t count = 1;
  while (count > 0 && text.size() < most)
    count = take(end, text, std::min<size_t>(most - text.size(), 70'000));
  return count;
}
/// Waits for exactly `size` bytes.
bool take_exactly(CarrierEnd& end, std::string& text, size_t size) {
  while (text.size() < size) {
    const ssize_t count = take_all(end, text, size);
    if (count == -EAGAIN && !end.wait_for(EPOLLIN)) return false;
    if (count <= 0 && count != -EAGAIN) return false;
  }
  return true;
}
/// Reads until the end of the stream. Returns 0 or a negative errno.
ssize_t take_to_end(CarrierEnd& end, std::string& text) {
  for (;;) {
    const ssize_t count = take_all(end, text);
    if (count != -EAGAIN) return count;
    if (!end.wait_for(EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) return -ETIME;
  }
}
void expect_same(const std::string& got, const std::string& sent) {
  ASSERT_EQ(got.size(), sent.size());
  EXPECT_TRUE(got == sent) << "they differ first at byte "
                           << std::mismatch(got.begin(), got.end(), sent.begin()).first -
                                  got.begin();
}

class Carrier : public testing::TestWithParam<Way> {
 protected:
  StreamPair ends_{GetParam()};
  CarrierEnd& a_ = ends_.first;
  CarrierEnd& b_ = ends_.second;
};

TEST_P(Carrier, BytesComeInOrderWhereverTheyAreCut) {
  std::string text = some_bytes(48);
  for (size_t cut = 1; cut != text.size(); ++cut) {
    for (size_t room = 1; room <= text.size(); room += 1 + room / 8) {
      Outbox outbox;
      outbox.add(text.data(), cut);
      outbox.add(text.data() + cut, text.size() - cut);
      ASSERT_EQ(outbox.push(a_, 1), static_cast<ssize_t>(cut));
      ASSERT_EQ(outbox.push(a_), static_cast<ssize_t>(text.size() - cut));
      std::string got;
      while (got.size() != text.size()) {
        const ssize_t count = take(b_, got, std::min(room, text.size() - got.size()));
        ASSERT_TRUE(count > 0 || (count == -EAGAIN && b_.wait_for(EPOLLIN)));
      }
      ASSERT_EQ(got, text) << "cut at " << cut << ", read by " << room;
    }
  }
  std::string more;
  EXPECT_EQ(take(b_, more, 1), -EAGAIN);
}

// A batch like the transmitter's: headers and payloads of all sizes alternate.
TEST_P(Carrier, GathersAsManyPiecesAsABatchHas) {
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> pieces;
    Outbox outbox;
    std::string all;
    for (size_t i = 0; i != BatchBuffer::kIovecs; ++i)
      all += pieces.emplace_back(some_bytes(1 + random() % (i % 2 == 0       ? 30
                                                            : round % 2 == 0 ? 300
                                                                             : 65'000)));
    for (std::string& piece : pieces) outbox.add(piece);
    std::string got;
    while (!outbox.empty() || got.size() != all.size()) {
      const ssize_t taken = outbox.empty() ? 0 : outbox.push(a_);
      ASSERT_TRUE(taken >= 0 || taken == -EAGAIN) << taken;
      const ssize_t count = take_all(b_, got, all.size());
      ASSERT_TRUE(count > 0 || count == -EAGAIN) << count;
    }
    expect_same(got, all);
  }
}

// The rest of a payload is read to its place and what follows to the staging buffer; also a run of
// segments.
TEST_P(Carrier, ReadsIntoSeveralPlaces) {
  std::string text = some_bytes(400'000);
  std::mt19937 random(3);
  for (const size_t places : {size_t{2}, size_t{5}, StagingBuffer::kIovecs}) {
    Outbox outbox;
    for (size_t at = 0; at != text.size();) {
      const size_t size = std::min<size_t>(1 + random() % 40'000, text.size() - at);
      outbox.add(text.data() + at, size);
      at += size;
    }
    std::string got;
    while (!outbox.empty() || got.size() != text.size()) {
      if (!outbox.empty()) outbox.push(a_);
      std::vector<size_t> rooms;
      size_t left = text.size() - got.size();
      for (size_t i = 0; i != places && left != 0; ++i) {
        rooms.push_back(std::min<size_t>(left, 1 + random() % 30'000));
        left -= rooms.back();
      }
      if (rooms.empty()) continue;
      const ssize_t count = take(b_, got, rooms);
      ASSERT_TRUE(count > 0 || count == -EAGAIN) << count;
      ASSERT_TRUE(count > 0 || !outbox.empty() || b_.wait_for(EPOLLIN));
    }
    expect_same(got, text);
  }
}

TEST_P(Carrier, AFullOneTakesNoMoreUntilThereIsRoom) {
  std::vector<std::string> pieces(600, some_bytes(32'000));
  Outbox outbox;
  for (std::string& piece : pieces) outbox.add(piece);
  outbox.push_all(a_);
  ASSERT_FALSE(outbox.empty()) << "nothing is infinite";
  EXPECT_EQ(outbox.push(a_), -EAGAIN);
  a_.forget_edges();
  EXPECT_EQ(outbox.push(a_), -EAGAIN);
  std::string got;
  while (got.size() != pieces.size() * pieces[0].size()) {
    const ssize_t count = take_all(b_, got, got.size() + 500'000);
    ASSERT_TRUE(count > 0 || count == -EAGAIN);
    // A sender that found the carrier full does nothing but wait for the edge.
    if (!outbox.empty() && (a_.edge(0) & EPOLLOUT) != 0) outbox.push_all(a_);
    if (count == -EAGAIN && b_.edge(0) == 0 && !outbox.empty()) {
      ASSERT_TRUE(a_.wait_for(EPOLLOUT)) << "there is room, but no edge reports it";
      outbox.push_all(a_);
    }
  }
  outbox.push_all(a_);
  EXPECT_TRUE(outbox.empty());
  for (size_t i = 0; i != pieces.size(); ++i)
    ASSERT_EQ(got.compare(i * pieces[i].size(), pieces[i].size(), pieces[i]), 0) << i;
}

TEST_P(Carrier, AReaderThatFoundNothingIsWoken) {
  std::string text = some_bytes(40'000), got;
  for (int round = 0; round < 50; ++round) {
    EXPECT_EQ(take(b_, got, 1), -EAGAIN);
    b_.forget_edges();
    EXPECT_EQ(take(b_, got, 1), -EAGAIN);
    Outbox outbox;
    outbox.add(text.data(), round % 2 == 0 ? 8 : text.size());
    outbox.push(a_);
    ASSERT_TRUE(b_.wait_for(EPOLLIN)) << round;
    got.clear();
    ASSERT_TRUE(take_exactly(b_, got, round % 2 == 0 ? 8 : text.size()));
    outbox.push_all(a_);
    EXPECT_TRUE(outbox.empty());
  }
}

TEST_P(Carrier, AMutedOneIsSignalledForWhatCameMeanwhile) {
  std::string text = "abcdefgh", got;
  const auto send_it = [&] {
    Outbox outbox;
    outbox.add(text);
    ASSERT_EQ(outbox.push(a_), 8);
  };
  EXPECT_EQ(take(b_, got, 1), -EAGAIN);
  b_.set_muted(true);
  // The reader has slept before, so the first message may still wake it.
  send_it();
  EXPECT_TRUE(eventually([&] { return take(b_, got, 8) == 8; }));
  b_.forget_edges();
  EXPECT_EQ(take(b_, got, 1), -EAGAIN);
  send_it();
  EXPECT_EQ(b_.edge(20) & EPOLLIN, 0u) << "it looks all the time";
  b_.set_muted(false);
  ASSERT_TRUE(b_.wait_for(EPOLLIN)) << "of what is there already";
  EXPECT_TRUE(take_exactly(b_, got, 16));
  EXPECT_EQ(take(b_, got, 1), -EAGAIN);
  b_.forget_edges();
  send_it();
  EXPECT_TRUE(b_.wait_for(EPOLLIN));
}

// Both directions at once: neither side may wait for the other with its own ring full.
TEST_P(Carrier, LargePayloadsBothWays) {
  std::string to_b = some_bytes(9'000'000), to_a(to_b.rbegin(), to_b.rend());
  Outbox from_a, from_b;
  const auto fill = [](Outbox& outbox, std::string& text, size_t payload) {
    constexpr size_t kHeader = 18;
    for (size_t at = 0; at != text.size();) {
      for (const size_t part : {kHeader, payload}) {
        const size_t size = std::min(part, text.size() - at);
        if (size != 0) outbox.add(text.data() + at, size);
        at += size;
      }
    }
  };
  fill(from_a, to_b, 65'000);
  fill(from_b, to_a, tuning::kPullBytes);
  std::string at_a, at_b;
  const uint64_t limit = now_ns() + 60 * kNsPerSecond;
  while (at_a.size() != to_a.size() || at_b.size() != to_b.size()) {
    ASSERT_LT(now_ns(), limit);
    if (!from_a.empty()) from_a.push(a_, BatchBuffer::kIovecs);
    if (!from_b.empty()) from_b.push(b_, BatchBuffer::kIovecs);
    ASSERT_NE(take_all(a_, at_a, std::min(to_a.size(), at_a.size() + 300'000)), 0);
    ASSERT_NE(take_all(b_, at_b, std::min(to_b.size(), at_b.size() + 300'000)), 0);
  }
  expect_same(at_a, to_a);
  expect_same(at_b, to_b);
  from_a.push_all(a_);
  from_b.push_all(b_);
  EXPECT_TRUE(from_a.empty() && from_b.empty()) << "what was read is given back";
}

TEST_P(Carrier, TheEndComesBehindTheLastByte) {
  std::string text = some_bytes(100'000);
  Outbox outbox;
  outbox.add(text.data(), 10);
  outbox.add(text.data() + 10, text.size() - 10);
  std::string got;
  outbox.push(a_);
  // The sender ends when the carrier has taken all pieces.
  while (!outbox.empty()) {
    (void)take_all(b_, got, 60'000);
    outbox.push(a_);
    if (got.size() == 60'000) (void)take_all(b_, got, text.size() - 5);
    if (got.size() == text.size() - 5) (void)take_all(b_, got, text.size());
  }
  std::string tail = some_bytes(3000);
  Outbox last;
  last.add(tail);
  ASSERT_EQ(last.push(a_), 3000);
  a_.shutdown();
  EXPECT_EQ(take_to_end(b_, got), 0);
  expect_same(got, text + tail);
  EXPECT_EQ(take(b_, got, 1), 0) << "it stays ended";
}

TEST_P(Carrier, AnEndIsOfOneDirection) {
  std::string text = some_bytes(50'000), got;
  a_.shutdown();
  EXPECT_EQ(take_to_end(b_, got), 0);
  Outbox outbox;
  outbox.add(text);
  while (got.size() != text.size()) {
    if (!outbox.empty()) outbox.push(b_);
    const ssize_t count = take_all(a_, got, text.size());
    ASSERT_TRUE(count > 0 || count == -EAGAIN);
  }
  expect_same(got, text);
}

TEST_P(Carrier, AResetIsNoEndInOrder) {
  std::string text = some_bytes(3000), got;
  Outbox outbox;
  outbox.add(text);
  ASSERT_EQ(outbox.push(a_), 3000);
  a_.reset();
  EXPECT_EQ(take_to_end(b_, got), -ECONNRESET);
  EXPECT_EQ(got, text.substr(0, got.size())) << "what comes is the beginning";
}

// A writer that waits for room and does not read learns of the reset too.
TEST_P(Carrier, AResetReachesAWriter) {
  std::vector<std::string> pieces(600, some_bytes(32'000));
  Outbox outbox;
  for (std::string& piece : pieces) outbox.add(piece);
  outbox.push_all(a_);
  ASSERT_FALSE(outbox.empty());
  a_.forget_edges();
  b_.reset();
  EXPECT_TRUE(a_.wait_for(EPOLLRDHUP | EPOLLHUP | EPOLLERR));
}

/// Threads of this process that do errands. The last round's may not have ended yet.
int errand_threads() {
  int count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(thread.path() / "comm") >> std::ws, name);
    count += name == "uwarp-errand";
  }
  return count;
}

/// A writer in another process, which runs until it is killed.
class WriterProcess {
 public:
  WriterProcess(StreamParts& parts, size_t payload) {
    int start[2];
    EXPECT_EQ(pipe2(start, O_CLOEXEC), 0);
    // The child waits for ever for a lock of ASan's allocator that such a thread holds meanwhile.
    EXPECT_TRUE(eventually([] { return errand_threads() == 0; }));
    pid_ = fork();
    if (pid_ == 0) write_for_ever(parts, payload, start[0]);
    parts.close_socket(1);
    close(start[0]);
    start_ = start[1];
  }
  ~WriterProcess() { kill_now(); }
  pid_t pid() const { return pid_; }
  void begin() const { ASSERT_EQ(write(start_, "s", 1), 1); }
  void kill_now() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(start_);
    pid_ = 0;
  }

 private:
  [[noreturn]] static void write_for_ever(StreamParts& parts, size_t payload, int start) {
    alarm(120);  // in case the test hangs
    CarrierEnd end(parts, 1, getppid());
    parts.close_socket(0);
    parts.close_socket(1);
    char byte;
    if (read(start, &byte, 1) != 1) _exit(1);
    end.await_rights();
    std::string text = some_bytes(1 << 20);
    for (size_t at = 0;;) {
      // Each piece has its own memory, which is reused once the carrier has taken the piece.
      std::string header(text, at % text.size(), 18);
      std::string body(text, (at + header.size()) % text.size(), payload);
      Outbox outbox;
      outbox.add(header);
      outbox.add(body);
      while (!outbox.empty()) {
        const ssize_t count = outbox.push(end);
        if (count == -EAGAIN) (void)end.edge(1);
        if (count < 0 && count != -EAGAIN) _exit(2);
      }
      at += header.size() + body.size();
    }
  }

  pid_t pid_ = 0;
  int start_ = -1;
};

class CarrierDeath : public testing::TestWithParam<Way> {};

// The writer is killed in any step: the bytes that arrive are those that were written, and then the
// end arrives.
TEST_P(CarrierDeath, OfTheWriter) {
  const std::string text = some_bytes(1 << 20);
  std::mt19937 random(17);
  for (int round = 0; round < 24; ++round) {
    SCOPED_TRACE(round);
    StreamParts parts(GetParam());
    WriterProcess writer(parts, round % 2 == 0 ? 200 : 60'000);
    CarrierEnd end(parts, 0, writer.pid());
    parts.close_socket(0);
    writer.begin();
    end.await_rights();
    std::string got;
    ASSERT_TRUE(take_exactly(end, got, 1 + random() % 3'000'000));
    if (round % 3 == 0) usleep(random() % 2000);
    writer.kill_now();
    const ssize_t last = take_to_end(end, got);
    EXPECT_TRUE(last == -ECONNRESET || last == 0) << last;
    // Each piece starts in the text where the previous one stopped.
    size_t wrong = 0;
    for (size_t at = 0, of_text = 0; at != got.size() && wrong == 0;) {
      const size_t payload = round % 2 == 0 ? 200 : 60'000;
      for (const size_t part : {size_t{18}, payload}) {
        const size_t there = std::min(part, text.size() - of_text % text.size());
        const size_t size = std::min(there, got.size() - at);
        if (got.compare(at, size, text, of_text % text.size(), size) != 0) wrong = at;
        at += size;
        of_text += there;
      }
    }
    EXPECT_EQ(wrong, 0u);
  }
}

std::string name_of_way(const testing::TestParamInfo<Way>& info) {
  constexpr const char* kNames[] = {"Tcp", "Ring", "RingByCopies"};
  return kNames[static_cast<size_t>(info.param)];
}
const auto all_ways = testing::Values(Way::kTcp, Way::kRing, Way::kRingByCopies);
INSTANTIATE_TEST_SUITE_P(, Carrier, all_ways, name_of_way);
INSTANTIATE_TEST_SUITE_P(, CarrierDeath, all_ways, name_of_way);

}  // namespace
}  // namespace uwarp
