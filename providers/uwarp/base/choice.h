// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Values of settings and of profiles that are one of a few words.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>

namespace uwarp {

/// Index of `text` among words with | between them.
inline std::optional<size_t> find_choice(std::string_view choices, std::string_view text) {
  for (size_t index = 0; !choices.empty(); ++index) {
    const size_t bar = std::min(choices.find('|'), choices.size());
    if (choices.substr(0, bar) == text) return index;
    choices.remove_prefix(std::min(bar + 1, choices.size()));
  }
  return std::nullopt;
}

}  // namespace uwarp
