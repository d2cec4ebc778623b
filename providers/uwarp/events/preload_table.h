/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* What the preload keeps for the engine: what each file descriptor stands for. Plain C, as
 * host_table.h. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a file descriptor stands for. Kept per fd by the preload. */
enum uwarp_fd_kind {
  UWARP_FD_FOREIGN = 0,
  UWARP_FD_UVERBS = 1,        /* /dev/full in place of /dev/infiniband/uverbsN */
  UWARP_FD_RDMA_CM = 2,       /* an eventfd in place of /dev/infiniband/rdma_cm */
  UWARP_FD_EVENT_CHANNEL = 3, /* the application's end of a completion channel */
  UWARP_FD_COUNTER = 6,       /* memory in place of a counter's file in sysfs */
  UWARP_FD_EPOLL = 5,         /* an epoll set of the application that has the above */
  UWARP_FD_PRIVATE = 4, /* the engine's own: an application that closes all it can must miss it */
};

/* The preload's side. */
struct uwarp_preload_table {
  uint32_t version;
  /* Marks an fd that the engine has opened for the application or for itself, or unmarks it. */
  void (*set_kind)(int fd, enum uwarp_fd_kind kind);
  enum uwarp_fd_kind (*kind_of)(int fd);
  /* In a forked child, before fork() returns there. */
  void (*forked)(void);
};

#ifdef __cplusplus
}
#endif
