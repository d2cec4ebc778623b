// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Some sandboxes and QEMU's user emulation have no process_vm_readv(), so bad addresses are not
// found there. The engine works without it, but tests of bad addresses cannot run.
#pragma once

#include <gtest/gtest.h>

#include "memory/fault_safe_copy.h"

#define UWARP_NEEDS_KERNEL_COPIES() \
  if (!fault_safe_copy_works()) GTEST_SKIP() << "no process_vm_readv() here"
