// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Texts as the bytes of a file.
#pragma once

#include <span>
#include <string>

#include "nfs/xdr.h"

namespace uwarp::nfs {

/// Owned by `text`.
inline ConstBytes bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace uwarp::nfs
