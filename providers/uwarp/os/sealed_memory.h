// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Memory with a descriptor and without a name in any file system, sealed so that no process that
// has it can cut it short under another one (memfd_create(2)).
#pragma once

#include <cstddef>

#include "os/engine_fds.h"

namespace uwarp {

/// `bytes` of it, zeros. `name` is what /proc shows. Empty, and errno: EMFILE, ENOMEM...
EngineFd make_sealed_memory(const char* name, size_t bytes);
/// What another process brings is such memory: neither its size nor its seals can change. False
/// for any other file.
bool is_sealed_memory(int fd);

}  // namespace uwarp
