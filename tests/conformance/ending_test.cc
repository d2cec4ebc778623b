// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How streams end over real sockets: orderly from either side, by reset, or by a Terminate from
// either side; and what then becomes of requests, descriptors and memory. RFC 5040 5.4 and 6.2, RFC
// 5041 6.2, RFC 5044 7.2.
#include <dirent.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <set>
#include <thread>

#include "conformance/socket_peer.h"
#include "protocol/rdmap/segment_rules.h"

namespace uwarp::conformance {
namespace {

using namespace std::chrono_literals;
using sim::send_message;
using sim::tagged;
using sim::untagged;

Bytes bad_write() { return tagged(O::kWrite, STag{3}, 0, 8); }
bool is_terminate(const Bytes& ulpdu) { return sim::opcode_of(ulpdu) == O::kTerminate; }

size_t open_files() {
  DIR* folder = opendir("/proc/self/fd");
  size_t count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// ---- Orderly, by the device

// Proves: 5040-6.2-a 5041-6.2.1-a 5041-6.2.1-e 5044-7.2-a
TEST(OurEnd, SendsAllThenFin) {
  for (const bool crc : {false, true}) {
    SocketPeer peer({.crc = crc});
    for (uint64_t id = 0; id < 60; ++id) ASSERT_EQ(peer.dut.post_send(id, 0, 4000), 0);
    ASSERT_EQ(peer.connection->disconnect(), 0);
    const auto sent = peer.all();
    ASSERT_EQ(sent.size(), 60u);
    for (const Bytes& one : sent) EXPECT_EQ(sim::opcode_of(one), O::kSend);
    EXPECT_TRUE(peer.orderly());
    EXPECT_FALSE(peer.was_reset());
    for (const auto& [id, done] : peer.completions(60))
      EXPECT_EQ(done.status, WcStatus::kSuccess) << id;
    EXPECT_TRUE(peer.ended());
    EXPECT_TRUE(peer.dut.events().empty());
  }
}

// Proves: 5041-6.2.1-b
TEST(OurEnd, TakesNothingMore) {
  SocketPeer peer;
  ASSERT_EQ(peer.connection->disconnect(), 0);
  EXPECT_TRUE(peer.all().empty());
  EXPECT_TRUE(peer.ended());
  ASSERT_EQ(peer.dut.post_send(1, 0, 8), 0);
  EXPECT_EQ(peer.completions(1).at(1).status, WcStatus::kWrFlushErr);
}

// ---- Orderly, by the peer

// Proves: 5041-3-9 5044-7.2-b
TEST(PeersEnd, FinAtABoundaryIsADisconnect) {
  SocketPeer peer;
  ASSERT_EQ(peer.dut.post_recv(1, 0, 100), 0);
  SendRequest read;
  read.wr_id = 2;
  read.opcode = SendOpcode::kRead;
  ASSERT_EQ(peer.dut.post(read, 1000, 64), 0);
  ASSERT_TRUE(peer.next().has_value());
  peer.finish();
  EXPECT_TRUE(peer.ended());
  EXPECT_TRUE(peer.all().empty());
  EXPECT_TRUE(peer.orderly());
  for (const auto& [id, done] : peer.completions(2))
    EXPECT_EQ(done.status, WcStatus::kWrFlushErr) << id;
  EXPECT_EQ(peer.dut.state(), QpState::kErr);
  EXPECT_TRUE(peer.dut.events().empty());
}

// Proves: 5041-6.2.1-c 5044-7.2-c
TEST(PeersEnd, FinInsideAMessageIsAnError) {
  const auto expect_error = [](const Bytes& last_bytes, bool framed) {
    SocketPeer peer;
    ASSERT_EQ(peer.dut.post_recv(1, 0, 100), 0);
    if (framed)
      peer.send(last_bytes);
    else
      peer.write(last_bytes);
    peer.finish();
    EXPECT_TRUE(peer.ended());
    EXPECT_EQ(peer.completions(1).at(1).status, WcStatus::kWrFlushErr);
    EXPECT_EQ(peer.dut.events(), std::vector{QpEvent::kFatal});
    EXPECT_EQ(peer.dut.state(), QpState::kErr);
  };
  const Bytes fpdu = sim::frame(send_message(1, 50), false);
  for (const size_t size : {1u, 2u, 3u, 19u, 20u, 40u, 70u, 75u})
    expect_error(Bytes(fpdu.begin(), fpdu.begin() + size), false);
  // The FPDU is complete, but the message is not.
  expect_error(send_message(1, 50, 0, false), true);
}

// The peer closes its sending side only: all that was posted still arrives.
// Proves: 5041-6.2.1-d 5041-6.2.1-e
TEST(PeersEnd, HalfCloseStillTakesWhatWasPosted) {
  for (const bool crc : {false, true}) {
    SocketPeer peer({.crc = crc, .receive_bytes = 4096});
    for (uint64_t id = 0; id < 40; ++id) ASSERT_EQ(peer.dut.post_send(id, 0, 250000), 0);
    // The device sends until the peer's socket buffer is full.
    size_t sends = UntaggedHeader::decode(peer.next().value().data()).control.last();
    std::this_thread::sleep_for(20ms);
    peer.finish();
    for (const Bytes& one : peer.all()) sends += UntaggedHeader::decode(one.data()).control.last();
    EXPECT_EQ(sends, 40u);
    EXPECT_TRUE(peer.orderly());
    EXPECT_FALSE(peer.was_reset());
    EXPECT_TRUE(peer.ended());
    for (const auto& [id, done] : peer.completions(40))
      EXPECT_EQ(done.status, WcStatus::kSuccess) << id;
    EXPECT_TRUE(peer.dut.events().empty());
  }
}

// A peer that also reads nothing does not keep the connection alive for ever.
TEST(PeersEnd, HalfCloseOfAPeerThatReadsNothing) {
  SocketPeer peer({.receive_bytes = 4096});
  for (uint64_t id = 0; id < 40; ++id) ASSERT_EQ(peer.dut.post_send(id, 0, 250000), 0);
  peer.finish();
  EXPECT_TRUE(peer.ended());
  EXPECT_TRUE(eventually([&] { return !peer.dut.endpoint->connected(); }, 60));
  EXPECT_EQ(peer.completions(40).at(39).status, WcStatus::kWrFlushErr);
}

// Proves: 5041-6.2.2-a 5040-6.2-c 5041-3-3 5041-7-a
TEST(PeersEnd, Reset) {
  SocketPeer peer;
  for (uint64_t id = 0; id < 3; ++id) ASSERT_EQ(peer.dut.post_recv(id, 0, 100), 0);
  SendRequest read;
  read.wr_id = 9;
  read.opcode = SendOpcode::kRead;
  ASSERT_EQ(peer.dut.post(read, 1000, 64), 0);
  ASSERT_TRUE(peer.next().has_value());
  peer.reset();
  EXPECT_TRUE(peer.ended());
  for (const auto& [id, done] : peer.completions(4))
    EXPECT_EQ(done.status, id == 9 ? WcStatus::kRetryExcErr : WcStatus::kWrFlushErr);
  EXPECT_EQ(peer.dut.events(), std::vector{QpEvent::kFatal});
  EXPECT_EQ(peer.dut.state(), QpState::kErr);
}

// Reset during a transfer: the requests that it affects complete in error, each once.
TEST(PeersEnd, ResetWhileWeSend) {
  SocketPeer peer({.receive_bytes = 4096});
  for (uint64_t id = 0; id < 60; ++id) ASSERT_EQ(peer.dut.post_send(id, 0, 250000), 0);
  ASSERT_TRUE(peer.next().has_value());
  peer.reset();
  EXPECT_TRUE(peer.ended());
  bool failed = false;
  for (const auto& [id, done] : peer.completions(60)) {
    if (failed) {
      EXPECT_EQ(done.status, WcStatus::kWrFlushErr) << id;
    }
    failed |= done.status != WcStatus::kSuccess;
  }
  EXPECT_TRUE(failed);
}

// ---- By a Terminate of the peer

// Proves: 5040-5.4-e 5040-5.4-g 5040-6.2.1-c
TEST(PeersTerminate, ReachesTheApplication) {
  for (const bool close_at_once : {false, true}) {
    SocketPeer peer({.receive_bytes = 4096, .queue_depth = 128});
    for (uint64_t id = 1000; id < 1003; ++id) ASSERT_EQ(peer.dut.post_recv(id, 0, 100), 0);
    // The peer reads nothing, so most of these Sends wait.
    for (uint64_t id = 0; id < 100; ++id) ASSERT_EQ(peer.dut.post_send(id, 0, 250000), 0);
    std::this_thread::sleep_for(10ms);
    Bytes terminate = untagged(O::kTerminate, 2, 1, 0, 4);
    store_be32(&terminate[18], 0x01020000);
    peer.send(terminate);
    if (close_at_once) peer.finish();
    EXPECT_TRUE(eventually([&] { return peer.dut.state() == QpState::kErr; }));
    size_t sends = 0;
    for (const Bytes& one : peer.all()) {
      EXPECT_EQ(sim::opcode_of(one), O::kSend);
      sends += UntaggedHeader::decode(one.data()).control.last();
    }
    EXPECT_TRUE(peer.ended_by_fin());
    EXPECT_TRUE(peer.ended());
    const auto done = peer.completions(103);
    size_t succeeded = 0;
    for (uint64_t id = 0; id < 100; ++id) {
      const WcStatus status = done.at(id).status;
      succeeded += status == WcStatus::kSuccess;
      if (status == WcStatus::kSuccess) {
        EXPECT_EQ(succeeded, id + 1);
      } else {
        EXPECT_EQ(status, succeeded == id ? WcStatus::kRemAccessErr : WcStatus::kWrFlushErr) << id;
      }
    }
    EXPECT_LE(succeeded, sends);
    EXPECT_LT(succeeded, 100u);
    for (uint64_t id = 1000; id < 1003; ++id) EXPECT_EQ(done.at(id).status, WcStatus::kWrFlushErr);
    EXPECT_EQ(peer.dut.events(), std::vector{QpEvent::kFatal});
  }
}

// Proves: 5040-5.4-f
TEST(PeersTerminate, MalformedOnesEndTheStream) {
  const Bytes bad[] = {
      untagged(O::kTerminate, 2, 2, 0, 4),   untagged(O::kTerminate, 2, 1, 4, 4),
      untagged(O::kTerminate, 2, 1, 0, 2),   untagged(O::kTerminate, 2, 1, 0, 0),
      untagged(O::kTerminate, 2, 1, 0, 300), untagged(O::kTerminate, 2, 1, 0, 4, false)};
  for (const Bytes& one : bad) {
    SocketPeer peer;
    ASSERT_EQ(peer.dut.post_recv(1, 0, 100), 0);
    peer.send(one);
    for (const Bytes& answer : peer.all()) EXPECT_TRUE(is_terminate(answer));
    EXPECT_TRUE(peer.orderly());
    EXPECT_TRUE(peer.ended());
    EXPECT_EQ(peer.completions(1).at(1).status, WcStatus::kWrFlushErr);
    EXPECT_EQ(peer.dut.state(), QpState::kErr);
    EXPECT_EQ(peer.dut.events().size(), 1u);
  }
}

// ---- By a Terminate of the device

// Proves: 5040-4.8-o 5041-6.2.2-b 5044-8-a 5044-4.4-b
TEST(OurTerminate, WrongCrc) {
  SocketPeer peer({.crc = true});
  ASSERT_EQ(peer.dut.post_recv(1, 0, 100), 0);
  const std::vector<std::byte> before = peer.dut.memory;
  Bytes fpdu = sim::frame(tagged(O::kWrite, peer.stag(), peer.base(), 100), true);
  fpdu[50] ^= std::byte{1};
  peer.write(fpdu);
  EXPECT_EQ(peer.all(), std::vector<Bytes>{
                            sim::from_hex("4147 00000000 00000002 00000001 00000000 2002 0000")});
  EXPECT_TRUE(peer.orderly());
  EXPECT_TRUE(peer.ended());
  EXPECT_EQ(peer.dut.events(), std::vector{QpEvent::kFatal});
  EXPECT_EQ(peer.completions(1).at(1).status, WcStatus::kWrFlushErr);
  EXPECT_EQ(peer.dut.memory, before);
}

// The Terminate arrives although the device has not read all that the peer sent.
// Proves: 5040-6.2.1-d
TEST(OurTerminate, ArrivesInSpiteOfUnreadBytes) {
  for (int round = 0; round < 20; ++round) {
    SocketPeer peer;
    Bytes burst = sim::frame(bad_write(), false);
    burst.resize(burst.size() + 3'000'000);
    std::thread writer([&] { peer.write(burst); });
    std::this_thread::sleep_for(round % 4 * 1ms);
    const auto sent = peer.all();
    writer.join();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_TRUE(is_terminate(sent[0]));
    EXPECT_TRUE(peer.orderly());
    EXPECT_FALSE(peer.was_reset());
  }
}

// The device is sending much to a peer that reads slowly. It finishes the FPDU that it has begun,
// then sends the Terminate.
TEST(OurTerminate, FollowsAHalfSentFpdu) {
  SocketPeer peer({.receive_bytes = 4096});
  for (uint64_t id = 0; id < 30; ++id) ASSERT_EQ(peer.dut.post_send(id, 0, 250000), 0);
  std::this_thread::sleep_for(5ms);
  peer.send(bad_write());
  const auto sent = peer.all();
  ASSERT_FALSE(sent.empty());
  EXPECT_TRUE(is_terminate(sent.back()));
  EXPECT_TRUE(peer.orderly());
  EXPECT_EQ(peer.completions(30).size(), 30u);
}

// The device closes the connection although the peer keeps its side open.
// Proves: 5040-7-c
TEST(OurTerminate, ClosesThoughThePeerDoesNot) {
  SocketPeer peer;
  peer.send(bad_write());
  ASSERT_EQ(peer.all().size(), 1u);
  EXPECT_TRUE(peer.orderly());
  EXPECT_TRUE(peer.ended());
  // A peer that goes on writing is reset in the end.
  EXPECT_TRUE(eventually(
      [&] {
        std::this_thread::sleep_for(50ms);
        const char byte = 0;
        return send(peer.fd(), &byte, 1, MSG_NOSIGNAL) < 0 && errno != EAGAIN;
      },
      60));
}

// Proves: 5041-3-10
TEST(OurTerminate, LeavesNoDescriptorBehind) {
  const auto end_one = [](int i) {
    SocketPeer peer;
    if (i % 3 == 0) peer.send(bad_write());
    if (i % 3 == 1) peer.finish();
    if (i % 3 == 2) (void)peer.connection->disconnect();
    (void)peer.all();
    EXPECT_TRUE(peer.ended());
    peer.close();
    EXPECT_TRUE(eventually([&] { return !peer.dut.endpoint->connected(); }));
  };
  for (int i = 0; i < 10; ++i) end_one(i);
  const size_t before = open_files();
  for (int i = 0; i < 1000; ++i) end_one(i);
  EXPECT_TRUE(eventually([&] { return open_files() <= before + 2; })) << open_files() - before;
}

// ---- Between streams

// Proves: 5040-5.5-9
TEST(Streams, ACompletedSendMayNotHaveArrived) {
  SocketPeer peer;
  ASSERT_EQ(peer.dut.post_send(1, 0, 8), 0);
  EXPECT_EQ(peer.completions(1).at(1).status, WcStatus::kSuccess);
  // The peer has read nothing until here.
  EXPECT_EQ(peer.next().value().size(), 26u);
}

// Proves: 5040-8.1.2-7 5042-h
TEST(Streams, OneThatReadsNothingStallsItselfOnly) {
  SocketPeer stalled({.receive_bytes = 4096}), other;
  for (uint32_t msn = 1; msn <= 4; ++msn) {
    ReadRequestHeader header = read_of(stalled, 200000);
    header.source_stag = STag{stalled.dut.region->key.load()};
    header.source_to = reinterpret_cast<uint64_t>(stalled.dut.memory.data());
    stalled.send(sim::read_request(header, msn));
  }
  for (uint32_t msn = 1; msn <= 500; ++msn) {
    other.send(sim::read_request(read_of(other, 5000), msn));
    ASSERT_EQ(other.next().value().size(), 5014u);
  }
  // The stalled stream goes on when its peer reads.
  size_t bytes = 0;
  while (bytes < 800000) bytes += stalled.next().value().size() - 14;
  EXPECT_EQ(bytes, 800000u);
}

// Proves: 5042-i
TEST(Streams, FloodOfEmptyMessagesDelaysNoOtherStream) {
  SocketPeer flooding, other;
  Bytes flood;
  for (int i = 0; i < 20000; ++i) {
    const Bytes one = sim::frame(tagged(O::kWrite, STag{1}, 0, 0), false);
    flood.insert(flood.end(), one.begin(), one.end());
  }
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop) flooding.write(flood);
  });
  for (uint32_t msn = 1; msn <= 300; ++msn) {
    other.send(sim::read_request(read_of(other, 100), msn));
    EXPECT_EQ(other.next().value_or(Bytes{}).size(), 114u);
  }
  stop = true;
  writer.join();
  EXPECT_TRUE(flooding.dut.events().empty());
}

