// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Opens a file for writing whose name the user has given (UWARP_LOG, UWARP_PCAP, UWARP_TRACE). The
// process may run as root, and the name may lie in a folder that other users can write to.
#pragma once

#include <sys/types.h>

namespace uwarp {

/// Creates the file or opens an existing one, for writing, close-on-exec. Never follows a symbolic
/// link in the last part of the name, never waits, and takes regular files only. Raw system calls.
/// A negative errno on failure; -EINVAL when something other than a regular file is there.
/// `more_flags` are open()'s (O_APPEND).
int open_named_file(const char* path, int more_flags, mode_t mode);

/// What went wrong, for people: the text of a negative result of open_named_file().
const char* named_file_error(int result);

}  // namespace uwarp
