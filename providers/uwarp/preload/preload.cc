// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Start of libuwarp-preload.so in every process that has it. Must stay cheap: shells and compilers
// pay for it too.
#include "preload/own_root.h"

namespace {

[[gnu::constructor]] void start() { uwarp_preload::set_sysfs_path(); }

}  // namespace