// Proves: 5040-8.1.1-7
TEST(Streams, APeerInvalidatesNothingThatOthersUse) {
  SocketPeer one, other;
  // Both streams use a region of the same domain.
  ASSERT_EQ(one.dut.post_recv(1, 0, 100), 0);
  one.send(untagged(O::kSendInvalidate, 0, 1, 0, 4, true, other.stag()));
  EXPECT_TRUE(is_terminate(one.all().at(0)));
  EXPECT_TRUE(one.ended());
  EXPECT_EQ(one.completions(1).at(1).status, WcStatus::kRemInvReqErr);
  other.send(sim::read_request(read_of(other, 100), 1));
  EXPECT_EQ(other.next().value().size(), 114u);
  // Nor may a peer invalidate another region of that domain over its own stream.
  SocketPeer third;
  const STag shared = third.key_of(sim::kAllAccess);
  ASSERT_EQ(third.dut.post_recv(1, 0, 100), 0);
  third.send(untagged(O::kSendInvalidate, 0, 1, 0, 4, true, shared));
  EXPECT_TRUE(is_terminate(third.all().at(0)));
  EXPECT_TRUE(third.dut.engine.regions().find(shared));
}

// Once deregistration has returned, no byte changes.
// Proves: 5040-8.1.1-6 4296-3-d 5041-8.3.1-a
TEST(Streams, DeregisteredMemoryDoesNotChange) {
  for (int round = 0; round < 30; ++round) {
    SocketPeer peer({.crc = round % 2 == 1});
    Bytes write = tagged(O::kWrite, peer.stag(), peer.base(), SocketPeer::kTargetSize);
    std::atomic<bool> stop{false};
    std::thread writer([&] {
      for (uint8_t value = 1; !stop; ++value) {
        std::fill(write.begin() + 14, write.end(), std::byte{value});
        peer.send(write);
      }
    });
    std::this_thread::sleep_for((round % 5) * 300us);
    peer.remove_target();
    const std::vector<std::byte> then = peer.dut.memory;
    std::this_thread::sleep_for(5ms);
    EXPECT_EQ(peer.dut.memory, then);
    stop = true;
    writer.join();
    peer.send(write);  // the device's thread may not have handled the Write yet
    const auto sent = peer.all();
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_TRUE(is_terminate(sent[0]));
    EXPECT_EQ(load_be16(&sent[0][18]), 0x1100);
  }
}

