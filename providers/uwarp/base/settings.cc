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

#include "base/choice.h"
#include "base/fact.h"
#include "base/limits.h"
#include "base/profile_file.h"

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

std::optional<AddressBytes> read_address(std::string_view text) {
  const auto parsed = parse_address(std::string(text));
  return parsed ? std::optional(parsed->bytes) : std::nullopt;
}

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
  constexpr std::string_view kIdentity = "id:";
  AllowList list;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view entry = text.substr(0, comma);
    const auto prefix = AddressPrefix::parse(entry);
    if (entry.starts_with(kIdentity) && entry.size() > kIdentity.size())
      list.identities_.emplace_back(entry.substr(kIdentity.size()));
    else if (prefix)
      (list.prefixes_ ? *list.prefixes_ : list.prefixes_.emplace()).push_back(*prefix);
    else
      return std::nullopt;
    if (comma == std::string_view::npos) return list;
    text.remove_prefix(comma + 1);
    if (text.empty()) return std::nullopt;
  }
  return list;
}

bool AllowList::allows(std::string_view identity) const {
  return identities_.empty() || std::ranges::find(identities_, identity) != identities_.end();
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

template <auto Member>
bool take_text(const Setting&, Settings& settings, Text text) {
  settings.*Member = text;
  return true;
}

template <auto Member>
bool take_number(const Setting& row, Settings& settings, Text text) {
  const auto number = parse_number(text);
  const bool zero = row.zero_allowed && number == 0;
  if (!number || (!zero && (*number < row.low || *number > row.high))) return false;
  settings.*Member = static_cast<std::remove_reference_t<decltype(settings.*Member)>>(*number);
  return true;
}

template <auto Member>
bool take_choice(const Setting& row, Settings& settings, Text text) {
  const auto index = find_choice(row.values, text);
  if (index)
    settings.*Member = static_cast<std::remove_reference_t<decltype(settings.*Member)>>(*index);
  return index.has_value();
}

bool take_netdevs(const Setting&, Settings& settings, Text text) {
  settings.netdevs = split_list(text);
  return true;
}

bool take_congestion(const Setting&, Settings& settings, Text text) {
  settings.congestion = text == "system" ? Text() : text;
  return true;
}

bool take_log(const Setting&, Settings& settings, Text text) {
  settings.advice = text != "0";
  settings.log = text == "0" ? Text() : text;
  return true;
}

/// What is not understood allows none.
bool take_allow(const Setting&, Settings& settings, Text text) {
  const auto list = AllowList::parse(text);
  settings.allow = list.value_or(AllowList::none());
  return list.has_value();
}

/// What is not understood allows no connection.
bool take_tls(const Setting& row, Settings& settings, Text text) {
  const auto index = find_choice(row.values, text);
  settings.tls = index ? static_cast<TlsMode>(*index) : TlsMode::kNotUnderstood;
  if (text.empty()) settings.tls = TlsMode::kOff;
  return index.has_value();
}

bool take_port_range(const Setting&, Settings& settings, Text text) {
  const auto range = parse_port_range(text);
  if (range) settings.port_range = *range;
  return range.has_value();
}

constexpr Setting kTable[] = {
    {"UWARP_LOG", "", "text",
     "Log of events, one line each. Empty: off. 0: off, and no advice on standard error when the "
     "persona lacks what the program asks for. 1 or stderr: to standard error. Anything else: "
     "path of a regular file to append to (symbolic links are refused).",
     take_log},
    {"UWARP_NETDEVS", "", "NAME,NAME,...",
     "Network devices that become RDMA devices, separated by commas (eth0,lo). Empty: all that "
     "have an address.",
     take_netdevs},
    {"UWARP_PERSONA", "iwarp", "iwarp|roce",
     "What devices look like to applications: iWARP adapters, or RoCE v2 adapters for "
     "applications that refuse iWARP or need UD, UC or XRC queue pairs. Set the same on both "
     "sides.",
     take_choice<&Settings::persona>},
    {"UWARP_PROFILE", "", "text",
     "The adapter that a device takes after: its limits, which are enforced, its names and its "
     "counters. irdma-like, mlx5-like, rxe, siw or small (the least of everything), or a file, "
     "with a slash in its name. Empty: uwarp's own. A profile may also say the persona, unless "
     "UWARP_PERSONA does. docs/profiles.md describes them. If it is not understood, no device can "
     "be opened.",
     take_text<&Settings::profile>},
    {"UWARP_ROCE_ACK", "1", "0|1",
     "In the roce persona, 1: a Send or Write completes when the peer has placed it, as with "
     "InfiniBand. 0: when the kernel has taken it, as with iWARP.",
     take_choice<&Settings::roce_ack>},
    {"UWARP_SHM", "1", "0|1",
     "1: connections between processes of one user on this host change from TCP to shared memory "
     "when they are busy. 0: they stay on TCP.",
     take_choice<&Settings::shared_memory>},
    {"UWARP_SHM_COPIES", "measured", "measured|one|two",
     "How often large payloads are copied in shared memory. one: once, by the receiver, out of "
     "the sender's memory, if the kernel permits that. two: into the shared memory and out of it, "
     "and no Read or Write is done without a thread of the target. measured: what takes less time "
     "here.",
     take_choice<&Settings::copies>},
    {"UWARP_CM", "uwarp", "uwarp|kernel",
     "Which side serves rdma_cm: uwarp, or the kernel's own device.", take_choice<&Settings::cm>},
    {"UWARP_HOST_SYSFS", "/sys", "text",
     "The sysfs in which uwarp looks for RDMA devices of the host. If SYSFS_PATH is set when the "
     "program starts, it is used instead.",
     take_text<&Settings::host_sysfs>},
    {"UWARP_CRC", "0", "0|1",
     "1: ask the peer for a CRC on every frame. If the peer asks for it, it is used in any case.",
     take_choice<&Settings::crc>},
    {"UWARP_IMMEDIATE", "first", "first|last",
     "Which half of the 8 bytes of Immediate Data holds the 32 bits of verbs. Adapters differ; "
     "both ends must use the same half.",
     take_choice<&Settings::immediate>},
    {"UWARP_FPDU", "0", "",
     "Largest frame to send, in bytes of its ULPDU_Length. 0: uwarp chooses by the peer.",
     take_number<&Settings::fpdu_bytes>, kUlpduMin, kUlpduMax, true},
    {"UWARP_MPA_REVISION", "2", "",
     "MPA revision in connection requests. With 1 the ends do not negotiate read depths and the "
     "first frame.",
     take_number<&Settings::mpa_revision>, 1, 2},
    {"UWARP_MPA_TIMEOUT_MS", "10000", "",
     "How long a listener waits for the complete connection request of a peer.",
     take_number<&Settings::mpa_timeout_ms>, 1, kHourMs},
    {"UWARP_CONNECT_TIMEOUT_MS", "60000", "",
     "How long the connecting side waits for the peer's reply.",
     take_number<&Settings::connect_timeout_ms>, 1, kHourMs},
    {"UWARP_RNR_TIMEOUT_MS", "1000", "",
     "How long a message that arrives waits for a receive to be posted before the connection "
     "fails. 0: it fails at once.",
     take_number<&Settings::rnr_timeout_ms>, 0, kHourMs},
    {"UWARP_PEER_TIMEOUT_MS", "0", "",
     "After how long a silent peer that owes answers counts as lost. 0: after the queue pair's "
     "own timeout and retry count.",
     take_number<&Settings::peer_timeout_ms>, 0, kHourMs},
    {"UWARP_PORT_RANGE", "", "LOW-HIGH, ports 1 to 65535",
     "TCP ports for connections without rdma_cm. Empty: any free port.", take_port_range},
    {"UWARP_MULTICAST_PORT", "22359", "",
     "UDP port of all multicast groups. All hosts of a group must use the same.",
     take_number<&Settings::multicast_port>, 1, 65535},
    {"UWARP_ALLOW", "", "ADDRESS[/BITS],id:IDENTITY,...",
     "Addresses that may connect to this process, with or without rdma_cm, separated by commas: "
     "192.0.2.7, 2001:db8::/32. Connections from other addresses are closed at once. With "
     "UWARP_TLS also identities: id:node7. Where there are both, a peer needs one of each. Empty: "
     "all may connect. If the list is not understood, none may.",
     take_allow},
    {"UWARP_TLS", "off", "off|psk|cert",
     "How connections are protected (TLS 1.3): off: not at all. psk: by keys that both sides have "
     "(UWARP_TLS_PSK). cert: by certificates, of which each side shows one (UWARP_TLS_CERT, "
     "UWARP_TLS_KEY, UWARP_TLS_CA). Set the same on both sides: a peer that does otherwise is "
     "refused. If it is not understood, no connection can be made. docs/security.md describes it.",
     take_tls},
    {"UWARP_TLS_PSK", "", "text",
     "File of the keys, one per line: identity:hexkey. This side connects with the first, and "
     "takes connections with any. The file must belong to the user of the process, with mode 0600.",
     take_text<&Settings::tls_psk>},
    {"UWARP_TLS_CERT", "", "text",
     "File of this side's certificate in PEM, and behind it those between it and the authority.",
     take_text<&Settings::tls_cert>},
    {"UWARP_TLS_KEY", "", "text",
     "File of the certificate's private key in PEM, without a password. It must belong to the user "
     "of the process, with mode 0600.",
     take_text<&Settings::tls_key>},
    {"UWARP_TLS_CA", "", "text",
     "File of the authorities in PEM whose certificates are trusted. All that they have signed may "
     "connect, unless UWARP_ALLOW names some.",
     take_text<&Settings::tls_ca>},
    {"UWARP_PORT_OFFSET", "0", "",
     "The TCP port is the rdma_cm port plus this number. For programs that listen on the same "
     "number by TCP and by RDMA. A port that becomes less than 1 or more than 65535 cannot be "
     "used.",
     take_number<&Settings::port_offset>, -65534, 65534},
    {"UWARP_CONGESTION", "reno", "text",
     "TCP congestion control towards peers on the same host; if the system uses bbr, also towards "
     "peers less than 100 us away. Empty or system: that of the system.",
     take_congestion},
    {"UWARP_SPIN_US", "50", "",
     "How long a thread that waits for traffic polls before it sleeps. It sleeps earlier if "
     "another thread wants its core.",
     take_number<&Settings::spin_us>, 0, 1'000'000},
    {"UWARP_CALLS", "measured", "measured|cheap|dear",
     "Whether system calls are cheap or dear. Where they are dear (User Mode Linux, some "
     "sandboxes) uwarp makes fewer of them and takes longer ways. measured: uwarp measures it.",
     take_choice<&Settings::calls>},
    {"UWARP_SNDBUF", "0", "", "Send buffer of each TCP socket in bytes. 0: as the system sets it.",
     take_number<&Settings::sndbuf_bytes>, 4096, kGiB, true},
    {"UWARP_RCVBUF", "0", "",
     "Receive buffer of each TCP socket in bytes. 0: as the system sets it.",
     take_number<&Settings::rcvbuf_bytes>, 4096, kGiB, true},
    {"UWARP_FAULT", "", "text",
     "Errors to inject, to test how an application handles them: rules separated by semicolons, "
     "such as: reset after=100; wc-error status=REM_ACCESS_ERR op=write nth=5. "
     "docs/fault-injection.md describes them. If a rule is not understood, no device can be "
     "opened.",
     take_text<&Settings::fault>},
    {"UWARP_STAT", "1", "0|1|end",
     "0: uwarp-stat does not show this process. The counters in sysfs stay. 1: it does. end: it "
     "does, and a process that exits prints the totals of each device on standard error.",
     take_choice<&Settings::stat>},
    {"UWARP_PCAP", "", "text",
     "File for a capture of the connections, for Wireshark and tshark. %p in the name becomes the "
     "process id. The file contains all data.",
     take_text<&Settings::pcap>},
    {"UWARP_TRACE", "", "text",
     "File for a trace of every work request, for ui.perfetto.dev and chrome://tracing. %p in the "
     "name becomes the process id.",
     take_text<&Settings::trace>},
    {"UWARP_AF_IB", "0", "0|1", "1: tell librdmacm that AF_IB addresses are supported. For tests.",
     take_choice<&Settings::af_ib>},
};

std::string describe_values(const Setting& row) {
  if (*row.values == '\0')
    return (row.zero_allowed ? "0 or " : "") + std::to_string(row.low) + " to " +
           std::to_string(row.high);
  std::string words = row.values;
  for (size_t bar; (bar = words.find('|')) != std::string::npos;) words.replace(bar, 1, " or ");
  return words;
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
    (void)row.take(row, settings, row.default_text);
    const char* text = lookup(row.name);
    // An empty number or choice is how shells say "not set"; an empty text is a value.
    if (text == nullptr || row.take(row, settings, text) || *text == '\0') continue;
    complain("uwarp: " + std::string(row.name) + "=" + printable(text) + " is not " +
             describe_values(row) + "; " +
             (row.take == take_allow ? "no peer may connect"
              : row.take == take_tls ? "no connection can be made"
                                     : "using the default (" + quote_default(row) + ")"));
  }
  if (settings.tls == TlsMode::kOff && settings.allow.names_identities()) {
    settings.allow = AllowList::none();
    complain(
        "uwarp: UWARP_ALLOW names identities, which only UWARP_TLS proves; no peer may connect");
  }
  return settings;
}

std::string take_profile(Settings& settings, bool persona_given, const std::string& folder,
                         std::string& path) {
  if (settings.profile.empty()) return {};
  ProfileFile file = ProfileFile::read(settings.profile, folder);
  path = file.path;
  settings.profile_valid = file.error.empty();
  if (!settings.profile_valid) return file.error;
  settings.adapter = std::move(file.profile);
  if (!persona_given) settings.persona = settings.adapter.persona.value_or(settings.persona);
  return {};
}

const Settings& settings() {
  static constinit Fact<Settings> parsed;
  return parsed.get([] {
    const int saved_errno = errno;
    const auto lookup = [](const char* name) -> const char* { return secure_getenv(name); };
    Settings made = parse_settings(lookup, complain_on_stderr);
    const char* const persona = lookup("UWARP_PERSONA");
    std::string path;
    const std::string folder = made.profile.empty() ? std::string() : own_library_folder();
    const std::string wrong =
        take_profile(made, persona != nullptr && *persona != '\0', folder, path);
    if (!wrong.empty())
      complain_on_stderr("uwarp: UWARP_PROFILE: " + wrong + "; no device can be opened");
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
