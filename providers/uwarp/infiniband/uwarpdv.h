/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Direct verbs of uwarp: what the standard verbs have no call for. Link with -luwarp. Each call
 * that returns an errno tells by EOPNOTSUPP that a queue pair is of another provider.
 */
#pragma once

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* True if this device is one of uwarp's. */
bool uwarpdv_is_supported(struct ibv_device* device);

enum uwarpdv_peer_caps {
  UWARPDV_PEER_CONNECTED = 1 << 0,     /* the others mean something only with this one */
  UWARPDV_PEER_UWARP = 1 << 1,         /* the peer has shown that it is a uwarp */
  UWARPDV_PEER_SEND_WITH_IMM = 1 << 2, /* IBV_WR_SEND_WITH_IMM will be taken */
  UWARPDV_PEER_ATOMICS = 1 << 3,       /* known to execute RFC 7306 atomics, also masked ones.
                                          Others may all the same */
  UWARPDV_PEER_TLS = 1 << 4,           /* the peer has proved an identity, and what goes over the
                                          network is encrypted */
};

enum uwarpdv_peer_attr_mask {
  UWARPDV_PEER_ATTR_IDENTITY = 1 << 0,
};

struct uwarpdv_peer_attr {
  uint64_t comp_mask; /* out: fields behind `reserved` that are filled in, of
                         enum uwarpdv_peer_attr_mask */
  uint32_t caps;      /* enum uwarpdv_peer_caps */
  uint32_t reserved;
  char identity[136]; /* with UWARPDV_PEER_TLS: name of the peer's key or certificate, ends with a
                         zero */
};

/*
 * What is known of the peer of a queue pair at this moment. `length` is the size of the caller's
 * struct: a longer one is filled up with zeros, a shorter one gets the fields that it has room for,
 * but all to `reserved`. 0, EINVAL (too short) or EOPNOTSUPP.
 */
int uwarpdv_query_peer(struct ibv_qp* qp, struct uwarpdv_peer_attr* attr, uint32_t length);

/*
 * Masked atomics of RFC 7306.
 *
 * Compare and swap: if the bits of compare_mask are the same in the target and in `compare`, the
 * bits of swap_mask of the target are replaced by those of `swap`.
 *
 * Fetch and add: `boundary` cuts the 64 bits into fields. Each bit that is set is the highest of a
 * field, out of which no carry goes; 0 means one field of 64 bits.
 *
 * The old value goes to the local buffer, 8 bytes, in host order. The completion has the opcode
 * IBV_WC_COMP_SWAP or IBV_WC_FETCH_ADD.
 */
enum uwarpdv_atomic_opcode {
  UWARPDV_MASKED_CMP_SWP = 0,
  UWARPDV_MASKED_FETCH_ADD = 1,
};

struct uwarpdv_atomic_wr {
  uint64_t wr_id;
  struct uwarpdv_atomic_wr* next;
  struct ibv_sge* sg_list;
  int num_sge;
  enum uwarpdv_atomic_opcode opcode;
  unsigned int send_flags; /* enum ibv_send_flags */
  uint32_t rkey;
  uint64_t remote_addr;
  union {
    struct {
      uint64_t compare;
      uint64_t compare_mask;
      uint64_t swap;
      uint64_t swap_mask;
    } cmp_swp;
    struct {
      uint64_t add;
      uint64_t boundary;
    } fetch_add;
  } op;
};

/* As ibv_post_send(). EOPNOTSUPP: a queue pair of datagrams. */
int uwarpdv_post_atomic(struct ibv_qp* qp, struct uwarpdv_atomic_wr* wr,
                        struct uwarpdv_atomic_wr** bad_wr);

/*
 * The same between ibv_wr_start() and ibv_wr_complete(), followed by ibv_wr_set_sge(). The queue
 * pair must be of a device of uwarp (these two do not look: uwarpdv_is_supported() tells), and have
 * been made for the plain operation (IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP or
 * IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).
 */
void uwarpdv_wr_masked_cmp_swp(struct ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr,
                               uint64_t compare, uint64_t compare_mask, uint64_t swap,
                               uint64_t swap_mask);
void uwarpdv_wr_masked_fetch_add(struct ibv_qp_ex* qp, uint32_t rkey, uint64_t remote_addr,
                                 uint64_t add, uint64_t boundary);

#ifdef __cplusplus
}
#endif
