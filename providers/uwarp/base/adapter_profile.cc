// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The table of keys and the parser. To add a key: a field in AdapterProfile, a row here, and a row
// in docs/profiles.md.
#include "base/adapter_profile.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <type_traits>

#include "base/choice.h"

namespace uwarp {

namespace {

using ProfileWord = std::string_view;

constexpr size_t kProfileTextMax = 63;  // fw_ver and its like are arrays of 64 characters
constexpr ProfileWord kCounterKey = "hw_counter.";
constexpr size_t kCountersMax = 256;

/// Codes of words, in the order of the words in a row of the table.
constexpr uint8_t kWidths[] = {1, 16, 2, 4, 8};
constexpr uint8_t kLanes[] = {1, 2, 4, 8, 12};
constexpr uint8_t kSpeeds[] = {1, 2, 4, 8, 16, 32, 64, 128};
/// Per lane in 100 Mbit/s, and the name that the kernel has for it.
struct Speed {
  unsigned rate;
  const char* name;
};
constexpr Speed kSpeedOf[] = {{25, "SDR"},  {50, "DDR"},  {100, "QDR"}, {100, "FDR10"},
                              {140, "FDR"}, {250, "EDR"}, {500, "HDR"}, {1000, "NDR"}};

ProfileWord trimmed_word(ProfileWord text) {
  constexpr ProfileWord kSpace = " \t\r";
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

/// Decimal, or with 0x in front.
std::optional<uint64_t> profile_number(ProfileWord text) {
  const bool hex = text.starts_with("0x");
  if (hex) text.remove_prefix(2);
  uint64_t number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, hex ? 16 : 10);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

bool is_printable(char c) { return c >= 0x20 && c < 0x7F; }

bool is_file_name(ProfileWord text) {
  return !text.empty() && text.size() <= kProfileTextMax &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_';
         });
}

bool is_counter(ProfileWord name) {
  return std::find(std::begin(kCounterNames), std::end(kCounterNames), name) !=
         std::end(kCounterNames);
}

template <auto Member>
bool store_number(const ProfileKey& key, AdapterProfile& profile, ProfileWord text) {
  const auto number = profile_number(text);
  if (!number || *number < key.low || *number > key.high) return false;
  profile.*Member = static_cast<std::remove_reference_t<decltype(profile.*Member)>>(*number);
  return true;
}

template <auto Member>
bool store_text(const ProfileKey&, AdapterProfile& profile, ProfileWord text) {
  if (text.size() > kProfileTextMax || !std::all_of(text.begin(), text.end(), is_printable))
    return false;
  profile.*Member = text;
  return true;
}

/// A word stands for its place in the row.
template <auto Member, typename Value>
bool store_choice(const ProfileKey& key, AdapterProfile& profile, ProfileWord text) {
  const auto index = find_choice(key.values, text);
  if (index) profile.*Member = static_cast<Value>(*index);
  return index.has_value();
}

/// A word stands for a code.
template <auto Member, const auto& Codes>
bool store_code(const ProfileKey& key, AdapterProfile& profile, ProfileWord text) {
  const auto index = find_choice(key.values, text);
  if (index) profile.*Member = Codes[*index];
  return index.has_value();
}

constexpr uint8_t kMtus[] = {1, 2, 3, 4, 5};
constexpr uint64_t kMax32 = UINT32_MAX;

using P = AdapterProfile;
constexpr ProfileKey kProfileKeys[] = {
    {"persona", "iwarp|roce", store_choice<&P::persona, Persona>},
    {"max_qp", "", store_number<&P::max_qp>, 1, kMaxQp},
    {"max_qp_wr", "", store_number<&P::max_qp_wr>, 1, kMaxQpWr},
    {"max_sge", "", store_number<&P::max_sge>, 1, kMaxSge},
    {"max_sge_rd", "", store_number<&P::max_sge_rd>, 1, kMaxSgeRead},
    {"max_inline_data", "", store_number<&P::max_inline_data>, 0, kMaxInline},
    {"max_qp_rd_atom", "", store_number<&P::max_qp_rd_atom>, 1, kMaxRdAtom},
    {"max_qp_init_rd_atom", "", store_number<&P::max_qp_init_rd_atom>, 1, kMaxRdAtom},
    {"max_cq", "", store_number<&P::max_cq>, 1, kMaxCq},
    {"max_cqe", "", store_number<&P::max_cqe>, 1, kMaxCqe},
    {"max_pd", "", store_number<&P::max_pd>, 1, kMaxPd},
    {"max_ah", "", store_number<&P::max_ah>, 1, kMaxAh},
    {"max_mr", "", store_number<&P::max_mr>, 1, kMaxMr},
    {"max_mr_size", "", store_number<&P::max_mr_size>, 1, kMaxMrBytes},
    {"max_mw", "", store_number<&P::max_mw>, 0, kMaxMw},
    {"max_srq", "", store_number<&P::max_srq>, 0, kMaxSrq},
    {"max_srq_wr", "", store_number<&P::max_srq_wr>, 1, kMaxSrqWr},
    {"max_srq_sge", "", store_number<&P::max_srq_sge>, 1, kMaxSrqSge},
    {"max_dm_size", "", store_number<&P::max_dm_size>, 0, kMaxDeviceMemoryBytes},
    {"max_msg_sz", "", store_number<&P::max_msg_sz>, 1, kMaxMessageBytes},
    {"max_mtu", "256|512|1024|2048|4096", store_code<&P::max_mtu, kMtus>},
    {"atomic_cap", "none|hca|glob", store_choice<&P::atomic_cap, AtomicCap>},
    {"vendor_id", "", store_number<&P::vendor_id>, 0, 0xFFFFFF},
    {"vendor_part_id", "", store_number<&P::vendor_part_id>, 0, kMax32},
    {"hw_ver", "", store_number<&P::hw_ver>, 0, kMax32},
    {"fw_ver", "text", store_text<&P::fw_ver>},
    {"hca_type", "text", store_text<&P::hca_type>},
    {"board_id", "text", store_text<&P::board_id>},
    {"active_width", "1x|2x|4x|8x|12x", store_code<&P::active_width, kWidths>},
    {"active_speed", "sdr|ddr|qdr|fdr10|fdr|edr|hdr|ndr", store_code<&P::active_speed, kSpeeds>},
};

/// Values that can be taken, behind "is not".
std::string values_of_key(const ProfileKey& key) {
  if (ProfileWord(key.values) == "text")
    return "up to " + std::to_string(kProfileTextMax) + " printable characters";
  if (*key.values == '\0')
    return "a number from " + std::to_string(key.low) + " to " + std::to_string(key.high);
  std::string words = key.values;
  for (size_t bar; (bar = words.find('|')) != std::string::npos;) words.replace(bar, 1, " or ");
  return words;
}

std::string printable_word(ProfileWord text) {
  std::string out(text.substr(0, kProfileTextMax));
  for (char& c : out)
    if (!is_printable(c)) c = '?';
  return out;
}

std::string refusal_of_key(const ProfileKey& key, ProfileWord value) {
  const std::string said = std::string(key.name) + " = " + printable_word(value);
  const auto number = profile_number(value);
  if (*key.values == '\0' && number && *number > key.high)
    return said + " is more than uwarp's own limit of " + std::to_string(key.high);
  return said + " is not " + values_of_key(key);
}

/// Reads one text, line by line.
class ProfileReader {
 public:
  explicit ProfileReader(AdapterProfile& profile) : profile_(profile) {}

