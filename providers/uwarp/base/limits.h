// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Every limit of the engine by name, with the reason for its value: RFC 5040-8.1.2-2, 5042-g. A
// device reports them to applications; nothing else in the engine invents a bound of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace uwarp {

// --- Verbs objects (reported by query_device) ---------------------------------------------------

// A QP number is 16 bits of rendezvous port and 8 bits of slot on it: 256 QPs per port. 65536
// QPs need 256 ports, few enough for any ephemeral port range.
inline constexpr uint32_t kQpsPerPort = 256;
inline constexpr uint32_t kMaxQp = 65536;
inline constexpr uint32_t kMaxCq = 65536;
inline constexpr uint32_t kMaxPd = 65536;
inline constexpr uint32_t kMaxAh = 65536;
inline constexpr uint32_t kMaxSrq = 16384;
inline constexpr uint32_t kMaxMr = 262144;
/// Of the engine itself, for frames of datagrams: none of these is an application's.
inline constexpr uint32_t kMaxOwnMr = 64;
inline constexpr uint32_t kMaxMw = 262144;

// Rings are allocated at create time: 16384 entries of 32 SGEs (16 bytes each) are 8 MiB.
inline constexpr uint32_t kMaxQpWr = 16384;
inline constexpr uint32_t kMaxSrqWr = 16384;
inline constexpr uint32_t kMaxSge = 32;
inline constexpr uint32_t kMaxSrqSge = 32;
inline constexpr uint32_t kMaxSgeRead = kMaxSge;  // the sink of a Read scatters like a receive

// A CQ is meant to take every WR of many QPs: 4194304 is 128 full QPs with both queues.
inline constexpr uint32_t kMaxCqe = 4194304;
static_assert(kMaxCqe == 128u * 2u * kMaxQpWr);

// Inline data is kept in the send ring beside the SGEs: 32 SGEs of 16 bytes take the same room.
inline constexpr uint32_t kMaxInline = 512;
static_assert(kMaxInline == kMaxSge * 16);
// Granted even if less was asked, as adapters do: rsockets may ask for none and then insists on 4.
inline constexpr uint32_t kLeastInline = 64;

// --- Reads and atomics --------------------------------------------------------------------------

// rdma_cm carries depths in 8 bits and truncates, so the value stays below 256.
inline constexpr uint32_t kMaxRdAtom = 128;
// One more than that for the Reads that acknowledge (roce persona).
inline constexpr uint32_t kMaxReadDepth = kMaxRdAtom + 1;
// Largest depth the enhanced MPA word can carry: 14 bits, with all ones reserved. RFC 6581 9.1.
inline constexpr uint16_t kDepthWireMax = 0x3FFE;

// --- Messages -----------------------------------------------------------------------------------

// Applications keep lengths in signed 32-bit numbers; DDP could carry 2^32 - 1. RFC 5041-5.2-b.
inline constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 31;
inline constexpr uint64_t kMaxMrBytes = ~uint64_t{0};
// Device memory of one context is memory of the process: room for what applications put there
// (counters, flags, small rings), and not enough to do harm.
inline constexpr uint64_t kMaxDeviceMemoryBytes = uint64_t{64} << 20;

// --- Connections --------------------------------------------------------------------------------

// rdma_conn_param has 8 bits for the length of private data.
inline constexpr size_t kPrivateDataAppMax = 255;
// MPA allows 512 bytes; in an enhanced frame the first 4 of them are the IRD/ORD word.
inline constexpr size_t kPrivateDataWireMax = 512;
inline constexpr size_t kPrivateDataEnhancedMax = kPrivateDataWireMax - 4;
inline constexpr uint32_t kMaxBacklog = 4096;  // SOMAXCONN of current kernels

// --- Framing ------------------------------------------------------------------------------------

inline constexpr uint32_t kUlpduMax = 65535;  // ULPDU_Length has 16 bits. RFC 5044-4.1-e
// An override below this would spend more on headers than on payload.
inline constexpr uint32_t kUlpduMin = 128;

// --- Devices ------------------------------------------------------------------------------------

inline constexpr uint8_t kPort = 1;               // the one that each device has
inline constexpr uint32_t kGidTableEntries = 16;  // libibverbs asks for a fixed table per port

}  // namespace uwarp
