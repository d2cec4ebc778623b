// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "base/address_prefix.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>

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

}  // namespace uwarp
