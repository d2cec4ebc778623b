// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// XDR items fill whole words (RFC 4506 3).
#pragma once

#include <cstddef>

namespace rpcrdma::core {

inline constexpr size_t kXdrUnit = 4;

constexpr size_t round_up(size_t length) { return (length + kXdrUnit - 1) / kXdrUnit * kXdrUnit; }

}  // namespace rpcrdma::core
