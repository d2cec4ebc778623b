// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What an adapter reports of itself, and which limits it enforces. Without UWARP_PROFILE these are
// uwarp's own (base/limits.h); a profile is a text file with one "key = value" a line. Not JSON: it
// is read inside processes of others, where a parser of a hundred lines is better than a library,
// and a complaint can name the line.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/limits.h"

namespace uwarp {

enum class Persona : uint8_t { kIwarp, kRoce };

/// Which operations are atomic with each other. kByPersona is what uwarp says without a profile.
enum class AtomicCap : uint8_t { kNone, kHca, kGlob, kByPersona };

/// Names of the fields are those of ibv_device_attr, ibv_port_attr and ibv_qp_cap.
struct AdapterProfile {
  std::optional<Persona> persona;  // unless UWARP_PERSONA says another one

  uint32_t max_qp = kMaxQp;
  uint32_t max_qp_wr = kMaxQpWr;
  uint32_t max_sge = kMaxSge;
  uint32_t max_sge_rd = kMaxSgeRead;
  uint32_t max_inline_data = kMaxInline;
  uint32_t max_qp_rd_atom = kMaxRdAtom;       // of the peer, here
  uint32_t max_qp_init_rd_atom = kMaxRdAtom;  // of this side, at the peer
  uint32_t max_cq = kMaxCq;
  uint32_t max_cqe = kMaxCqe;
  uint32_t max_pd = kMaxPd;
  uint32_t max_ah = kMaxAh;
  uint32_t max_mr = kMaxMr;
  uint64_t max_mr_size = kMaxMrBytes;
  uint32_t max_mw = kMaxMw;
  uint32_t max_srq = kMaxSrq;
  uint32_t max_srq_wr = kMaxSrqWr;
  uint32_t max_srq_sge = kMaxSrqSge;
  uint64_t max_dm_size = kMaxDeviceMemoryBytes;
  uint32_t max_msg_sz = kMaxMessageBytes;
  uint8_t max_mtu = kMtu4096;  // an ibv_mtu
  AtomicCap atomic_cap = AtomicCap::kByPersona;

  // In no application's table: some change their behaviour for vendors and parts they know.
  uint32_t vendor_id = 0x757770;
  uint32_t vendor_part_id = 0x5757;
  uint32_t hw_ver = 1;
  std::string fw_ver;  // empty: uwarp's release
  std::string hca_type = "uwarp";
  std::string board_id = "uwarp";
  // TCP has no lanes: a legal pair of codes, since tools call everything else invalid.
  uint8_t active_width = kWidth4x;
  uint8_t active_speed = kSpeedEdr;

  /// Files below hw_counters, and which of kCounterNames each one shows; an empty name: always 0.
  /// Without any: uwarp's own counters under their own names.
  std::vector<std::pair<std::string, std::string>> hw_counters;

  /// Of the peer, with the Read that acknowledges (roce persona).
  uint16_t max_read_depth() const { return static_cast<uint16_t>(max_qp_rd_atom + 1); }
  bool has_atomics() const { return atomic_cap != AtomicCap::kNone; }
  /// Bytes of the largest MTU.
  uint32_t mtu_bytes() const { return 128u << max_mtu; }

  static constexpr uint8_t kMtu4096 = 5;
  static constexpr uint8_t kWidth4x = 2;
  static constexpr uint8_t kSpeedEdr = 32;

  /// Changes what the lines of `text` say. Returns the first thing that is wrong, as "LINE: what";
  /// empty: nothing is. What uwarp cannot do is wrong.
  std::string parse(std::string_view text);

  /// fw_ver, or uwarp's release.
  std::string firmware() const;
  /// As the kernel's file ports/1/rate has it.
  std::string rate() const;
};

/// uwarp's counters, in the order of the table in sysfs/tree_files.cc.
inline constexpr std::string_view kCounterNames[] = {
    "port_xmit_data",
    "port_rcv_data",
    "port_xmit_packets",
    "port_rcv_packets",
    "unicast_xmit_packets",
    "unicast_rcv_packets",
    "multicast_xmit_packets",
    "multicast_rcv_packets",
    "port_xmit_discards",
    "port_rcv_errors",
    "port_xmit_wait",
    "symbol_error",
    "link_downed",
    "link_error_recovery",
    "OutRdmaSends",
    "OutRdmaWrites",
    "OutRdmaReads",
    "OutRdmaAtomics",
    "OutRdmaImmediates",
    "InRdmaSends",
    "InRdmaWrites",
    "InRdmaReads",
    "InRdmaAtomics",
    "InRdmaImmediates",
    "direct_requests",
    "direct_unreachable",
    "direct_refused",
    "connections",
    "peer_closes",
    "peer_resets",
    "peer_timeouts",
    "failed_qps",
    "terminates_sent",
    "terminates_received",
    "crc_errors",
    "held_receives",
    "rnr_timeouts",
    "dropped_receives",
    "dropped_sends",
    "refused_datagrams",
    "flushed_sends",
    "flushed_receives",
};

/// One key of a profile.
struct ProfileKey {
  const char* name;
  const char* values;  ///< words with | between them; "text"; empty: numbers
  /// Stores what the text means. False: it is no such value.
  bool (*take)(const ProfileKey&, AdapterProfile&, std::string_view text);
  uint64_t low = 0, high = 0;  ///< the numbers that are taken
};

/// All keys but hw_counter.NAME.
std::span<const ProfileKey> profile_keys();

}  // namespace uwarp
