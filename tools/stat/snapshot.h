// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The state of all processes, as read at one moment.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "counters/page_layout.h"

namespace stat_view {

struct Direction {
  uint64_t bytes = 0;
  uint64_t fpdus = 0;
  std::array<uint64_t, uwarp::kMessageKinds> messages{};
  uint64_t all_messages() const;
  bool operator==(const Direction&) const = default;
};

struct Endings {
  uint64_t connections = 0;
  uint64_t fins = 0;
  uint64_t resets = 0;
  uint64_t timeouts = 0;
  uint64_t failures = 0;
  bool operator==(const Endings&) const = default;
};

/// Counts of a queue pair, or of a device: all queue pairs that it has had.
struct Traffic {
  Direction sent;
  Direction received;
  uint64_t waits = 0;
  uint64_t direct = 0;              // Reads and Writes that needed no thread of the peer
  uint64_t direct_unreachable = 0;  // its memory was out of reach
  uint64_t direct_refused = 0;      // a key, or memory of either side, did not permit a copy
  uint64_t flushed_sends = 0;
  uint64_t held = 0;
  uint64_t rnr_timeouts = 0;
  uint64_t dropped = 0;
  uint64_t lost_sends = 0;  // datagrams to a process that could not be reached
  uint64_t refused = 0;     // received with another Q_Key, or by a queue pair not in RTR or RTS
  uint64_t crc_errors = 0;
  uint64_t flushed_receives = 0;
  Endings stream;
  void add(const Traffic& other);
  bool operator==(const Traffic&) const = default;
};

struct Device {
  std::string name;
  std::string link;  // "up", "down" or empty
  uint64_t link_downs = 0;
  Traffic traffic;  // of destroyed and live queue pairs
};

struct QueuePair {
  uint32_t number = 0;
  std::string device;
  std::string state;
  uint64_t created_ns = 0;
  uint64_t connected_ns = 0;
  uint32_t send_depth = 0;
  uint32_t receive_depth = 0;
  uint32_t send_queue = 0;
  uint32_t receive_queue = 0;
  bool rdma_cm = false;
  bool crc = false;
  bool shared_memory = false;  // messages arrive through shared memory, not TCP
  bool shared_receive = false;
  uint16_t mulpdu = 0;
  uint16_t ord = 0;
  uint16_t ird = 0;
  std::string local;  // address and port; empty if it never was connected
  std::string peer;
  std::string peer_host;
  std::string identity;      // that the peer has proved by TLS; empty: not protected
  uint64_t outstanding = 0;  // requests posted and not completed
  Traffic traffic;
};

struct CompletionQueue {
  uint32_t index = 0;
  std::string device;
  uint32_t capacity = 0;
  uint64_t created_ns = 0;
  uint64_t pushed = 0;
  uint64_t polled = 0;
  uint64_t failed = 0;
  uint64_t events = 0;
  uint64_t overruns = 0;
  uint64_t waiting() const { return pushed > polled ? pushed - polled : 0; }
};

struct Region {
  std::string device;
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t access = 0;
  uint64_t created_ns = 0;
};

struct Process {
  int pid = 0;  // in our pid namespace
  uint32_t uid = 0;
  uint32_t own_pid = 0;  // in its own pid namespace
  uint64_t instance = 0;
  std::string program;
  std::string release;
  bool roce = false;
  uint64_t started_ns = 0;
  std::vector<Device> devices;
  std::vector<QueuePair> queue_pairs;
  std::vector<CompletionQueue> completion_queues;
  std::vector<Region> regions;
  /// Objects for which the page had no room; and slots that changed at each reading.
  uint64_t homeless = 0;
  uint64_t unsettled = 0;
};

/// A process that has a page which cannot be read.
struct Unreadable {
  int pid = 0;
  std::string why;
};

/// Processes of a user that are not shown, because the user has more of something than is looked
/// at.
struct LeftOut {
  uint32_t uid = 0;
  size_t processes = 0;
};

struct Snapshot {
  uint64_t time_ns = 0;       // CLOCK_REALTIME
  uint64_t monotonic_ns = 0;  // for rates
  std::vector<Process> processes;
  std::vector<Unreadable> unreadable;
  std::vector<LeftOut> left_out;
};

/// Names of the kinds of messages in JSON, in the order of MessageKind.
extern const std::array<const char*, uwarp::kMessageKinds> kMessageNames;

}  // namespace stat_view
