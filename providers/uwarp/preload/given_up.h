// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Descriptors that libc closes on its own, where no call of close() is seen.
#pragma once

#include <stdio.h>

namespace uwarp_preload {

/// Before libc closes the file's fd: it stands for nothing of ours any more. Keeps errno.
void give_up(FILE* file);

}  // namespace uwarp_preload
