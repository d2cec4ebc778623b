// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The verbs that verbs_table.h lists, each defined with its object. They may throw:
// verbs_table.cc makes an errno of that.
#pragma once

#include <cerrno>
#include <cstddef>

#include "base/bytes.h"
#include "base/c_boundary.h"
#include "verbs/verbs_table.h"

namespace uwarp {

#define UWARP_VERBS_DECLARATION(name, result, parameters) result name parameters;
UWARP_VERBS_OPERATIONS(UWARP_VERBS_DECLARATION)
#undef UWARP_VERBS_DECLARATION

/// Null with errno set, as verbs that return a pointer fail.
inline std::nullptr_t fail(int error) {
  errno = error;
  return nullptr;
}

}  // namespace uwarp
