// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "tls/key_list.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace uwarp {

namespace {

std::optional<uint8_t> digit_of(char c) {
  if (c >= '0' && c <= '9') return static_cast<uint8_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<uint8_t>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<uint8_t>(c - 'A' + 10);
  return std::nullopt;
}

std::string_view trimmed(std::string_view line) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t first = line.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return line.substr(first, line.find_last_not_of(kSpace) + 1 - first);
}

bool parse_hex(std::string_view text, std::vector<uint8_t>& bytes) {
  if (text.size() % 2 != 0) return false;
  bytes.reserve(text.size() / 2);  // no copy of a key stays behind
  for (size_t i = 0; i < text.size(); i += 2) {
    const auto high = digit_of(text[i]), low = digit_of(text[i + 1]);
    if (!high || !low) return false;
    bytes.push_back(static_cast<uint8_t>(*high << 4 | *low));
  }
  return true;
}

}  // namespace

bool is_identity(std::string_view text) {
  constexpr std::string_view kNot = "\"',?\\";
  return !text.empty() && text.size() <= KeyList::kMostIdentity &&
         std::all_of(text.begin(), text.end(), [&](char c) {
           return c > 0x20 && c < 0x7F && kNot.find(c) == std::string_view::npos;
         });
}

KeyList::~KeyList() {
  for (PresharedKey& key : keys_) explicit_bzero(key.bytes.data(), key.bytes.size());
}

const PresharedKey* KeyList::find(std::string_view identity) const {
  const auto found = std::find_if(keys_.begin(), keys_.end(),
                                  [&](const auto& key) { return key.identity == identity; });
  return found == keys_.end() ? nullptr : &*found;
}

std::string KeyList::parse(std::string_view text) {
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty() || line.front() == '#') continue;
    const std::string wrong = parse_line(line);
    if (!wrong.empty()) return "line " + std::to_string(number) + " " + wrong;
  }
  return keys_.empty() ? "has no key: a line is identity:hexkey" : std::string();
}

std::string KeyList::parse_line(std::string_view line) {
  const size_t colon = line.rfind(':');
  if (colon == std::string_view::npos) return "is not identity:hexkey";
  PresharedKey key{std::string(trimmed(line.substr(0, colon))), {}};
  if (!is_identity(key.identity))
    return "has an identity that is not 1 to 128 letters, digits and signs but , ? \\ and quotes";
  if (find(key.identity) != nullptr) return "has the identity of an earlier line";
  if (!parse_hex(trimmed(line.substr(colon + 1)), key.bytes))
    return "has a key that is not an even number of hexadecimal digits";
  if (key.bytes.size() < kLeastBytes || key.bytes.size() > kMostBytes)
    return "has a key of less than 16 or more than 64 bytes (openssl rand -hex 32)";
  keys_.push_back(std::move(key));
  return {};
}

}  // namespace uwarp
