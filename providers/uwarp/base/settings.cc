// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The table of UWARP_* variables, its parser and its printer. To add a variable: a field in
// Settings and a row here; help text and manual page follow from the row.
#include "base/settings.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>

#include "base/fact.h"
#include "base/limits.h"

namespace uwarp {

namespace {

constexpr unsigned kAllBits = 128;
/// Bits in front of a mapped IPv4 address.
constexpr unsigned kMappedBits = 96;

/// Bytes of an address, and how many bits of them are the mapping's.
struct ParsedAddress {
  AddressBytes bytes{};
  unsigned mapped_bits = 0;
};

std::optional<ParsedAddress> parse_address(const std::string& text) {
  ParsedAddress parsed;
  if (inet_pton(AF_INET6, text.c_str(), parsed.bytes.data()) == 1) return parsed;
  in_addr v4;
  if (inet_pton(AF_INET, text.c_str(), &v4) != 1) return std::nullopt;
  parsed.bytes[10] = parsed.bytes[11] = 0xFF;
  std::memcpy(&parsed.bytes[kMappedBits / 8], &v4, sizeof v4);
  parsed.mapped_bits = kMappedBits;
  return parsed;
}

bool bit_of(const AddressBytes& bytes, unsigned bit) {
  return (bytes[bit / 8] >> (7 - bit % 8) & 1) != 0;
}

}  // namespace

std::optional<AddressPrefix> AddressPrefix::parse(std::string_view text) {
  const size_t slash = text.find('/');
  const auto address = parse_address(std::string(text.substr(0, slash)));
  if (!address) return std::nullopt;
  unsigned bits = kAllBits;
  if (slash != std::string_view::npos) {
    const char* end = text.data() + text.size();
    unsigned given = 0;
    const auto [stopped, error] = std::from_chars(text.data() + slash + 1, end, given);
    if (error != std::errc{} || stopped != end || given > kAllBits - address->mapped_bits)
      return std::nullopt;
    bits = address->mapped_bits + given;
  }
  for (unsigned bit = bits; bit < kAllBits; ++bit)
    if (bit_of(address->bytes, bit)) return std::nullopt;
  return AddressPrefix(address->bytes, bits);
}

bool AddressPrefix::contains(const AddressBytes& address) const {
  const unsigned whole = bits_ / 8;
  if (!std::equal(bytes_.begin(), bytes_.begin() + whole, address.begin())) return false;
  for (unsigned bit = whole * 8; bit < bits_; ++bit)
    if (bit_of(bytes_, bit) != bit_of(address, bit)) return false;
  return true;
}

AllowList AllowList::none() {
  AllowList list;
  list.prefixes_.emplace();
  return list;
}

std::optional<AllowList> AllowList::parse(std::string_view text) {
  if (text.empty()) return AllowList();
  AllowList list = none();
  for (;;) {
    const size_t comma = text.find(',');
    const auto prefix = AddressPrefix::parse(text.substr(0, comma));
    if (!prefix) return std::nullopt;
    list.prefixes_->push_back(*prefix);
    if (comma == std::string_view::npos) return list;
    text.remove_prefix(comma + 1);
  }
}

bool AllowList::allows(const AddressBytes& address) const {
  return !prefixes_ || std::any_of(prefixes_->begin(), prefixes_->end(),
                                   [&](const auto& prefix) { return prefix.contains(address); });
}

namespace {

constexpr int64_t kHourMs = 3'600'000;
constexpr int64_t kGiB = int64_t{1} << 30;

using Text = std::string_view;

std::vector<std::string> split_list(Text text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    if (comma != 0) parts.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

std::optional<int64_t> parse_number(Text text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// LOW-HIGH, both from 1 to 65535, in this order.
std::optional<PortRange> parse_port_range(Text text) {
  if (text.empty()) return PortRange{};
  const size_t dash = text.find('-');
  if (dash == Text::npos) return std::nullopt;
  const auto low = parse_number(text.substr(0, dash));
  const auto high = parse_number(text.substr(dash + 1));
  if (!low || !high || *low < 1 || *high > 65535 || *low > *high) return std::nullopt;
  return PortRange{static_cast<uint16_t>(*low), static_cast<uint16_t>(*high)};
}

// Index of `text` among words with | between them.
std::optional<int64_t> find_choice(Text choices, Text text) {
  for (int64_t index = 0; !choices.empty(); ++index) {
    const size_t bar = std::min(choices.find('|'), choices.size());
    if (choices.substr(0, bar) == text) return index;
    choices.remove_prefix(std::min(bar + 1, choices.size()));
  }
  return std::nullopt;
}

template <auto Member>
void store_number(Settings& settings, Text, int64_t number) {
  using T = std::remove_reference_t<decltype(settings.*Member)>;
  settings.*Member = static_cast<T>(number);
}

template <auto Member>
void store_text(Settings& settings, Text text, int64_t) {
  settings.*Member = std::string(text);
}

void store_netdevs(Settings& settings, Text text, int64_t) { settings.netdevs = split_list(text); }

void store_congestion(Settings& settings, Text text, int64_t) {
  settings.congestion = text == "system" ? std::string() : std::string(text);
}

void store_log(Settings& settings, Text text, int64_t) {
  settings.log = text == "0" ? std::string() : std::string(text);
}

void store_allow(Settings& settings, Text text, int64_t) {
  settings.allow = AllowList::parse(text).value_or(AllowList::none());
}

void store_port_range(Settings& settings, Text text, int64_t) {
  settings.port_range = parse_port_range(text).value_or(PortRange{});
}

constexpr Setting text_setting(const char* name, const char* value, const char* meaning,
                               decltype(Setting::store) store) {
  return {name, value, SettingKind::kText, "", 0, 0, false, meaning, store};
}
constexpr Setting switch_setting(const char* name, const char* value, const char* meaning,
                                 decltype(Setting::store) store) {
  return {name, value, SettingKind::kSwitch, "0|1", 0, 1, false, meaning, store};
}
constexpr Setting choice_setting(const char* name, const char* value, const char* choices,
                                 const char* meaning, decltype(Setting::store) store) {
  return {name, value, SettingKind::kChoice, choices, 0, 0, false, meaning, store};
}
constexpr Setting number_setting(const char* name, const char* value, int64_t low, int64_t high,
                                 bool zero_allowed, const char* meaning,
                                 decltype(Setting::store) store) {
  return {name, value, SettingKind::kNumber, "", low, high, zero_allowed, meaning, store};
}

constexpr Setting kTable[] = {
    text_setting("UWARP_LOG", "0",
                 "Log of events, one line each. 0: off. 1 or stderr: to standard error. Anything "
                 "else: path of a regular file to append to (symbolic links are refused).",
                 store_log),
    {"UWARP_NETDEVS", "", SettingKind::kList, "", 0, 0, false,
     "Network devices that become RDMA devices, separated by commas (eth0,lo). Empty: all that "
     "have an address.",
     store_netdevs},
    choice_setting("UWARP_PERSONA", "iwarp", "iwarp|roce",
                   "What devices look like to applications: iWARP adapters, or RoCE v2 adapters "
                   "for applications that refuse iWARP or need UD, UC or XRC queue pairs. Set the "
                   "same on both sides.",
                   store_number<&Settings::persona>),
    switch_setting("UWARP_ROCE_ACK", "1",
                   "In the roce persona, 1: a Send or Write completes when the peer has placed it, "
                   "as with InfiniBand. 0: when the kernel has taken it, as with iWARP.",
                   store_number<&Settings::roce_ack>),
    switch_setting("UWARP_SHM", "1",
                   "1: connections between processes of one user on this host change from TCP to "
                   "shared memory when they are busy. 0: they stay on TCP.",
                   store_number<&Settings::shared_memory>),
    choice_setting("UWARP_SHM_COPIES", "measured", "measured|one|two",
                   "How often large payloads are copied in shared memory. one: once, by the "
                   "receiver, out of the sender's memory, if the kernel permits that. two: into "
                   "the shared memory and out of it. measured: what takes less time here.",
                   store_number<&Settings::copies>),
    choice_setting("UWARP_CM", "uwarp", "uwarp|kernel",
                   "Which side serves rdma_cm: uwarp, or the kernel's own device.",
                   store_number<&Settings::cm>),
    text_setting("UWARP_HOST_SYSFS", "/sys",
                 "The sysfs in which uwarp looks for RDMA devices of the host. If SYSFS_PATH is "
                 "set when the program starts, it is used instead.",
                 store_text<&Settings::host_sysfs>),
    switch_setting("UWARP_CRC", "0",
                   "1: ask the peer for a CRC on every frame. If the peer asks for it, it is used "
                   "in any case.",
                   store_number<&Settings::crc>),
    choice_setting("UWARP_IMMEDIATE", "first", "first|last",
                   "Which half of the 8 bytes of Immediate Data holds the 32 bits of verbs. "
                   "Adapters differ; both ends must use the same half.",
                   store_number<&Settings::immediate>),
    number_setting(
        "UWARP_FPDU", "0", kUlpduMin, kUlpduMax, true,
        "Largest frame to send, in bytes of its ULPDU_Length. 0: uwarp chooses by the peer.",
        store_number<&Settings::fpdu_bytes>),
    number_setting("UWARP_MPA_REVISION", "2", 1, 2, false,
                   "MPA revision in connection requests. With 1 the ends do not negotiate read "
                   "depths and the first frame.",
                   store_number<&Settings::mpa_revision>),
    number_setting("UWARP_MPA_TIMEOUT_MS", "10000", 1, kHourMs, false,
                   "How long a listener waits for the complete connection request of a peer.",
                   store_number<&Settings::mpa_timeout_ms>),
    number_setting("UWARP_CONNECT_TIMEOUT_MS", "60000", 1, kHourMs, false,
                   "How long the connecting side waits for the peer's reply.",
                   store_number<&Settings::connect_timeout_ms>),
    number_setting("UWARP_RNR_TIMEOUT_MS", "1000", 0, kHourMs, false,
                   "How long a message that arrives waits for a receive to be posted before the "
                   "connection fails. 0: it fails at once.",
                   store_number<&Settings::rnr_timeout_ms>),
    number_setting("UWARP_PEER_TIMEOUT_MS", "0", 0, kHourMs, false,
                   "After how long a silent peer that owes answers counts as lost. 0: after the "
                   "queue pair's own timeout and retry count.",
                   store_number<&Settings::peer_timeout_ms>),
    {"UWARP_PORT_RANGE", "", SettingKind::kPortRange, "", 0, 0, false,
     "TCP ports for connections without rdma_cm. Empty: any free port.", store_port_range},
    number_setting("UWARP_MULTICAST_PORT", "22359", 1, 65535, false,
                   "UDP port of all multicast groups. All hosts of a group must use the same.",
                   store_number<&Settings::multicast_port>),
    {"UWARP_ALLOW", "", SettingKind::kAllowList, "", 0, 0, false,
     "Addresses that may connect to this process, with or without rdma_cm, separated by commas: "
     "192.0.2.7, 2001:db8::/32. Connections from other addresses are closed at once. Empty: all "
     "may connect. If the list is not understood, none may.",
     store_allow},
    number_setting("UWARP_PORT_OFFSET", "0", -65534, 65534, false,
                   "The TCP port is the rdma_cm port plus this number. For programs that listen on "
                   "the same number by TCP and by RDMA. A port that becomes less than 1 or more "
                   "than 65535 cannot be used.",
                   store_number<&Settings::port_offset>),
    text_setting("UWARP_CONGESTION", "reno",
                 "TCP congestion control towards peers on the same host; if the system uses bbr, "
                 "also towards peers less than 100 us away. Empty or system: that of the system.",
                 store_congestion),
    number_setting("UWARP_SPIN_US", "50", 0, 1'000'000, false,
                   "How long a thread that waits for traffic polls before it sleeps. It sleeps "
                   "earlier if another thread wants its core.",
                   store_number<&Settings::spin_us>),
    choice_setting(
        "UWARP_CALLS", "measured", "measured|cheap|dear",
        "Whether system calls are cheap or dear. Where they are dear (User Mode Linux, some "
        "sandboxes) uwarp makes fewer of them and takes longer ways. measured: uwarp measures it.",
        store_number<&Settings::calls>),
    number_setting("UWARP_SNDBUF", "0", 4096, kGiB, true,
                   "Send buffer of each TCP socket in bytes. 0: as the system sets it.",
                   store_number<&Settings::sndbuf_bytes>),
    number_setting("UWARP_RCVBUF", "0", 4096, kGiB, true,
                   "Receive buffer of each TCP socket in bytes. 0: as the system sets it.",
                   store_number<&Settings::rcvbuf_bytes>),
    text_setting("UWARP_FAULT", "",
                 "Errors to inject, to test how an application handles them: rules separated by "
                 "semicolons, such as: reset after=100; wc-error status=REM_ACCESS_ERR op=write "
                 "nth=5. docs/fault-injection.md describes them. If a rule is not understood, no "
                 "device can be opened.",
                 store_text<&Settings::fault>),
    switch_setting("UWARP_STAT", "1",
                   "0: uwarp-stat does not show this process. The counters in sysfs stay.",
                   store_number<&Settings::stat>),
    text_setting("UWARP_PCAP", "",
                 "File for a capture of the connections, for Wireshark and tshark. %p in the name "
                 "becomes the process id. The file contains all data.",
                 store_text<&Settings::pcap>),
    text_setting("UWARP_TRACE", "",
                 "File for a trace of every work request, for ui.perfetto.dev and "
                 "chrome://tracing. %p in the name becomes the process id.",
                 store_text<&Settings::trace>),
    switch_setting("UWARP_AF_IB", "0",
                   "1: tell librdmacm that AF_IB addresses are supported. For tests.",
                   store_number<&Settings::af_ib>),
};

// Stores `text` if the row takes it; returns whether it does.
bool store_value(const Setting& row, Text text, Settings& settings) {
  std::optional<int64_t> number = 0;
  switch (row.kind) {
    case SettingKind::kText:
    case SettingKind::kList:
      break;
    case SettingKind::kChoice:
    case SettingKind::kSwitch:
      number = find_choice(row.choices, text);
      break;
    case SettingKind::kNumber:
      number = parse_number(text);
      if (number && (*number < row.low || *number > row.high) &&
          !(*number == 0 && row.zero_allowed))
        number.reset();
      break;
    case SettingKind::kPortRange:
      if (!parse_port_range(text)) return false;
      break;
    case SettingKind::kAllowList:
      if (!AllowList::parse(text)) return false;
      break;
  }
  if (!number) return false;
  row.store(settings, text, *number);
  return true;
}

std::string describe_values(const Setting& row) {
  switch (row.kind) {
    case SettingKind::kText:
      return "text";
    case SettingKind::kList:
      return "NAME,NAME,...";
    case SettingKind::kChoice:
    case SettingKind::kSwitch: {
      std::string words = row.choices;
      for (size_t bar; (bar = words.find('|')) != std::string::npos;) words.replace(bar, 1, " or ");
      return words;
    }
    case SettingKind::kNumber:
      return (row.zero_allowed ? "0 or " : "") + std::to_string(row.low) + " to " +
             std::to_string(row.high);
    case SettingKind::kPortRange:
      return "LOW-HIGH, ports 1 to 65535";
    case SettingKind::kAllowList:
      return "ADDRESS[/BITS],...";
  }
  return {};
}

// A value from outside as it may stand inside one line of a terminal.
std::string printable(Text text) {
  std::string out(text);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return out;
}

std::string quote_default(const Setting& row) {
  return *row.default_text == '\0' ? "empty" : row.default_text;
}

// Words of `text`, broken so that no line is longer than `width` with its indent.
void print_wrapped(FILE* out, Text text, size_t indent, size_t width) {
  while (!text.empty()) {
    size_t cut = text.size();
    if (cut > width - indent) {
      cut = text.rfind(' ', width - indent);
      if (cut == Text::npos) cut = std::min(text.find(' '), text.size());
    }
    fprintf(out, "%*s%.*s\n", static_cast<int>(indent), "", static_cast<int>(cut), text.data());
    text.remove_prefix(std::min(cut + 1, text.size()));
  }
}

}  // namespace

// One write, so that lines of several processes do not mix.
void complain_on_stderr(const std::string& line) {
  const std::string whole = line + "\n";
  (void)!syscall(SYS_write, 2, whole.data(), whole.size());
}

std::span<const Setting> settings_table() { return kTable; }

Settings parse_settings(const std::function<const char*(const char* name)>& lookup,
                        const std::function<void(const std::string& line)>& complain) {
  Settings settings;
  for (const Setting& row : kTable) {
    (void)store_value(row, row.default_text, settings);
    const char* text = lookup(row.name);
    if (text == nullptr) continue;
    // An empty number or choice is how shells say "not set"; an empty text is a value.
    const bool takes_empty = row.kind == SettingKind::kText || row.kind == SettingKind::kList ||
                             row.kind == SettingKind::kPortRange ||
                             row.kind == SettingKind::kAllowList;
    if (*text == '\0' && !takes_empty) continue;
    if (store_value(row, text, settings)) continue;
    const bool closes = row.kind == SettingKind::kAllowList;
    if (closes) row.store(settings, text, 0);
    complain("uwarp: " + std::string(row.name) + "=" + printable(text) + " is not " +
             describe_values(row) + "; " +
             (closes ? "no peer may connect" : "using the default (" + quote_default(row) + ")"));
  }
  return settings;
}

const Settings& settings() {
  static constinit Fact<Settings> parsed;
  return parsed.get([] {
    const int saved_errno = errno;
    Settings made =
        parse_settings([](const char* name) { return secure_getenv(name); }, complain_on_stderr);
    errno = saved_errno;
    return made;
  });
}

void print_settings_help(FILE* out) {
  constexpr size_t kIndent = 8;
  constexpr size_t kWidth = 79;
  for (const Setting& row : kTable) {
    fprintf(out, "  %s (%s; default: %s)\n", row.name, describe_values(row).c_str(),
            quote_default(row).c_str());
    print_wrapped(out, row.meaning, kIndent, kWidth);
  }
}

}  // namespace uwarp
