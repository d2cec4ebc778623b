// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// In place of Abseil's log, which is newer than Debian 12: glog has the same macros.
#pragma once

#include <glog/logging.h>

#define LOG_EVERY_N_SEC(severity, seconds) LOG_EVERY_N(severity, 1000000)
