/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * librpcrdma: ONC RPC messages over RDMA, version 1 (RFC 8166), with the connection private data of
 * RFC 8797. It needs libibverbs and librdmacm, and any device they know.
 *
 * The library carries whole RPC messages (RFC 5531) and does not look into them beyond the XID,
 * their first four bytes. What an upper layer protocol calls DDP-eligible (for NFS: the data of
 * READ and WRITE) is marked by the caller, and moves by RDMA Read and RDMA Write, without a copy,
 * whenever the message would not fit a Send.
 *
 * Functions that return int return 0 or a negative errno value. All functions may be called by any
 * thread. Callbacks run in threads of the library: one per client, and one per connection of a
 * server. A callback may start calls and reply to requests; it must not wait for a call, and not
 * close the object that called it.
 */
#ifndef RPCRDMA_H
#define RPCRDMA_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Bounds of an inline threshold, and what holds when a peer announces none (RFC 8797 4.2). */
#define RPCRDMA_INLINE_MIN 1024u
#define RPCRDMA_INLINE_MAX 262144u
#define RPCRDMA_INLINE_DEFAULT 4096u

/** The port registered for NFS over RDMA. */
#define RPCRDMA_PORT_NFS "20049"

/** Most segments that one message may have in each of its chunk lists. */
#define RPCRDMA_SEGMENTS_MAX 64u

struct rpcrdma_client;
struct rpcrdma_server;
struct rpcrdma_memory;
struct rpcrdma_request;

/* ---------------------------------------------------------------- messages as lists of pieces */

enum rpcrdma_piece_flags {
  /**
   * The piece is the content of a DDP-eligible XDR opaque, without the length word in front of it
   * (which belongs to the piece before) and without the padding behind it (which the library adds
   * where it is needed; callers never do). The piece must begin at a multiple of four
   * bytes of the message.
   */
  RPCRDMA_PIECE_DDP = 1,
  /** The piece goes on with the DDP-eligible item of the piece before it. Needs _DDP too. */
  RPCRDMA_PIECE_CONTINUED = 2,
};

/**
 * A part of an RPC message: the message is its pieces one after the other. The first piece has no
 * flag and begins with the XID. All pieces of a call must stay as they are until it is done; of a
 * reply only those with RPCRDMA_PIECE_DDP, the others are copied at once.
 */
struct rpcrdma_piece {
  const void *base;
  size_t length;
  unsigned flags;                /**< of enum rpcrdma_piece_flags */
  struct rpcrdma_memory *memory; /**< registered memory around a DDP piece, or NULL */
};

/**
 * Where a client wants a DDP-eligible result. When the server puts it there, the bytes are not in
 * the reply message: behind the length word of the opaque follows at once what comes after it.
 * When the whole reply fits a Send, results come inside the reply message, as in any RPC: then
 * `received` is 0.
 */
struct rpcrdma_result {
  void *base;
  size_t length;
  unsigned flags;                /**< RPCRDMA_PIECE_CONTINUED: the buffer before goes on here */
  struct rpcrdma_memory *memory; /**< registered memory around it, or NULL */
  size_t received;               /**< out: bytes that were put here; 0: look into the message */
};

/* ------------------------------------------------------------------- what a connection agreed */

struct rpcrdma_settings {
  uint32_t client_to_server;    /**< largest Send of the client, in bytes */
  uint32_t server_to_client;    /**< largest Send of the server, in bytes */
  int remote_invalidation;      /**< both sides announced it */
  int peer_announced;           /**< the peer sent private data of RFC 8797, version 1 */
  int peer_remote_invalidation; /**< the R flag of the peer */
  uint32_t peer_send;           /**< as the peer announced; 1024 when it did not */
  uint32_t peer_receive;
  uint32_t credits; /**< client: granted last (1 before the first reply);
                         server: granted at most */
};

