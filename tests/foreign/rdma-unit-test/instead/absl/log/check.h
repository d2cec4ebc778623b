// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#pragma once

#include "absl/log/log.h"

#define CHECK_OK(status) CHECK((status).ok())
