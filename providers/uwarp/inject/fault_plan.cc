// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The grammar of UWARP_FAULT: rules separated by semicolons, each a kind and then KEY=VALUE words.
#include "inject/fault_plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>

#include "inject/splitmix.h"

namespace uwarp {
namespace {

using Text = std::string_view;

enum Key : uint32_t {
  kOp = 1u << 0,
  kQp = 1u << 1,
  kNth = 1u << 2,
  kAfter = 1u << 3,
  kEvery = 1u << 4,
  kChance = 1u << 5,
  kAt = 1u << 6,
  kTimes = 1u << 7,
  kStatus = 1u << 8,
  kCode = 1u << 9,
  kFor = 1u << 10,
  kRate = 1u << 11,
  kDelay = 1u << 12,
  kType = 1u << 13,
  kBurst = 1u << 14,
  kLatency = 1u << 15,
  kJitter = 1u << 16,
  kLinkRate = 1u << 17,
  kQueue = 1u << 18,
  kPeer = 1u << 19,
};
constexpr uint32_t kOnce = kNth | kAfter | kChance;
constexpr uint32_t kRepeated = kOnce | kEvery | kTimes;
constexpr uint32_t kTriggers = kNth | kAfter | kEvery | kChance | kAt;

struct KindRow {
  const char* name;
  FaultKind kind;
  uint32_t keys;
  uint32_t needed;  // one of these
};
constexpr KindRow kKinds[] = {
    {"reset", FaultKind::kReset, kOp | kQp | kOnce, 0},
    {"stall", FaultKind::kStall, kOp | kQp | kRepeated | kFor, 0},
    {"terminate", FaultKind::kTerminate, kOp | kQp | kOnce | kCode, kCode},
    {"corrupt", FaultKind::kCorrupt, kOp | kQp | kOnce, 0},
    {"slow", FaultKind::kSlow, kOp | kQp | kAfter | kRate | kDelay, kRate | kDelay},
    {"wc-error", FaultKind::kWcError, kOp | kQp | kOnce | kStatus, kStatus},
    {"no-receive", FaultKind::kNoReceive, kQp | kRepeated | kFor, 0},
    {"lose", FaultKind::kLose, kOp | kQp | kRepeated, 0},
    {"duplicate", FaultKind::kDuplicate, kOp | kQp | kRepeated, 0},
    {"reorder", FaultKind::kReorder, kQp | kRepeated, 0},
    {"async-event", FaultKind::kAsyncEvent, kOp | kQp | kRepeated | kAt | kType | kBurst, kType},
    {"port-down", FaultKind::kPortDown, kOp | kQp | kOnce | kAt | kFor, 0},
    {"cq-event", FaultKind::kCqEvent, kRepeated, 0},
    {"addr-error", FaultKind::kAddressError, kRepeated, 0},
    {"route-error", FaultKind::kRouteError, kRepeated, 0},
    {"refuse", FaultKind::kRefuse, kRepeated, 0},
    {"unreachable", FaultKind::kUnreachable, kRepeated, 0},
    {"reject", FaultKind::kReject, kRepeated, 0},
    {"wire", FaultKind::kWire, kLatency | kJitter | kLinkRate | kQueue | kPeer,
     kLatency | kLinkRate},
};

struct Word {
  const char* name;
  uint32_t value;
};
constexpr Word kMessages[] = {
    {"any", static_cast<uint32_t>(FaultMessage::kAnyRequest)},
    {"send", static_cast<uint32_t>(FaultMessage::kSend)},
    {"write", static_cast<uint32_t>(FaultMessage::kWrite)},
    {"read", static_cast<uint32_t>(FaultMessage::kRead)},
    {"atomic", static_cast<uint32_t>(FaultMessage::kAtomic)},
    {"local", static_cast<uint32_t>(FaultMessage::kLocal)},
    {"recv", static_cast<uint32_t>(FaultMessage::kArrival)},
};
// Those of ibv_wc_status that a reliable connection can have.
constexpr Word kStatuses[] = {
    {"LOC_LEN_ERR", 1},    {"LOC_QP_OP_ERR", 2},   {"LOC_PROT_ERR", 4},
    {"WR_FLUSH_ERR", 5},   {"MW_BIND_ERR", 6},     {"BAD_RESP_ERR", 7},
    {"LOC_ACCESS_ERR", 8}, {"REM_INV_REQ_ERR", 9}, {"REM_ACCESS_ERR", 10},
    {"REM_OP_ERR", 11},    {"RETRY_EXC_ERR", 12},  {"RNR_RETRY_EXC_ERR", 13},
    {"REM_ABORT_ERR", 16}, {"FATAL_ERR", 19},      {"RESP_TIMEOUT_ERR", 20},
    {"GENERAL_ERR", 21},
};
// Those of ibv_event_type that may come at any time, and the end of the device.
constexpr Word kEvents[] = {
    {"DEVICE_FATAL", 8}, {"PORT_ACTIVE", 9},        {"LID_CHANGE", 11}, {"PKEY_CHANGE", 12},
    {"SM_CHANGE", 13},   {"CLIENT_REREGISTER", 17}, {"GID_CHANGE", 18},
};

std::optional<uint32_t> find_word(std::span<const Word> words, Text text) {
  for (const Word& word : words)
    if (text == word.name) return word.value;
  return std::nullopt;
}

std::string names_of(std::span<const Word> words) {
  std::string all;
  for (const Word& word : words) all += (all.empty() ? "" : ", ") + std::string(word.name);
  return all;
}

template <typename T>
std::optional<T> read_number(Text text, int base = 10) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// A whole number with one of these words behind it, and what that multiplies it by.
struct Unit {
  const char* name;
  uint64_t factor;
};
std::optional<uint64_t> read_quantity(Text text, std::span<const Unit> units) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = read_number<uint64_t>(text.substr(0, digits));
  if (!number) return std::nullopt;
  for (const Unit& unit : units)
    if (text.substr(digits) == unit.name && *number <= ~uint64_t{0} / 4 / unit.factor)
      return *number * unit.factor;
  return std::nullopt;
}
constexpr Unit kTimeUnits[] = {{"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}};
constexpr Unit kRateUnits[] = {{"", 1}, {"K", 1'000}, {"M", 1'000'000}, {"G", 1'000'000'000}};

// Links are named by bits per second, and with "bit" behind the letter this cannot be misread.
constexpr Unit kLinkUnits[] = {{"K", 1'000},        {"Kbit", 1'000},      {"M", 1'000'000},
                               {"Mbit", 1'000'000}, {"G", 1'000'000'000}, {"Gbit", 1'000'000'000}};

std::optional<uint64_t> read_limited(Text text, std::span<const Unit> units, uint64_t least,
                                     uint64_t most) {
  const auto value = read_quantity(text, units);
  return value && *value >= least && *value <= most ? value : std::nullopt;
}

/// Layer, type and code as L/T/CC, the code in hexadecimal as the RFCs write it.
std::optional<TerminateCode> read_terminate(Text text) {
  const size_t first = text.find('/');
  const size_t second = first == Text::npos ? first : text.find('/', first + 1);
  if (second == Text::npos) return std::nullopt;
  const auto layer = read_number<unsigned>(text.substr(0, first));
  const auto type = read_number<unsigned>(text.substr(first + 1, second - first - 1));
  const auto code = read_number<unsigned>(text.substr(second + 1), 16);
  if (!layer || !type || !code || *layer > 15 || *type > 15 || *code > 255) return std::nullopt;
  return static_cast<TerminateCode>(*layer << 12 | *type << 8 | *code);
}

/// 2^64 times a probability.
std::optional<uint64_t> read_chance(Text text) {
  double p = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), p);
  if (error != std::errc{} || end != text.data() + text.size() || !(p > 0) || p > 1)
    return std::nullopt;
  return p == 1 ? ~uint64_t{0} : static_cast<uint64_t>(std::ldexp(p, 64));
}

template <typename T, typename U>
bool keep(T& field, const std::optional<U>& value) {
  if (value) field = static_cast<T>(*value);
  return value.has_value();
}
template <typename T>
bool keep_positive(T& field, const std::optional<T>& value) {
  return keep(field, value) && *value > 0;
}
template <auto Member>
bool keep_count(FaultRule& rule, Text text) {
  using T = std::remove_reference_t<decltype(rule.*Member)>;
  return keep_positive(rule.*Member, read_number<T>(text));
}
template <auto Member>
bool keep_time(FaultRule& rule, Text text) {
  return keep_positive(rule.*Member, read_quantity(text, kTimeUnits));
}

/// What may stand in front of "=", and what behind it.
struct KeyRow {
  const char* name;
  Key key;
  const char* expected;
  bool (*keep)(FaultRule&, Text);
  std::span<const Word> words = {};  ///< of `expected`
  FaultRule::When when = FaultRule::When::kNth;
};
constexpr const char *kOneOf = "one of ", *kCount = "a number from 1",
                     *kTime = "a time above 0 such as 500us, 20ms or 3s";
constexpr KeyRow kKeys[] = {
    {"op", kOp, kOneOf,
     [](FaultRule& rule, Text text) { return keep(rule.message, find_word(kMessages, text)); },
     kMessages},
    {"qp", kQp, "any or a number from 1",
     [](FaultRule& rule, Text text) {
       return text == "any" || keep_count<&FaultRule::queue_pair>(rule, text);
     }},
    {"nth", kNth, kCount, keep_count<&FaultRule::count>},
    {"after", kAfter, "a number",
     [](FaultRule& rule, Text text) {
       return keep(rule.count, read_number<uint64_t>(text)) && ++rule.count != 0;
     }},
    {"every", kEvery, kCount, keep_count<&FaultRule::count>, {}, FaultRule::When::kEvery},
    {"p",
     kChance,
     "a probability above 0 and up to 1",
     [](FaultRule& rule, Text text) { return keep(rule.chance, read_chance(text)); },
     {},
     FaultRule::When::kChance},
    {"at", kAt, kTime, keep_time<&FaultRule::at_ns>, {}, FaultRule::When::kAt},
    {"times", kTimes, kCount, keep_count<&FaultRule::times>},
    {"status", kStatus, kOneOf,
     [](FaultRule& rule, Text text) { return keep(rule.status, find_word(kStatuses, text)); },
     kStatuses},
    {"code", kCode, "LAYER/TYPE/CODE such as 1/2/02",
     [](FaultRule& rule, Text text) { return keep(rule.code, read_terminate(text)); }},
    {"for", kFor, kTime, keep_time<&FaultRule::for_ns>},
    {"rate", kRate, "bytes per second such as 500K or 10M",
     [](FaultRule& rule, Text text) {
       return keep_positive(rule.rate, read_quantity(text, kRateUnits));
     }},
    {"delay", kDelay, kTime, keep_time<&FaultRule::delay_ns>},
    {"type", kType, kOneOf,
     [](FaultRule& rule, Text text) { return keep(rule.event, find_word(kEvents, text)); },
     kEvents},
    {"burst", kBurst, kCount, keep_count<&FaultRule::burst>},
    {"latency", kLatency, "a time from 1us to 1s",
     [](FaultRule& rule, Text text) {
       return keep(rule.wire.latency_ns, read_limited(text, kTimeUnits, 1, WireTerms::kMostNs));
     }},
    {"jitter", kJitter, "a time from 1us to 1s",
     [](FaultRule& rule, Text text) {
       return keep(rule.wire.jitter_ns, read_limited(text, kTimeUnits, 1, WireTerms::kMostNs));
     }},
    {"rate", kLinkRate, "bits per second from 10K to 1000G, such as 100M or 10G",
     [](FaultRule& rule, Text text) {
       return keep(rule.wire.bits_per_second,
                   read_limited(text, kLinkUnits, WireTerms::kLeastRate, WireTerms::kMostRate));
     }},
    {"queue", kQueue, "bytes from 4096 to 1G, such as 64K",
     [](FaultRule& rule, Text text) {
       return keep(rule.wire.queue_bytes,
                   read_limited(text, kRateUnits, WireTerms::kLeastQueue, WireTerms::kMostQueue));
     }},
    {"peer", kPeer, "an IPv4 or IPv6 address",
     [](FaultRule& rule, Text text) { return keep(rule.peer, read_address(text)); }},
};

std::string quoted(Text text) { return "\"" + std::string(text) + "\""; }

/// Reads one rule; the first thing that is wrong with it stands in `error`.
class RuleReader {
 public:
  RuleReader(std::string& error, FaultRule& rule) : error_(error), rule_(rule) {}