/** Counters since a client or a server was made, over all its connections. */
struct rpcrdma_statistics {
  uint64_t calls;                /**< RPC calls sent (client) or received (server) */
  uint64_t replies;              /**< RPC replies received (client) or sent (server) */
  uint64_t sends;                /**< RDMA Sends posted, with or without invalidation */
  uint64_t receives;             /**< messages received */
  uint64_t read_chunks;          /**< Read chunks but for those at position zero, each once */
  uint64_t long_calls;           /**< calls as a Read chunk at position zero (RDMA_NOMSG) */
  uint64_t write_chunks;         /**< Write chunks offered (client) or received (server) */
  uint64_t write_chunks_used;    /**< of these, with at least one byte written */
  uint64_t reply_chunks;         /**< Reply chunks offered (client) or received (server) */
  uint64_t reply_chunks_used;    /**< replies that came as a Reply chunk (RDMA_NOMSG) */
  uint64_t segments;             /**< segments in all these chunks */
  uint64_t rdma_reads;           /**< RDMA Reads posted (server) */
  uint64_t rdma_writes;          /**< RDMA Writes posted (server) */
  uint64_t remote_invalidations; /**< Sends with invalidation, sent (server) or received (client) */
  uint64_t local_invalidations;  /**< windows that the client had to invalidate itself */
  uint64_t errors_sent;          /**< RDMA_ERROR messages sent */
  uint64_t errors_received;      /**< RDMA_ERROR messages received */
  uint64_t discarded;            /**< messages dropped: unknown XID, unreadable, not expected */
  uint64_t connections;          /**< connections established */
  uint64_t retransmissions;      /**< calls sent again, on a new connection (client) */
};

/* ----------------------------------------------------------------------------------- memory */

/**
 * Registers memory of the caller for use in pieces and results. Without it the library registers
 * each buffer for the length of one call, which costs more. The memory must stay until
 * rpcrdma_memory_release(). Fails with -ENOTCONN when the client was never connected.
 */
int rpcrdma_client_register(struct rpcrdma_client *client, void *base, size_t length,
                            struct rpcrdma_memory **memory);

/** Only when no call uses the memory any more, and before the client is closed. */
void rpcrdma_memory_release(struct rpcrdma_memory *memory);

/* ----------------------------------------------------------------------------------- client */

struct rpcrdma_client_options {
  uint32_t inline_send;    /**< largest message to send, 1024 to 262144; others are clamped and
                                rounded down to 1024s. Default RPCRDMA_INLINE_DEFAULT */
  uint32_t inline_receive; /**< largest message to receive, likewise */
  uint32_t credits;        /**< calls wanted outstanding at a time; default 32, at most 1024 */
  int announce;            /**< send private data of RFC 8797; default 1. Without it both
                                thresholds are 1024, and there is no remote invalidation */
  int invalidation;        /**< default 1: where the device has memory windows of type 2, expose
                                memory by these only, and announce remote invalidation. 0: expose
                                memory by plain registration, and announce none */
  uint32_t connect_ms;     /**< time limit of one attempt to connect; default 10000 */
  uint32_t timeout_ms;     /**< time limit of one transmission of a call; default 60000 */
  uint32_t retries;        /**< connections that a call may try beyond its first; default 5 */
  const char *source;      /**< local address to connect from, or NULL */
};

/** Fills in the defaults. */
void rpcrdma_client_options_init(struct rpcrdma_client_options *options);

/**
 * Connects to a server. Blocks until the connection is there or has failed: -ECONNREFUSED,
 * -ETIMEDOUT, -EHOSTUNREACH, -EADDRNOTAVAIL (name not found), -ENODEV (no RDMA device on the way),
 * or another. The receive buffers for the announced size are posted before it is announced.
 * options may be NULL. A connection that breaks is made anew when a call needs it, with everything
 * negotiated afresh.
 */
int rpcrdma_client_connect(struct rpcrdma_client **client, const char *host, const char *service,
                           const struct rpcrdma_client_options *options);

/** Ends the connection. Calls that are under way end with -ECONNABORTED before this returns. */
void rpcrdma_client_close(struct rpcrdma_client *client);

