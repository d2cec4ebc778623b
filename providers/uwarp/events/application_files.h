// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The open files that the application has of us, by descriptor: completion channels, channels of
// rdma_cm, counters. Several descriptors may be one file (dup()).
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <span>

#include "events/preload_table.h"

namespace uwarp {

class ApplicationFile {
 public:
  virtual ~ApplicationFile() = default;
  /// What read() on `fd`, one of the descriptors, does.
  virtual ssize_t read(int fd, std::span<std::byte> out) {
    return ::read(fd, out.data(), out.size());
  }
  /// The application is about to read from `fd` without read().
  virtual void refresh(int) {}
  /// The application has closed the last descriptor.
  virtual void last_closed() {}
};

/// The application has `file` as `fd` from now on. Throws std::bad_alloc.
void give_to_application(int fd, uwarp_fd_kind kind, std::shared_ptr<ApplicationFile> file);
/// Null when there is none, as in a forked child.
std::shared_ptr<ApplicationFile> application_file(int fd);
/// The application has closed `fd`, or now has the same file as `copy` too.
void application_file_closed(int fd);
void application_file_duplicated(int fd, int copy);

}  // namespace uwarp
