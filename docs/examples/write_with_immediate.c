/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * RDMA Write with immediate. The client writes text into the server's memory. The 32 bits that
 * travel with the Write give the server a completion, so that it knows that the text is there.
 *
 *   write_with_immediate PORT              the server: shows what one client writes
 *   write_with_immediate PORT HOST TEXT    the client
 */
#include <arpa/inet.h>
#include <endian.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the server tells the client when it accepts: where to write. In network byte order. */
struct room {
  uint64_t address;
  uint32_t key;
  uint32_t length;
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

static void serve(const char* port) {
  static char text[4096];
  struct rdma_cm_id *listener = endpoint(NULL, port), *id;
  check(!rdma_listen(listener, 1), "rdma_listen");
  check(!rdma_get_request(listener, &id), "rdma_get_request");

  struct ibv_mr* memory = rdma_reg_write(id, text, sizeof text);
  check(memory != NULL, "rdma_reg_write");
  struct room room = {htobe64((uintptr_t)text), htonl(memory->rkey), htonl(sizeof text)};
  struct rdma_conn_param parameters = {.private_data = &room, .private_data_len = sizeof room};
  /* The Write itself needs no receive. Its immediate data does: one without memory. */
  check(!rdma_post_recvv(id, NULL, NULL, 0), "rdma_post_recvv");
  check(!rdma_accept(id, &parameters), "rdma_accept");

  struct ibv_wc done;
  check(rdma_get_recv_comp(id, &done) == 1, "rdma_get_recv_comp");
  check(done.status == IBV_WC_SUCCESS, ibv_wc_status_str(done.status));
  check(done.opcode == IBV_WC_RECV_RDMA_WITH_IMM && done.wc_flags & IBV_WC_WITH_IMM, "completion");
  printf("%u bytes, immediate %u: %.*s\n", done.byte_len, ntohl(done.imm_data), (int)done.byte_len,
         text);

  rdma_disconnect(id);
  rdma_dereg_mr(memory);
  rdma_destroy_ep(id);
  rdma_destroy_ep(listener);
}

static void write_to(const char* host, const char* port, char* text) {
  uint32_t length = strlen(text);
  struct rdma_cm_id* id = endpoint(host, port);
  struct rdma_conn_param parameters = {.retry_count = 7, .rnr_retry_count = 7};
  check(!rdma_connect(id, &parameters), "rdma_connect");
  struct room room;
  memcpy(&room, id->event->param.conn.private_data, sizeof room);
  check(length <= ntohl(room.length), "the server has less room");

  struct ibv_mr* memory = rdma_reg_msgs(id, text, length);
  check(memory != NULL, "rdma_reg_msgs");
  struct ibv_sge piece = {(uintptr_t)text, length, memory->lkey};
  struct ibv_send_wr request = {
      .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
      .sg_list = &piece,
      .num_sge = 1,
      .imm_data = htonl(42),
      .wr.rdma = {.remote_addr = be64toh(room.address), .rkey = ntohl(room.key)}};
  struct ibv_send_wr* bad;
  check(!(errno = ibv_post_send(id->qp, &request, &bad)), "ibv_post_send");

  struct ibv_wc done;
  check(rdma_get_send_comp(id, &done) == 1, "rdma_get_send_comp");
  check(done.status == IBV_WC_SUCCESS, ibv_wc_status_str(done.status));
  rdma_disconnect(id);
  rdma_dereg_mr(memory);
  rdma_destroy_ep(id);
}

int main(int argc, char** argv) {
  if (argc != 2 && argc != 4) {
    fputs("usage: write_with_immediate PORT [HOST TEXT]\n", stderr);
    return 2;
  }
  if (argc == 2) serve(argv[1]);
  if (argc == 4) write_to(argv[2], argv[1], argv[3]);
  return 0;
}
