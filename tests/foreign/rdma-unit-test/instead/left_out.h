// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Before each source of the suite: what it takes from headers that it does not include.
#pragma once

#include <optional>

#include "absl/flags/declare.h"

ABSL_DECLARE_FLAG(bool, silicon);
