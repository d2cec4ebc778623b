/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* The header as C sees it. */
#include "rpcrdma/rpcrdma.h"

int c_interface_works(void);

int c_interface_works(void) {
  struct rpcrdma_client_options client;
  struct rpcrdma_server_options server;
  struct rpcrdma_client* none = 0;
  rpcrdma_client_options_init(&client);
  rpcrdma_server_options_init(&server);
  return client.inline_send == RPCRDMA_INLINE_DEFAULT &&
         server.inline_receive == RPCRDMA_INLINE_DEFAULT && rpcrdma_version()[0] != 0 &&
         rpcrdma_client_connect(&none, 0, RPCRDMA_PORT_NFS, &client) < 0;
}
