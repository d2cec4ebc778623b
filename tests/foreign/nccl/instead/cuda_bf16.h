// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#pragma once
#include "cuda_runtime.h"
