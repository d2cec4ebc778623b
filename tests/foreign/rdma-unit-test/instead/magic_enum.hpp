// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// In place of magic_enum: the suite only prints with it.
#pragma once

#include <string>

namespace magic_enum {
template <typename Enum>
std::string enum_name(Enum value) {
  return std::to_string(static_cast<long long>(value));
}
}  // namespace magic_enum