  void read(Text text) {
    const Text kind = next_word(text);
    const auto row = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [&](const KindRow& one) { return kind == one.name; });
    if (row == std::end(kKinds)) return complain(quoted(kind) + " is not a kind of fault");
    name_ = row->name;
    rule_.kind = row->kind;
    while (error_.empty()) {
      const Text word = next_word(text);
      if (word.empty()) break;
      read_word(word, row->keys);
    }
    if (error_.empty()) finish(*row);
  }

  /// Takes the next word off the front of `text`.
  static Text next_word(Text& text) {
    constexpr const char* kSpace = " \t\r\n";
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    const Text word = text.substr(0, text.find_first_of(kSpace));
    text.remove_prefix(word.size());
    return word;
  }

 private:
  void complain(const std::string& what) {
    if (error_.empty()) error_ = name_.empty() ? what : name_ + ": " + what;
  }

  void read_word(Text word, uint32_t allowed) {
    const size_t equals = word.find('=');
    if (equals == Text::npos) return complain(quoted(word) + " is not KEY=VALUE");
    const Text name = word.substr(0, equals);
    // A name may be that of two keys, each of other kinds.
    const auto key = std::find_if(std::begin(kKeys), std::end(kKeys), [&](const KeyRow& one) {
      return name == one.name && (one.key & allowed) != 0;
    });
    if (key == std::end(kKeys))
      return complain(quoted(name) + " is not a word of this kind of fault");
    if ((seen_ & key->key) != 0) return complain(quoted(name) + " is given twice");
    seen_ |= key->key;
    if (key->when != FaultRule::When::kNth) rule_.when = key->when;
    if (!key->keep(rule_, word.substr(equals + 1)))
      complain(quoted(word) + " is not " + key->expected + names_of(key->words));
  }

