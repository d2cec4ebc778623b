// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Debian's Abseil does not split into std::string_view, as its string_view is another one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include_next "absl/strings/str_split.h"

namespace absl {

/// Becomes a vector of any kind of string. Made and used in one expression.
struct SplitAtChar {
  template <typename String>
  operator std::vector<String>() const {
    std::vector<String> parts;
    size_t at = 0;
    for (size_t next; (next = text.find(by, at)) != text.npos; at = next + 1)
      parts.emplace_back(text.substr(at, next - at));
    parts.emplace_back(text.substr(at));
    return parts;
  }
  std::string_view text;
  char by;
};
inline SplitAtChar StrSplit(const std::string& text, char by) { return {text, by}; }

}  // namespace absl
