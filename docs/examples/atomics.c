/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Atomics. Two numbers are in the server's memory: a counter, to which each client adds one some
 * times (fetch and add), and the largest ticket that any client has drawn from it (compare and
 * swap, repeated until no other client came between). The server only connects and waits.
 *
 *   atomics PORT CLIENTS       the server: shows both numbers once so many clients have left
 *   atomics PORT HOST COUNT    a client
 */
#include <arpa/inet.h>
#include <endian.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNTER, LARGEST, NUMBERS };

/* What the server tells each client when it accepts. In network byte order. */
struct place {
  uint64_t address;
  uint32_t key;
};

static void check(int ok, const char* what) {
  if (ok) return;
  perror(what);
  exit(1);
}

static struct rdma_cm_id* endpoint(const char* host, const char* port) {
  struct rdma_addrinfo hints = {.ai_flags = host ? 0 : RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP};
  struct ibv_qp_init_attr attributes = {
      .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
      .sq_sig_all = 1};
  struct rdma_addrinfo* address;
  struct rdma_cm_id* id;
  check(!rdma_getaddrinfo(host, port, &hints, &address), "rdma_getaddrinfo");
  check(!rdma_create_ep(&id, address, NULL, &attributes), "rdma_create_ep");
  rdma_freeaddrinfo(address);
  return id;
}

static void serve(const char* port, int clients) {
  static uint64_t numbers[NUMBERS]; /* static: at an address that is a multiple of 8 */
  struct rdma_cm_id *listener = endpoint(NULL, port), *ids[clients];
  check(!rdma_listen(listener, clients), "rdma_listen");
  for (int i = 0; i < clients; i++) {
    check(!rdma_get_request(listener, &ids[i]), "rdma_get_request");
    struct ibv_mr* memory = ibv_reg_mr(ids[i]->pd, numbers, sizeof numbers,
                                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
    check(memory != NULL, "ibv_reg_mr");
    struct place place = {htobe64((uintptr_t)numbers), htonl(memory->rkey)};
    struct rdma_conn_param parameters = {
        .private_data = &place, .private_data_len = sizeof place, .responder_resources = 1};
    check(!rdma_post_recvv(ids[i], NULL, NULL, 0), "rdma_post_recvv");
    check(!rdma_accept(ids[i], &parameters), "rdma_accept");
  }
  for (int i = 0; i < clients; i++) { /* Each client says goodbye by an empty message. */
    struct ibv_wc done;
    check(rdma_get_recv_comp(ids[i], &done) == 1, "rdma_get_recv_comp");
    check(done.status == IBV_WC_SUCCESS, ibv_wc_status_str(done.status));
  }
  printf("counter %lu, largest ticket %lu\n", numbers[COUNTER], numbers[LARGEST]);
}

/* Runs one atomic on a number of the server. Returns what the number was before. */
static uint64_t atomic(struct rdma_cm_id* id, struct ibv_mr* memory, struct ibv_send_wr request,
                       const struct place* place, int number) {
  struct ibv_sge old = {(uintptr_t)memory->addr, sizeof(uint64_t), memory->lkey};
  struct ibv_send_wr* bad;
  struct ibv_wc done;
  request.sg_list = &old;
  request.num_sge = 1;
  request.wr.atomic.remote_addr = be64toh(place->address) + number * sizeof(uint64_t);
  request.wr.atomic.rkey = ntohl(place->key);
  check(!(errno = ibv_post_send(id->qp, &request, &bad)), "ibv_post_send");
  check(rdma_get_send_comp(id, &done) == 1, "rdma_get_send_comp");
  check(done.status == IBV_WC_SUCCESS, ibv_wc_status_str(done.status));
  return *(uint64_t*)memory->addr;
}

static void count(const char* host, const char* port, int times) {
  static uint64_t old;
  struct rdma_cm_id* id = endpoint(host, port);
  struct rdma_conn_param parameters = {
      .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
  check(!rdma_connect(id, &parameters), "rdma_connect");
  struct place place;
  memcpy(&place, id->event->param.conn.private_data, sizeof place);
  struct ibv_mr* memory = rdma_reg_msgs(id, &old, sizeof old);
  check(memory != NULL, "rdma_reg_msgs");

  for (int i = 0; i < times; i++) {
    struct ibv_send_wr add = {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .wr.atomic.compare_add = 1};
    uint64_t ticket = atomic(id, memory, add, &place, COUNTER) + 1, largest = 0, seen;
    struct ibv_send_wr swap = {.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .wr.atomic.swap = ticket};
    while (largest < ticket) { /* until the swap took place, or another client's is larger */
      swap.wr.atomic.compare_add = largest;
      seen = atomic(id, memory, swap, &place, LARGEST);
      if (seen == largest) break;
      largest = seen;
    }
  }
  struct ibv_wc done;
  check(!rdma_post_send(id, NULL, &old, 0, memory, 0), "rdma_post_send");
  check(rdma_get_send_comp(id, &done) == 1, "rdma_get_send_comp");
  rdma_disconnect(id);
  rdma_destroy_ep(id);
}

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    fputs("usage: atomics PORT CLIENTS | PORT HOST COUNT\n", stderr);
    return 2;
  }
  if (argc == 3) serve(argv[1], atoi(argv[2]));
  if (argc == 4) count(argv[2], argv[1], atoi(argv[3]));
  return 0;
}