// Eight peers and another process add to one cell: the sum is exact, and no value is returned
// twice.
// Proves: 7306-5-a 7306-5.3-a 7306-5.4-2
TEST(Streams, AtomicsAreAtomicToEachOther) {
  constexpr uint32_t kPeers = 8, kEach = 100 * 128;
  auto* cell = static_cast<uint64_t*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(cell, MAP_FAILED);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // The other process: an engine there works on the same memory.
    for (uint32_t i = 0; i < kEach; ++i)
      execute_atomic(reinterpret_cast<std::byte*>(cell), {.add_or_swap = 1});
    _exit(0);
  }
  std::vector<std::vector<uint64_t>> seen(kPeers);
  std::vector<std::thread> threads;
  for (uint32_t number = 0; number < kPeers; ++number) {
    threads.emplace_back([&, number] {
      SocketPeer peer({.depth = 128});
      MemoryRegion* region =
          peer.dut.engine.regions().add(peer.dut.domain, cell, 64, 0, sim::kAllAccess).value();
      for (uint32_t done = 0; done < kEach; done += 128) {
        std::vector<Bytes> requests;
        for (uint32_t i = 1; i <= 128; ++i)
          requests.push_back(sim::atomic_request({.request_id = i,
                                                  .remote_stag = STag{region->key.load()},
                                                  .remote_to = 0,
                                                  .add_or_swap = 1},
                                                 done + i));
        peer.send_all(requests);
        for (uint32_t i = 1; i <= 128; ++i) {
          const auto answer = peer.next();
          if (!answer) return;
          seen[number].push_back(AtomicResponseHeader::decode(&(*answer)[18]).original_value);
        }
      }
      peer.connection->abort();
      EXPECT_EQ(peer.dut.engine.remove_region(*region), 0);
    });
  }
  for (auto& thread : threads) thread.join();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(*cell, uint64_t{kPeers + 1} * kEach);
  std::set<uint64_t> all;
  for (const auto& some : seen) all.insert(some.begin(), some.end());
  EXPECT_EQ(all.size(), uint64_t{kPeers} * kEach);
  munmap(cell, 4096);
}

