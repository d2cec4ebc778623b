// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Debian's Abseil has a string_view of its own, which std::string_view does not become.
#pragma once

#include <concepts>
#include <string_view>

#include_next "absl/strings/match.h"

namespace absl {
template <std::same_as<std::string_view> Text>
bool StartsWith(Text text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}
}  // namespace absl
