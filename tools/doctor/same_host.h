// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Whether connections on this host may leave TCP for shared memory.
#pragma once

#include <string>

#include "base/settings.h"

namespace doctor {

/// The setting that keeps all connections on TCP, as it is set; empty: none does.
std::string why_only_tcp(const uwarp::Settings& settings);

}  // namespace doctor
