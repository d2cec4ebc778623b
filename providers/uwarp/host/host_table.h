/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The whole contact between libuwarp-preload.so and libuwarp.so: a table of C functions each way.
 * The preload asks for the engine's table when the process first touches something of RDMA.
 * Plain C, no allocation crosses, errors are -1 (or null) and errno, as in the calls they serve.
 * errno is left as it was otherwise.
 */
#pragma once

#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/types.h>

#include "events/preload_table.h"

#ifdef __cplusplus
extern "C" {
#endif

#define UWARP_HOST_TABLE_VERSION 7u

/* The engine's side. */
struct uwarp_host_table {
  uint32_t version; /* UWARP_HOST_TABLE_VERSION; differs: the preload does not use the engine */

  /* First call of all, once. The preload's table stays valid for ever. */
  void (*attach)(const struct uwarp_preload_table* preload);

  /* Makes the sysfs tree exist and be up to date, and returns its root. `wanted` is where
   * SYSFS_PATH points; the result differs from it when that place could not be used, or belongs
   * to the parent of a forked process. Null when no tree can be made. The string is never freed. */
  const char* (*sysfs_root)(const char* wanted);
  /* The same without looking for changes of netdevs: for each access below the tree. */
  const char* (*sysfs_root_cached)(const char* wanted);
  /* Opens a counter file (its path below the root, "class/infiniband/..."), marked already;
   * -1 and ENOENT for a file that is no counter: open it as it is. */
  int (*open_counter)(const char* path, int flags);
  /* The application is about to read from such a file, not by read(). */
  void (*refresh)(int fd);

  /* 1 if there is a device of ours; real ones of the host do not count. */
  int (*has_devices)(void);
  /* 1 if /dev/infiniband/uverbs<number> or rdma_cm is ours, 0 if it is not. */
  int (*has_uverbs)(int number);
  int (*has_rdma_cm)(void);
  /* The fd of a node, marked already; flags as for open(). */
  int (*open_uverbs)(int number, int flags);
  int (*open_rdma_cm)(int flags);

  /* write() on a uverbs or rdma_cm fd. May block (GET_EVENT) and is then a cancellation point. */
  ssize_t (*write)(int fd, enum uwarp_fd_kind kind, const void* bytes, size_t length);
  /* read() on a channel's or counter's fd. May block, and is then a cancellation point. */
  ssize_t (*read)(int fd, void* bytes, size_t length);
  /* The application waits until call(argument, 0) is not 0 (if it is negative, with errno), which
   * happens when one of `fds` is readable at the latest: serves the sockets meanwhile, or sleeps in
   * call(argument, rest of the timeout) while another thread serves them. 0, ETIMEDOUT or EINTR;
   * EBUSY when there is nothing to serve. `timeout_ns` negative: none. `signals`, where not null,
   * is the mask while the thread sleeps, as in ppoll(). A cancellation point. */
  int (*serve_until)(int (*call)(void* argument, int64_t timeout_ns), void* argument,
                     const struct pollfd* fds, size_t count, int64_t timeout_ns,
                     const sigset_t* signals);
  /* The application is about to close this fd, which is unmarked already. */
  void (*closing)(int fd);
  /* `copy` now refers to the same open file as `fd`. */
  void (*duplicated)(int fd, int copy);
  /* The application is about to call daemon(); the leader of a new session is made of this process.
   * Says so when listeners are lost by it. */
  void (*becoming_daemon)(void);
  void (*leading_session)(void);
};

/* Exported by libuwarp.so. */
const struct uwarp_host_table* uwarp_host(void);

#ifdef __cplusplus
}
#endif