  // What holds between words.
  void finish(const KindRow& row) {
    if (row.needed != 0 && (seen_ & row.needed) == 0) {
      std::string names;
      for (const KeyRow& key : kKeys)
        if ((row.needed & key.key) != 0) names += (names.empty() ? "" : " or ") + quoted(key.name);
      return complain(names + " is missing");
    }
    if (row.kind == FaultKind::kWire) return finish_wire();
    const uint32_t triggers = seen_ & kTriggers;
    if ((triggers & (triggers - 1)) != 0)
      return complain("only one of nth, after, every, p and at");
    if (row.kind == FaultKind::kNoReceive) rule_.message = FaultMessage::kArrival;
    const bool arrival = rule_.message == FaultMessage::kArrival;
    if (arrival && (row.kind == FaultKind::kCorrupt || row.kind == FaultKind::kSlow))
      return complain("\"op=recv\" is not possible: this kind of fault acts on what is sent");
  }

  void finish_wire() {
    if (rule_.wire.jitter_ns > rule_.wire.latency_ns)
      return complain("\"jitter\" is more than \"latency\"");
    if ((seen_ & kQueue) != 0 && (seen_ & kLinkRate) == 0)
      complain("\"queue\" without \"rate\": nothing waits for a wire without a rate");
  }

  std::string& error_;
  FaultRule& rule_;
  std::string name_;
  uint32_t seen_ = 0;
};

