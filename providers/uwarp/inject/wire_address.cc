// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "inject/wire_address.h"

#include <algorithm>
#include <charconv>
#include <vector>

namespace uwarp {
namespace {

using Bytes = std::vector<uint8_t>;

std::optional<unsigned> read_part(std::string_view text, int base, size_t most_digits) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || text.size() > most_digits || error != std::errc{} ||
      end != text.data() + text.size())
    return std::nullopt;
  return value;
}

/// Takes what stands before `mark`, and the mark, off the front of `text`.
std::string_view take_part(std::string_view& text, char mark) {
  const std::string_view part = text.substr(0, text.find(mark));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

std::optional<Bytes> read_v4(std::string_view text) {
  if (std::count(text.begin(), text.end(), '.') != 3) return std::nullopt;
  Bytes bytes;
  for (int i = 0; i < 4; ++i) {
    const auto part = read_part(take_part(text, '.'), 10, 3);
    if (!part || *part > 255) return std::nullopt;
    bytes.push_back(static_cast<uint8_t>(*part));
  }
  return bytes;
}

/// Groups between colons; none of an empty text. The last may be an IPv4 address at the `end` of
/// the whole.
std::optional<Bytes> read_groups(std::string_view text, bool end) {
  Bytes bytes;
  if (text.empty()) return bytes;
  for (size_t left = 1 + static_cast<size_t>(std::count(text.begin(), text.end(), ':')); left > 0;
       --left) {
    const std::string_view part = take_part(text, ':');
    if (const auto v4 = end && left == 1 ? read_v4(part) : std::nullopt) {
      bytes.insert(bytes.end(), v4->begin(), v4->end());
      break;
    }
    const auto group = read_part(part, 16, 4);
    if (!group) return std::nullopt;
    bytes.push_back(static_cast<uint8_t>(*group >> 8));
    bytes.push_back(static_cast<uint8_t>(*group));
  }
  return bytes;
}

}  // namespace

std::optional<WireAddress> read_wire_address(std::string_view text) {
  WireAddress address{};
  if (const auto v4 = read_v4(text)) {
    address[10] = address[11] = 0xff;
    std::copy(v4->begin(), v4->end(), address.begin() + 12);
    return address;
  }
  const size_t gap = text.find("::");
  const bool whole = gap == std::string_view::npos;
  const auto front = read_groups(text.substr(0, gap), whole);
  const auto back = read_groups(whole ? std::string_view() : text.substr(gap + 2), true);
  if (!front || !back) return std::nullopt;
  const size_t given = front->size() + back->size();
  // "::" stands for at least one group.
  if (whole ? given != address.size() : given > address.size() - 2) return std::nullopt;
  std::copy(front->begin(), front->end(), address.begin());
  std::copy(back->begin(), back->end(), address.end() - static_cast<ptrdiff_t>(back->size()));
  return address;
}

}  // namespace uwarp