// More requests than the negotiated depth, while the peer does not read the answers.
// Proves: 5040-5.2.1-b 5040-6.1-f
TEST(Streams, MoreReadsThanNegotiated) {
  for (const bool crc : {false, true}) {
    SocketPeer peer({.crc = crc, .receive_bytes = 4096});
    ASSERT_EQ(peer.dut.post_recv(1, 0, 100), 0);
    const std::vector<std::byte> before = peer.dut.memory;
    std::vector<Bytes> requests;
    for (uint32_t msn = 1; msn <= 200; ++msn) {
      ReadRequestHeader header = read_of(peer, 250000);
      header.source_stag = STag{peer.dut.region->key.load()};
      header.source_to = reinterpret_cast<uint64_t>(peer.dut.memory.data());
      requests.push_back(sim::read_request(header, msn));
    }
    peer.send_all(requests);
    EXPECT_TRUE(eventually([&] { return peer.dut.state() == QpState::kErr; }));
    const auto sent = peer.all();
    ASSERT_FALSE(sent.empty());
    const Bytes& last = sent.back();
    EXPECT_TRUE(is_terminate(last));
    EXPECT_EQ(load_be32(&last[18]), 0x1202C000);
    // The Terminate names a request beyond the negotiated depth.
    const uint32_t msn = load_be32(&last[24 + 10]);
    EXPECT_GT(msn, 4u);
    EXPECT_EQ(std::memcmp(&last[24], requests[msn - 1].data(), 18), 0);
    EXPECT_TRUE(peer.orderly());
    EXPECT_TRUE(peer.ended());
    EXPECT_EQ(peer.dut.events(), std::vector{QpEvent::kFatal});
    EXPECT_EQ(peer.completions(1).at(1).status, WcStatus::kWrFlushErr);
    EXPECT_EQ(peer.dut.memory, before);
  }
}

}  // namespace
}  // namespace uwarp::conformance