  std::string read(ProfileWord text) {
    for (size_t number = 1; !text.empty(); ++number) {
      const size_t end = std::min(text.find('\n'), text.size());
      const std::string wrong = take_line(trimmed_word(text.substr(0, end)));
      if (!wrong.empty()) return std::to_string(number) + ": " + wrong;
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    return {};
  }

 private:
  std::string take_line(ProfileWord line) {
    if (line.empty() || line[0] == '#') return {};
    const size_t equals = line.find('=');
    if (equals == ProfileWord::npos) return "\"" + printable_word(line) + "\" is not KEY = VALUE";
    const ProfileWord name = trimmed_word(line.substr(0, equals)),
                      value = trimmed_word(line.substr(equals + 1));
    if (std::find(seen_.begin(), seen_.end(), name) != seen_.end())
      return "there is a second " + printable_word(name);
    seen_.push_back(name);
    if (name.starts_with(kCounterKey)) return take_counter(name.substr(kCounterKey.size()), value);
    const auto* const key = std::find_if(std::begin(kProfileKeys), std::end(kProfileKeys),
                                         [&](const ProfileKey& each) { return name == each.name; });
    if (key == std::end(kProfileKeys)) return "there is no key " + printable_word(name);
    return key->take(*key, profile_, value) ? std::string() : refusal_of_key(*key, value);
  }

  std::string take_counter(ProfileWord name, ProfileWord value) {
    if (!is_file_name(name)) return "\"" + printable_word(name) + "\" is no name of a counter";
    if (profile_.hw_counters.size() == kCountersMax)
      return "there are more than " + std::to_string(kCountersMax) + " counters";
    if (value != "0" && !is_counter(value))
      return std::string(kCounterKey) + std::string(name) + " = " + printable_word(value) +
             " is neither 0 nor a counter of uwarp";
    profile_.hw_counters.emplace_back(name, value == "0" ? ProfileWord() : value);
    return {};
  }

  AdapterProfile& profile_;
  std::vector<ProfileWord> seen_;
};

size_t place_of_code(std::span<const uint8_t> codes, uint8_t code) {
  return static_cast<size_t>(std::find(codes.begin(), codes.end(), code) - codes.begin());
}

}  // namespace

std::span<const ProfileKey> profile_keys() { return kProfileKeys; }

std::string AdapterProfile::parse(std::string_view text) { return ProfileReader(*this).read(text); }

std::string AdapterProfile::firmware() const { return fw_ver.empty() ? UWARP_VERSION : fw_ver; }

std::string AdapterProfile::rate() const {
  const unsigned lanes = kLanes[place_of_code(kWidths, active_width)];
  const Speed& speed = kSpeedOf[place_of_code(kSpeeds, active_speed)];
  const unsigned all = lanes * speed.rate;
  return std::to_string(all / 10) + (all % 10 != 0 ? ".5" : "") + " Gb/sec (" +
         std::to_string(lanes) + "X " + speed.name + ")";
}

}  // namespace uwarp
