// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the hub tells the two sides of its links to do, and what they report. Plain bytes: one side
// is the hub itself, the other a process behind a SEQPACKET socket.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace soak {

inline constexpr uint32_t kSends = 24;           // of a queue pair
inline constexpr uint32_t kReceives = 8;         // of a queue pair without shared queue
inline constexpr uint32_t kSharedReceives = 64;  // of a side's shared queue
inline constexpr uint32_t kReceiveBytes = 4096;
inline constexpr uint32_t kCells = 8;  // for atomics
inline constexpr size_t kGuard = 64;   // before, between and after the places

/// The memory of one end of a link: slots that requests name, cells, buffers of receives.
struct Layout {
  static constexpr std::array<uint32_t, 16> kSlotBytes = {2048,  2048,  2048,  2048,  2048, 2048,
                                                          2048,  2048,  2048,  2048,  2048, 2048,
                                                          16384, 16384, 16384, 100000};

  static constexpr size_t padded(size_t bytes) { return (bytes + kGuard + 63) / 64 * 64; }
  static constexpr size_t slot(size_t index) {
    size_t offset = kGuard;
    for (size_t i = 0; i < index; ++i) offset += padded(kSlotBytes[i]);
    return offset;
  }
  static constexpr size_t cell(size_t index) { return slot(kSlotBytes.size()) + index * kGuard; }
  static constexpr size_t receive(size_t index) {
    return cell(kCells) + index * padded(kReceiveBytes);
  }
  static constexpr size_t link_bytes() { return receive(kReceives); }
  static constexpr size_t shared_receive(size_t index) {
    return kGuard + index * padded(kReceiveBytes);
  }
  static constexpr size_t shared_bytes() { return shared_receive(kSharedReceives); }
  static constexpr size_t side_bytes(uint32_t links) {
    return shared_bytes() + links * link_bytes();
  }
  static constexpr size_t link(uint32_t index) { return shared_bytes() + index * link_bytes(); }
};

/// Every second link receives through the shared receive queue of its side.
constexpr bool uses_shared_queue(uint32_t link) { return link % 2 == 1; }

/// What the other end needs to reach this one.
struct Address {
  ibv_gid gid;
  uint32_t qpn;
  uint32_t psn;
  uint64_t memory;
  uint32_t rkey;
};

struct Command {
  enum Kind : uint32_t {
    kPrepare,   // to INIT with new keys -> kPrepared
    kConnect,   // to RTS, towards `peer`
    kPost,      // a send request
    kReceive,   // a receive of the link, or of the shared queue
    kError,     // to ERR -> kErrored, after all completions that are in the queue
    kResize,    // a completion queue to `length` entries
    kRegister,  // registers and frees a region of new memory
    kQuit,      // destroys everything -> kGone
  };
  Kind kind;
  uint32_t link;
  uint64_t id;
  uint32_t opcode;  // ibv_wr_opcode
  uint32_t flags;   // ibv_send_flags
  uint32_t length;
  uint32_t rkey;
  uint64_t offset;  // offset in the side's memory
  uint64_t remote;
  uint64_t compare_add;
  uint64_t swap;
  uint32_t imm;
  uint32_t own_region;  // register the local memory for this request only
  Address peer;
};

struct Report {
  enum Kind : uint32_t { kCompletion, kPrepared, kErrored, kRefused, kGone };
  Kind kind;
  uint32_t link;
  uint64_t id;
  uint32_t status;  // ibv_wc_status; for kRefused an errno; for kGone leaked fds and threads
  uint32_t opcode;  // ibv_wc_opcode
  uint32_t length;
  uint32_t imm;
  uint32_t flags;
  uint32_t window_key;
  Address address;
};

}  // namespace soak
