// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// What each fd of this process stands for: one byte per fd, so that a foreign one costs one load.
#pragma once

#include <atomic>
#include <cstdint>

#include "host/host_table.h"

namespace uwarp_preload {

/// As many as the kernel's default fs.nr_open. Zero pages until used.
inline constexpr int kFdTableSize = 1 << 20;

/// Only by way of fd_kind().
extern uint8_t fd_kinds[kFdTableSize];
inline std::atomic_ref<uint8_t> fd_kind(int fd) { return std::atomic_ref(fd_kinds[fd]); }

inline uwarp_fd_kind kind_of(int fd) {
  if (static_cast<unsigned>(fd) >= static_cast<unsigned>(kFdTableSize)) return UWARP_FD_FOREIGN;
  return static_cast<uwarp_fd_kind>(fd_kind(fd).load(std::memory_order_relaxed));
}

void set_kind(int fd, uwarp_fd_kind kind);

/// Above this fd none is marked.
int highest_marked();

/// False in a vfork() child, which shares our memory but has fds of its own: it must not touch the
/// table. One system call; only for marked fds.
bool table_is_ours();
/// False in a child that has a copy of our memory and that ran no fork handlers (_Fork(), clone()
/// by hand): the engine's threads are not there. True in a vfork() child. No system call.
bool memory_is_ours();
/// The calling process owns the table from now on: at engine start and in a forked child.
void own_table();

}  // namespace uwarp_preload
