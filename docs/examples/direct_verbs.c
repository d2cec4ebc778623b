/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Direct verbs: which RDMA devices are uwarp's. A program asks before it uses what only uwarp has,
 * such as masked atomics (uwarpdv_post_atomic).
 *
 *   direct_verbs
 */
#include <infiniband/uwarpdv.h>
#include <stdio.h>

int main(void) {
  int count;
  struct ibv_device** devices = ibv_get_device_list(&count);
  if (devices == NULL) {
    perror("ibv_get_device_list");
    return 1;
  }
  for (int i = 0; i < count; i++) {
    int ours = uwarpdv_is_supported(devices[i]);
    printf("%s: %s\n", ibv_get_device_name(devices[i]), ours ? "direct verbs" : "plain verbs");
  }
  ibv_free_device_list(devices);
  return 0;
}
