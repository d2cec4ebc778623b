// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Every figure that decides when something happens, and none that decides what. "Rows" are the rows
// of bench/run that change with the figures. docs/performance.md has what each rule brings,
// measured with this rule alone switched off (bench/ablate).
//
// A build with UWARP_TUNABLE takes other figures from the environment: UWARP_TUNE=kName=value,...
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef UWARP_TUNABLE
#include <cstdlib>
#include <cstring>

namespace uwarp::tuning {
template <typename Figure>
Figure figure(const char* name, Figure usual) {
  const char* at = std::getenv("UWARP_TUNE");
  const size_t length = std::strlen(name);
  for (; at != nullptr; at = std::strchr(at, ','), at = at == nullptr ? nullptr : at + 1)
    if (std::strncmp(at, name, length) == 0 && at[length] == '=')
      return static_cast<Figure>(std::strtoull(at + length + 1, nullptr, 0));
  return usual;
}
}  // namespace uwarp::tuning
#define UWARP_FIGURE(type, name, usual) inline const type name = figure<type>(#name, usual)
#else
#define UWARP_FIGURE(type, name, usual) inline constexpr type name = usual
#endif

namespace uwarp::tuning {

// --- When a post waits for more (stream/stream.h). Rows: 8 B Writes and Sends per second.

/// Longest time between the end of one post and the next that counts as "right after" ...
UWARP_FIGURE(uint64_t, kDenseGapNs, 500);
/// ... plus the duration of this many system calls. Where calls take longer, waiting saves more,
/// and the application takes longer between two posts.
UWARP_FIGURE(uint64_t, kDenseCalls, 2);
/// Number of posts right after each other that go out at once before later ones wait. After a pause
/// half of them do.
UWARP_FIGURE(uint32_t, kDenseRun, 4);
/// Most messages that wait; their payload goes in one turn (kPassBytes).
UWARP_FIGURE(uint32_t, kWaitingMessages, 128);
/// A larger post goes at once, with what waits: it is worth a system call of its own. A thread that
/// posts this much at a time does not poll for a while, and looks for received data then.
UWARP_FIGURE(uint64_t, kLargePostBytes, 64 << 10);
/// Longest time that a post waits if no thread polls.
UWARP_FIGURE(uint64_t, kPostWaitNs, 250'000);
/// If the poll comes this soon after the post, the wait did no harm: the answers take longer. Rows:
/// Reads and atomics of 8 B, 16 outstanding.
UWARP_FIGURE(uint64_t, kPromptNs, 4000);
/// Number of posts that go at once, at first and after a post that waited for longer than that. It
/// doubles each time.
UWARP_FIGURE(uint32_t, kFewestAtOnce, 16);
UWARP_FIGURE(uint32_t, kMostAtOnce, 4096);

// --- What a poll looks at (stream/poller.h, stream/poller.h). Rows: half round trips; 16 to
// 10,000 queue pairs.

/// Polls between two looks at the epoll set ...
UWARP_FIGURE(uint32_t, kPollsPerPass, 32);
/// ... and while there are streams that are not read directly.
UWARP_FIGURE(uint32_t, kPollsPerMixedPass, 8);
/// Streams of a group that are always read without asking epoll: a read of an empty socket costs
/// about as much as an epoll_wait that finds nothing.
UWARP_FIGURE(size_t, kDirectStreams, 4);
/// Looks of pollers that found something after which a stream's data makes no events in epoll any
/// more. Rows: half round trip 8 B, 256 B ...
UWARP_FIGURE(uint32_t, kFindsBeforeMuted, 64);
/// ... except when this many bytes are unread: a thread that looks all the time leaves fewer.
UWARP_FIGURE(int, kMutedBytes, 256 << 10);
/// Each such number of bytes that a call sends or receives counts as a poll: it takes half of the
/// time that the helper thread allows between two polls. Rows: 64 KiB and 1 MiB Writes and Reads.
UWARP_FIGURE(uint64_t, kBytesPerPoll, 128 << 10);

// --- When a poller gives its core away (stream/poller.h, stream/poller.h). Rows: 64 KiB
// with one of two cores busy; one core for both.

/// Polls on an empty queue in a row, on the only processor, after which a yield is not enough: the
/// scheduler runs the thread that has run less, for as long as a whole time slice.
UWARP_FIGURE(uint32_t, kYieldsPerNap, 4);
UWARP_FIGURE(uint64_t, kNapNs, 100'000);
/// Polls between two looks whether another thread wants the core, each of two system calls.
UWARP_FIGURE(uint32_t, kPollsPerCheck, 1024);
/// Others want the core when the scheduler has taken it away for this time between two looks: the
/// kernel's own work takes less. Time that was lost without a switch went to the host of a virtual
/// machine, where giving way does not help.
UWARP_FIGURE(uint64_t, kLossNs, 1'000'000);
/// For this time a thread goes by what it has learnt of the scheduler: a poller gives its core away
/// because other threads want it, the helper thread stays on its core, and no thread spins.
UWARP_FIGURE(uint64_t, kBelievedNs, 20'000'000);
/// That others want the core is renewed while there is at least one switch in this time: the looks
/// of the helper thread (every 4 ms) and the kernel's own work make fewer. The time that is lost
/// says nothing then, as a thread that gives way sleeps most of the time.
UWARP_FIGURE(uint64_t, kSwitchNs, 2'000'000);
/// A thread that has served the sockets for this long in one go has probably lost its core, or
/// copies large messages, for 100 to 200 us each MiB. With 250 us 1,000 pollers on two cores come
/// to nothing.
UWARP_FIGURE(uint64_t, kHeldTurnNs, 20'000);

// --- How a thread that waits looks before it sleeps (progress/progress.h, progress.cc). Rows:
// one sleeps in ibv_get_cq_event; target makes no verbs call.

/// A yield that takes longer than this has run another thread that needs the core for whole time
/// slices, unless the processor itself stood still, as that of a virtual machine does. A peer that
/// shares the core gives it back sooner: its copy of a message of 1 MiB takes 100 to 200 us ...
UWARP_FIGURE(uint64_t, kYieldNs, 500'000);
/// ... and then no thread spins for a while: for kBelievedNs, and each time twice as long, up to
/// this.
UWARP_FIGURE(uint64_t, kLongestSpinPauseNs, 2'000'000'000);
/// Looks of a spinning thread at what it served last, for one at epoll; and how many of them may
/// find something before it ends the spin to serve the rest.
UWARP_FIGURE(uint32_t, kPollsPerEpoll, 4);
UWARP_FIGURE(uint32_t, kFindsPerSpin, 64);

// --- Where the helper thread runs (progress/progress.h). Row: ib_write_lat, 8 B.

/// The helper thread moves to the core that wakes it after this many wake-ups in a row by another
/// core, if each comes this soon after the one before, and it slept three quarters of that time;
/// but not again within kBelievedNs.
UWARP_FIGURE(uint32_t, kMisses, 8);
UWARP_FIGURE(uint64_t, kSoonNs, 250'000);
/// As long as the thread's own core wakes it, it looks only at one of this many wake-ups.
UWARP_FIGURE(uint32_t, kWakeUpsPerCheck, 4);
/// Of the last eight times that threads stopped polling something had come so often before the
/// helper thread noticed it: it serves for kBelievedNs although they poll. Row: ib_write_lat 8 B,
/// roce.
UWARP_FIGURE(int, kLateFinds, 2);
/// Time slice of the helper thread: the shortest that the kernel grants.
UWARP_FIGURE(uint64_t, kHelperTurnNs, 100'000);

// --- How much goes in one call. Rows: streams of 64 KiB and 1 MiB.

/// Most bytes that one turn reads or sends before the caller serves its other sources, or leaves
/// the rest to progress. RFC 5042-i.
UWARP_FIGURE(size_t, kPassBytes, size_t{1} << 20);
/// Bytes that the kernel takes beyond the window of a peer that is not far. By default it takes
/// megabytes, and what has waited behind them has left the cache when the peer reads it. Not set
/// where system calls are dear, as it makes more of them.
UWARP_FIGURE(int, kUnsentBytes, 256 << 10);
/// Peers with shorter round trips are near. Congestion control that paces is not used for them: its
/// timers take some 50 us.
UWARP_FIGURE(uint32_t, kNearRoundTripUs, 100);

/// A payload of which at least this much is missing is received straight into its place: to copy
/// less than this is cheaper than a call of its own.
UWARP_FIGURE(uint32_t, kDirectBytes, 2048);
/// Room in the staging buffer behind a direct payload: for its tail, pad, CRC and the next header;
/// for a large message also for its last segment, of some 20 bytes (64 KiB) or 300 (1 MiB).
UWARP_FIGURE(size_t, kBehindDirect, 512);
/// For this many segments after a large one another large one is expected. A poller gives its core
/// away only then (above), and only kDirectBytes of it are read into the staging buffer. Row: half
/// round trip of 64 KiB.
UWARP_FIGURE(uint8_t, kExpectLarge, 2);

/// How long a datagram waits for a receive, with all behind it on its trunk: a receiver that posts
/// in a loop is late by less. Row: ib_send_bw -c UD, which ends if a datagram is lost.
UWARP_FIGURE(uint64_t, kReceiveGraceNs, 1'000'000);
/// The same while all that has come was for one queue pair, so that no other one waits: always on
/// an unreliable connection (UC), where a message waits once until another one has been received.
/// Of 16 runs of ib_send_bw -c UC on two busy cores (both directions, few receives, one core) 9
/// lost messages without it, 7 with 1 ms, 1 with 10 ms, none with this.
UWARP_FIGURE(uint64_t, kSoleReceiverGraceNs, 100'000'000);

/// Smallest piece that the reader copies out of the writer's memory, where both are on one host,
/// and smallest Read or Write that the requester copies by itself as a matter of course. Smaller
/// pieces are copied twice, by way of the ring. Rows: streams on one host.
UWARP_FIGURE(size_t, kPullBytes, size_t{16} << 10);
/// So many small Reads or Writes that wait are sent to a thread of the peer instead: from 2 on it
/// gets through them sooner, once it is awake. Row: `verbs_bench qps --all`.
UWARP_FIGURE(uint32_t, kShortList, 4);
/// The same for large ones, where two copies take less time than one; and so many large ones in a
/// row wait until the ring is empty.
UWARP_FIGURE(uint32_t, kCopiedAtOnce, 32);
/// Behind one that could not be copied so many are not tried: as a rule its key never can be.
UWARP_FIGURE(uint32_t, kSentUntried, 256);

/// Polls in vain after which a peer on this host that has not read what it was sent is woken
/// (RingCarrier::nudge()); twice as many each time. Row: ib_write_lat 8 B, roce.
UWARP_FIGURE(uint32_t, kPollsPerNudge, 256);

// --- What the machine is like, measured once.

/// A system call that takes longer than this is dear (User Mode Linux, some sandboxes): rules that
/// cost more calls are switched off. Rows: all under User Mode Linux.
UWARP_FIGURE(uint64_t, kDearCallNs, 2000);
/// A clock that takes longer than this is a system call: the processor's counter is read first.
UWARP_FIGURE(uint64_t, kDearClockNs, 200);

}  // namespace uwarp::tuning
