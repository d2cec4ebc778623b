// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Every figure that decides when something happens, and none that decides what. Each names the
// rows of bench/run that move when it is changed; docs/performance.md has what each rule brings,
// measured by switching it off alone (bench/ablate).
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

// --- When a post waits for more (stream/post_coalescer.h). Rows: 8 B Writes and Sends per second.

/// Longest time between the end of one post and the next that counts as "right after" ...
UWARP_FIGURE(uint64_t, kDenseGapNs, 500);
/// ... where a system call takes some tenths of a microsecond. Where it takes more, both what is
/// saved and what the application does between two posts take longer: so many of them.
UWARP_FIGURE(uint64_t, kDenseCalls, 2);
/// So many posts right after each other go out at once before others wait.
UWARP_FIGURE(uint32_t, kDenseRun, 4);
/// What is remembered of a run; a pause halves it.
UWARP_FIGURE(uint32_t, kLongestRun, 64);
/// What waits at most: messages, and bytes of payload.
UWARP_FIGURE(uint32_t, kWaitingMessages, 128);
UWARP_FIGURE(uint64_t, kWaitingBytes, 1 << 20);
/// What is larger goes at once, with what waits: it is worth a system call of its own.
UWARP_FIGURE(uint64_t, kLargePostBytes, 64 << 10);
/// How long a post is kept back at most, if no thread polls.
UWARP_FIGURE(uint64_t, kPostWaitNs, 250'000);
/// A poll that comes so soon after a post has kept it waiting for nothing that matters: what is
/// outstanding takes longer. Rows: Reads and atomics of 8 B, 16 outstanding.
UWARP_FIGURE(uint64_t, kPromptNs, 4000);
/// So many posts go at once, at first and after one that waited for longer: each time that it
/// happens twice as many.
UWARP_FIGURE(uint32_t, kFewestAtOnce, 16);
UWARP_FIGURE(uint32_t, kMostAtOnce, 4096);

// --- What a poll looks at (stream/poller.h, stream/poll_group.h). Rows: half round trips; 16 to
// 10,000 queue pairs.

/// Direct reads between two looks at the epoll set ...
UWARP_FIGURE(uint32_t, kPollsPerPass, 32);
/// ... and while there are streams that are not read directly.
UWARP_FIGURE(uint32_t, kPollsPerMixedPass, 8);
/// Streams that are read without asking epoll: always so many, as a read of an empty socket costs
/// about as much as an epoll_wait that finds nothing ...
UWARP_FIGURE(size_t, kDirectStreams, 4);
/// ... and as many busy ones, where most reads find something: while the group has no more
/// streams than kSomeStreams, so that these are a good part of all.
UWARP_FIGURE(size_t, kDirectOfSome, 16);
UWARP_FIGURE(size_t, kSomeStreams, 32);
/// Empty reads in a row after which a stream gives its direct place up.
UWARP_FIGURE(uint32_t, kIdleTurns, 64);
/// After so many looks of pollers that found something, a stream's data makes no events in epoll
/// any more. Rows: half round trip 8 B, 256 B.
UWARP_FIGURE(uint32_t, kFindsBeforeMuted, 64);
/// ... until so many bytes are unread: a thread that looks all the time leaves fewer.
UWARP_FIGURE(int, kMutedBytes, 256 << 10);
/// A thread that posts so much at a time does not poll for a while ...
UWARP_FIGURE(uint64_t, kLookBytes, 64 << 10);
/// ... which counts as a poll for so many bytes: they take half as long as the helper thread
/// allows between two polls. Rows: 64 KiB and 1 MiB Writes.
UWARP_FIGURE(uint64_t, kBytesPerPoll, 128 << 10);

// --- When a poller gives its core away (stream/poller.h, progress/cpu_contention.h). Rows: 64 KiB
// with one of two cores busy; one core for both.

/// Polls on an empty queue in a row, on the only processor, after which a yield is not enough: the
/// scheduler runs the thread that has run less, for as long as a whole time slice.
UWARP_FIGURE(uint32_t, kYieldsPerNap, 4);
UWARP_FIGURE(uint64_t, kNapNs, 100'000);
/// One poll of so many looks whether the core is wanted, which takes two system calls ...
UWARP_FIGURE(uint32_t, kPollsPerLook, 1024);
/// ... and of so many while it is, as each poll may be a sleep then.
UWARP_FIGURE(uint32_t, kPollsPerLookIfWanted, 128);
/// Others want the core when the scheduler has taken it away for so much of the time between two
/// looks: what the kernel does for itself takes less. Time without a switch was lost to the host
/// of a virtual machine, where giving way does not help.
UWARP_FIGURE(uint64_t, kLossNs, 1'000'000);
/// For so long it is remembered. A thread that gives way sleeps most of the time, so that the time
/// it loses says nothing any more: it is renewed by one switch for so much time ...
UWARP_FIGURE(uint64_t, kContentionNs, 20'000'000);
/// ... which the looks of the helper thread (every 4 ms) and the kernel's own work do not make.
UWARP_FIGURE(uint64_t, kSwitchNs, 2'000'000);

// --- How a thread that waits looks before it sleeps (progress/spin_budget.h, progress.cc). Rows:
// one sleeps in ibv_get_cq_event; target makes no verbs call.

/// A yield that takes longer than this has run another thread that needs the core, unless the
/// processor itself stood still, as that of a virtual machine does ...
UWARP_FIGURE(uint64_t, kYieldNs, 50'000);
/// ... and there is no spinning for a while: twice as long each time, between these bounds.
UWARP_FIGURE(uint64_t, kSpinPauseNs, 20'000'000);
UWARP_FIGURE(uint64_t, kLongestSpinPauseNs, 2'000'000'000);
/// While a thread spins it looks so often at what it served last before it asks epoll, and finds
/// something there so often before it looks after the rest.
UWARP_FIGURE(uint32_t, kLooksPerTurn, 4);
UWARP_FIGURE(uint32_t, kFindsPerSpin, 64);

// --- Where the helper thread runs (progress/helper_affinity.h). Row: ib_write_lat, 8 B.

/// So many wake-ups in a row by another core, each so soon after the one before, and after a time
/// of which the thread slept three quarters at least ...
UWARP_FIGURE(uint32_t, kMisses, 8);
UWARP_FIGURE(uint64_t, kSoonNs, 250'000);
/// ... move the thread, but not more often than this.
UWARP_FIGURE(uint64_t, kMovePauseNs, 20'000'000);
/// As long as none is a miss, only one of so many wake-ups is looked at.
UWARP_FIGURE(uint32_t, kWakeUpsPerLook, 4);
/// Of a turn of the helper thread; the least that the kernel grants.
UWARP_FIGURE(uint64_t, kHelperTurnNs, 100'000);

// --- How much goes in one call. Rows: streams of 64 KiB and 1 MiB.

/// Most bytes that one turn reads or sends before the caller serves its other sources.
UWARP_FIGURE(size_t, kTurnBytes, size_t{1} << 20);
/// Bytes that a posting thread sends at most before it leaves the rest to progress: several times
/// the largest send buffer of a default Linux, so that the socket ends the turn first.
UWARP_FIGURE(size_t, kPostBytes, size_t{16} << 20);
/// What the kernel takes beyond what the peer's window admits. By default it takes megabytes, and
/// what has waited behind so much has left the cache when the peer reads it. Where system calls are
/// dear, fewer of them are worth more.
UWARP_FIGURE(int, kUnsentBytes, 256 << 10);
/// Shorter round trips than this are no place for pacing, whose timers take some 50 us.
UWARP_FIGURE(uint32_t, kPacedRoundTripUs, 100);

/// A payload with at least this much missing is received straight into its place.
UWARP_FIGURE(uint32_t, kDirectBytes, 2048);
/// Behind a direct payload: its tail, pad, CRC and the next header; for a message of 64 KiB also
/// its second segment of some twenty bytes, between the two.
UWARP_FIGURE(size_t, kBehindDirect, 128);
/// The same behind a run of segments, where a megabyte's last segment is of some 300 bytes.
UWARP_FIGURE(size_t, kBehindRun, 512);
/// After a large segment another one is expected, for so many segments, or will come after the
/// short end of this message, of which only so much goes by way of the staging buffer: a copy less
/// of the rest is worth a second call.
UWARP_FIGURE(uint8_t, kExpectLarge, 2);
UWARP_FIGURE(size_t, kBeforeDirect, 2048);

/// For so long a datagram waits for a receive, with all behind it on its trunk: a receiver that
/// posts in a loop is late by less. Row: ib_send_bw -c UD (what is lost there ends it).
UWARP_FIGURE(uint64_t, kReceiveGraceNs, 1'000'000);
/// The same while all that has come was for the same queue pair, so that no other one waits: always
/// on an unreliable connection (UC), where a message waits once until another one has been
/// received. Of 16 runs of ib_send_bw -c UC on two busy cores (both directions, few receives, one
/// core) 9 lost messages without it, 7 with 1 ms, 1 with 10 ms, none with this.
UWARP_FIGURE(uint64_t, kSoleReceiverGraceNs, 100'000'000);

/// A piece of at least so many bytes is copied once, by the reader out of the writer's memory,
/// where both are on one host; smaller ones twice, by way of the ring. Rows: streams on one host.
UWARP_FIGURE(size_t, kPullBytes, size_t{16} << 10);

/// So many polls in vain after which a peer on this host that has not read what it was sent is
/// nudged; twice as many each time. Row: ib_write_lat 8 B, roce.
UWARP_FIGURE(uint32_t, kLooksPerNudge, 256);

// --- What the machine is like, measured once.

/// A system call that takes longer by itself is dear: fewer of them are worth more than what they
/// are for (User Mode Linux, some sandboxes). Rows: all under User Mode Linux.
UWARP_FIGURE(uint64_t, kDearCallNs, 2000);
/// A clock that takes longer is a system call: the processor's counter is asked first.
UWARP_FIGURE(uint64_t, kDearClockNs, 200);

}  // namespace uwarp::tuning