/** The settings of the present connection, or of the last one if it is broken. */
void rpcrdma_client_settings(struct rpcrdma_client *client, struct rpcrdma_settings *settings);
void rpcrdma_client_statistics(struct rpcrdma_client *client,
                               struct rpcrdma_statistics *statistics);

/** An XID that no other call of this client has had for the last 2^32 calls. Host byte order. */
uint32_t rpcrdma_client_xid(struct rpcrdma_client *client);

enum rpcrdma_call_flags {
  /** Not to be sent again on another connection: ends with -ECONNRESET when this one breaks. */
  RPCRDMA_CALL_ONCE = 1,
  /** DDP-eligible pieces and results go by chunks even where they would fit a Send. */
  RPCRDMA_CALL_CHUNKS = 2,
};

/**
 * One RPC. The structure, its lists and all buffers are the caller's; the library uses them from
 * rpcrdma_client_start() until the call is done.
 */
struct rpcrdma_call {
  const struct rpcrdma_piece *pieces; /**< the call message */
  unsigned piece_count;
  unsigned flags;                      /**< of enum rpcrdma_call_flags */
  void *reply;                         /**< where the reply message goes */
  size_t reply_size;                   /**< its size */
  size_t reply_max;                    /**< the longest possible reply message, without what goes to
                                            `results`; 0: reply_size. When such a reply does not fit
                                            a Send, `reply` is offered as Reply chunk. Results may
                                            come inside the message only where reply_max and all of
                                            them fit both a Send and `reply` */
  struct rpcrdma_memory *reply_memory; /**< registered memory around `reply`, or NULL */
  struct rpcrdma_result *results;      /**< DDP-eligible results in their order, or NULL */
  unsigned result_count;
  uint32_t timeout_ms; /**< 0: that of the client */
  /**
   * Called once when the call is done, unless NULL; may free the structure, or start it again with
   * another XID. A call with a callback cannot be waited for.
   */
  void (*done)(struct rpcrdma_call *call);
  void *context;       /**< the caller's */
  int status;          /**< out: 0: the reply is there (it may say that the RPC
                            failed). -ETIMEDOUT, -ECONNRESET, -ECONNREFUSED and so
                            on: no connection gave a reply. -EPROTONOSUPPORT:
                            ERR_VERS. -EREMOTEIO: ERR_CHUNK, or a reply that broke
                            the protocol. -EMSGSIZE: reply too long. -ECANCELED.
                            -ECONNABORTED: the client was closed */
  size_t reply_length; /**< out: bytes in `reply` */
};

/**
 * Starts a call. Calls beyond the credits wait in the library for their turn. Fails, with nothing
 * started and no callback, with -EINVAL (message under 8 bytes, bad flags, no room for a reply),
 * -EEXIST (the XID is in use) or -EMSGSIZE (more than RPCRDMA_SEGMENTS_MAX segments).
 */
int rpcrdma_client_start(struct rpcrdma_client *client, struct rpcrdma_call *call);

/** Waits until a call without callback is done, and returns its status. */
int rpcrdma_client_wait(struct rpcrdma_client *client, struct rpcrdma_call *call);

/** Starts a call and waits for it. `done` must be NULL. */
int rpcrdma_client_call(struct rpcrdma_client *client, struct rpcrdma_call *call);

/**
 * Ends a call early with -ECANCELED. The memory that it exposes is taken back first, for which the
 * connection may be given up. -ENOENT: the call is done already.
 */
int rpcrdma_client_cancel(struct rpcrdma_client *client, struct rpcrdma_call *call);

/* ----------------------------------------------------------------------------------- server */

struct rpcrdma_server_options {
  uint32_t inline_send;    /**< as for a client */
  uint32_t inline_receive; /**< as for a client */
  uint32_t credits;        /**< calls that one client may have outstanding; default 32, at most
                                1024. So many receives are posted per connection */
  int announce;            /**< send private data of RFC 8797; default 1 */
  int invalidation;        /**< default 1: announce remote invalidation, and invalidate where the
                                client announced it too */
  uint32_t call_max;       /**< longest call with all its chunks; default 1 MiB + 64 KiB */
  uint32_t connections;    /**< at most so many at a time, others are rejected; default 64 */
};

