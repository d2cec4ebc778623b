// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// All UWARP_* environment variables: one table (settings.cc) that is parsed once into this struct
// and printed as the text of `uwarp-run --help` and of the manual page. Nothing else reads them.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/adapter_profile.h"

namespace uwarp {

// Prefixes of IP addresses, and the list of peers that may connect (UWARP_ALLOW).

/// An address as 16 bytes, IPv4 in its mapped form (RFC 4291 2.5.5.2).
using AddressBytes = std::array<uint8_t, 16>;

/// Numeric text of either family, without a zone; nullopt if it is none.
std::optional<AddressBytes> read_address(std::string_view text);

class AddressPrefix {
 public:
  /// "192.0.2.7", "192.0.2.0/24", "2001:db8::/32". Bits behind the prefix have to be zero: else it
  /// is probably not what was meant.
  static std::optional<AddressPrefix> parse(std::string_view text);

  bool contains(const AddressBytes& address) const;
  friend bool operator==(const AddressPrefix&, const AddressPrefix&) = default;

 private:
  AddressPrefix(const AddressBytes& bytes, unsigned bits) : bytes_(bytes), bits_(bits) {}

  AddressBytes bytes_;
  unsigned bits_;
};

class AllowList {
 public:
  /// Allows every address.
  AllowList() = default;
  /// Allows no address.
  static AllowList none();
  /// Prefixes and id:IDENTITY, separated by commas; empty text allows every peer. Where there are
  /// both, a peer needs one of each.
  static std::optional<AllowList> parse(std::string_view text);

  bool allows(const AddressBytes& address) const;
  /// That a peer has proved by TLS.
  bool allows(std::string_view identity) const;
  bool allows_all() const { return !prefixes_ && identities_.empty(); }
  bool names_identities() const { return !identities_.empty(); }
  friend bool operator==(const AllowList&, const AllowList&) = default;

 private:
  std::optional<std::vector<AddressPrefix>> prefixes_;
  std::vector<std::string> identities_;  // none: all
};

enum class CmOwner : uint8_t { kUwarp, kKernel };
enum class CallCost : uint8_t { kMeasured, kCheap, kDear };
enum class SharedCopies : uint8_t { kMeasured, kOne, kTwo };
/// What uwarp-stat and the user see of the counters.
enum class StatShown : uint8_t { kNothing, kWhileRunning, kAlsoAtEnd };

/// Where verbs' 32 bits stand among the 8 bytes of Immediate Data (RFC 7306 6 does not say).
enum class ImmediateHalf : uint8_t { kFirst, kLast };

/// kNotUnderstood: no connection can be made, as protection may have been meant.
enum class TlsMode : uint8_t { kOff, kPsk, kCert, kNotUnderstood };

/// TCP ports from `low` to `high`, both included. Empty (no restriction) if both are 0.
struct PortRange {
  uint16_t low = 0;
  uint16_t high = 0;
  bool empty() const { return high == 0; }
  friend bool operator==(PortRange, PortRange) = default;
};

/// Values in force. Meaning, range and default of each: the table in settings.cc. Zero means
/// "not limited" or "automatic" where the table says so.
struct Settings {
  std::string log;                   // UWARP_LOG: empty is off
  bool advice = true;                // lines of advise() on stderr; UWARP_LOG=0 forbids them
  std::vector<std::string> netdevs;  // UWARP_NETDEVS: empty is all
  Persona persona = Persona::kIwarp;
  std::string profile;        // UWARP_PROFILE: empty is uwarp's own
  AdapterProfile adapter;     // ... as its file says
  bool profile_valid = true;  // or else no device can be opened
  bool shared_memory = true;
  bool roce_ack = true;
  CmOwner cm = CmOwner::kUwarp;
  std::string host_sysfs;  // UWARP_HOST_SYSFS
  /// The roce persona promises acknowledged completions.
  bool acknowledged() const { return persona == Persona::kRoce && roce_ack; }
  bool crc = false;
  ImmediateHalf immediate = ImmediateHalf::kFirst;
  bool af_ib = false;
  uint32_t fpdu_bytes = 0;  // ULPDU bytes; 0: automatic
  uint32_t mpa_revision = 2;
  uint32_t mpa_timeout_ms = 0;
  uint32_t connect_timeout_ms = 0;
  uint32_t rnr_timeout_ms = 0;
  uint32_t peer_timeout_ms = 0;  // 0: from the QP's timeout and retry count
  uint32_t spin_us = 0;
  CallCost calls = CallCost::kMeasured;
  SharedCopies copies = SharedCopies::kMeasured;
  PortRange port_range;
  uint32_t multicast_port = 0;
  AllowList allow;              // UWARP_ALLOW: peers that may connect
  TlsMode tls = TlsMode::kOff;  // UWARP_TLS
  std::string tls_psk, tls_cert, tls_key, tls_ca;
  int32_t port_offset = 0;
  std::string congestion;  // empty: the system's
  uint32_t sndbuf_bytes = 0;
  uint32_t rcvbuf_bytes = 0;
  std::string fault;                          // UWARP_FAULT: inject/fault_plan.h reads it
  StatShown stat = StatShown::kWhileRunning;  // UWARP_STAT
  std::string pcap;                           // UWARP_PCAP: empty is off
  std::string trace;                          // UWARP_TRACE: empty is off
  /// The setting that keeps connections from leaving TCP for shared memory; null: none does. What
  /// is captured stays: Wireshark shall see nothing but iWARP.
  const char* why_only_tcp() const {
    if (!shared_memory) return "UWARP_SHM=0";
    if (crc) return "UWARP_CRC=1";
    return pcap.empty() ? nullptr : "UWARP_PCAP";
  }
};

/// One row of the table.
struct Setting {
  const char* name;
  const char* default_text;
  const char* values;  ///< words with | between them or a description; empty: numbers
  const char* meaning;
  /// Stores what the text means. False: it is no such value.
  bool (*take)(const Setting&, Settings&, std::string_view text);
  int64_t low = 0, high = 0;  ///< the numbers that are taken
  bool zero_allowed = false;  ///< and 0, although it is below `low`
};

/// The whole table, in the order in which it is printed.
std::span<const Setting> settings_table();

/// Reads all variables through `lookup` (nullptr: not set). A value that is not taken is reported
/// to `complain` in one line without a newline, and the default is used. But if the list of peers
/// that may connect is not understood, none may.
Settings parse_settings(const std::function<const char*(const char* name)>& lookup,
                        const std::function<void(const std::string& line)>& complain);

/// Reads the file of `settings.profile` into `settings.adapter`. `persona_given`: UWARP_PERSONA
/// says which one, not the profile. `folder`: of the library or program that asks. Returns what is
/// wrong, or an empty text; the path of the file in `path`.
std::string take_profile(Settings& settings, bool persona_given, const std::string& folder,
                         std::string& path);

/// The process's settings: read from the environment once, at the first call; a program with more
/// rights than its user (setuid) reads nothing and has the defaults. Any thread.
const Settings& settings();

/// Writes one line, by one system call that no preloaded library interposes.
void complain_on_stderr(const std::string& line);

/// Prints the table as text: name, values, default and meaning of each variable.
void print_settings_help(std::FILE* out);

}  // namespace uwarp