/// True if `text` is a seed; a bad one is an error.
bool read_seed(Text text, FaultPlan& plan, std::string& error) {
  const Text word = RuleReader::next_word(text);
  constexpr Text kSeed = "seed=";
  if (word.substr(0, kSeed.size()) != kSeed) return false;
  const auto seed = read_number<uint64_t>(word.substr(kSeed.size()));
  if (!seed)
    error = quoted(word) + " is not a number";
  else if (!RuleReader::next_word(text).empty())
    error = "a semicolon is missing behind " + quoted(word);
  else
    plan.seed = *seed;
  return true;
}

}  // namespace

bool FaultPlan::has(FaultKind kind) const {
  return std::any_of(rules.begin(), rules.end(),
                     [kind](const FaultRule& rule) { return rule.kind == kind; });
}

FaultPlan FaultPlan::parse(std::string_view text, std::string& error) {
  FaultPlan plan;
  error.clear();
  while (!text.empty() && error.empty()) {
    const Text part = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    Text rest = part;
    if (RuleReader::next_word(rest).empty() || read_seed(part, plan, error)) continue;
    RuleReader(error, plan.rules.emplace_back()).read(part);
  }
  for (FaultRule& rule : plan.rules) rule.wire.seed = plan.seed;
  return error.empty() ? plan : FaultPlan{};
}

const char* name_of(FaultKind kind) {
  for (const KindRow& row : kKinds)
    if (row.kind == kind) return row.name;
  return "?";
}

const char* name_of_status(uint32_t status) {
  for (const Word& word : kStatuses)
    if (word.value == status) return word.name;
  return "unknown status";
}

FaultCounter::FaultCounter(const FaultPlan& plan, size_t rule, uint64_t stream)
    : rule_(plan.rules[rule]),
      salt_(splitmix(splitmix(plan.seed) ^ splitmix(rule) ^ (stream << 32))) {}

bool FaultCounter::due() const {
  switch (rule_.when) {
    case FaultRule::When::kNth:
      // A slow link is slow from then on.
      return counted_ == rule_.count || (rule_.kind == FaultKind::kSlow && counted_ > rule_.count);
    case FaultRule::When::kEvery:
      return counted_ % rule_.count == 0;
    case FaultRule::When::kChance:
      return splitmix(salt_ + counted_) <= rule_.chance;
    case FaultRule::When::kAt:
      return false;
  }
  return false;
}

bool FaultCounter::count() {
  ++counted_;
  if ((rule_.times != 0 && acted_ == rule_.times) || !due()) return false;
  ++acted_;
  return true;
}

}  // namespace uwarp