void rpcrdma_server_options_init(struct rpcrdma_server_options *options);

/**
 * Called for each RPC call, in the thread of its connection, so a handler that takes its time
 * holds up that connection only. The request must in the end be given to exactly one of
 * rpcrdma_request_reply() and rpcrdma_request_drop(), by any thread.
 */
typedef void (*rpcrdma_handler)(struct rpcrdma_request *request, void *context);

/** Listens. host NULL: all addresses; service NULL or "0": a free port. options may be NULL. */
int rpcrdma_server_listen(struct rpcrdma_server **server, const char *host, const char *service,
                          const struct rpcrdma_server_options *options, rpcrdma_handler handler,
                          void *context);

/** The port it listens on, in host byte order. */
uint16_t rpcrdma_server_port(struct rpcrdma_server *server);

void rpcrdma_server_statistics(struct rpcrdma_server *server,
                               struct rpcrdma_statistics *statistics);

/** The number of connections that are open now. */
unsigned rpcrdma_server_connections(struct rpcrdma_server *server);

/**
 * Disconnects all clients and stops listening. Waits for handlers that run. Requests without
 * an answer stay valid; answers to them are dropped.
 */
void rpcrdma_server_close(struct rpcrdma_server *server);

/**
 * The whole call message in one piece: where parts of it came as Read chunks, they have been read
 * into their places, with XDR padding, as if all had come inline. Stays until the request is
 * replied to or dropped. The memory is the request's: the handler may change it.
 */
const void *rpcrdma_request_message(const struct rpcrdma_request *request, size_t *length);

/** Results that the client offers Write chunks for, and the room in one; 0 if there is no such. */
unsigned rpcrdma_request_result_count(const struct rpcrdma_request *request);
size_t rpcrdma_request_result_max(const struct rpcrdma_request *request, unsigned index);

/** The longest reply message that can get back, results in Write chunks not counted. */
size_t rpcrdma_request_reply_max(const struct rpcrdma_request *request);

void rpcrdma_request_settings(const struct rpcrdma_request *request,
                              struct rpcrdma_settings *settings);

/** Where the client is. */
void rpcrdma_request_peer(const struct rpcrdma_request *request, struct sockaddr_storage *peer);

/**
 * A number of the connection that the request came on, never used again by this server: with peer
 * address and XID a key for a cache of replies.
 */
uint64_t rpcrdma_request_connection(const struct rpcrdma_request *request);

/**
 * Registered memory of the library for a result; goes back to the library when the reply has gone.
 * Goes into a piece as `base` and `memory`. NULL if there is no memory.
 */
void *rpcrdma_request_buffer(struct rpcrdma_request *request, size_t length,
                             struct rpcrdma_memory **memory);

/**
 * Replies, and ends the request also if it fails. The i-th DDP-eligible item of the reply goes
 * to the i-th Write chunk, items that have none go inside the message; a message that does not fit
 * a Send goes into the Reply chunk. When something does not fit, the client gets ERR_CHUNK and
 * this returns -EMSGSIZE. -ENOTCONN: the connection has gone, and the reply with it.
 * DDP pieces must stay as they are until done(context) is called, which happens in any case,
 * possibly before this returns; with done NULL they must be of rpcrdma_request_buffer().
 */
int rpcrdma_request_reply(struct rpcrdma_request *request, const struct rpcrdma_piece *pieces,
                          unsigned piece_count, void (*done)(void *context), void *context);

/** Ends a request without a reply. */
void rpcrdma_request_drop(struct rpcrdma_request *request);

/** Version of the library, "0.1.0". */
const char *rpcrdma_version(void);

#ifdef __cplusplus
}
#endif

#endif
