// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Rows about librdmacm. What each call gives in each state of an id is a table of docs/verbs.md.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <climits>

#include "verbs/cm_ends.h"
#include "verbs/wrong_arguments.h"

namespace wrong_arguments {
namespace {

constexpr int kResolveMs = 2000;

/// An id, and what it needs.
class Id {
 public:
  explicit Id(rdma_port_space space = RDMA_PS_TCP) : channel_(make_cm_channel()) {
    EXPECT_EQ(rdma_create_id(channel_.get(), &id_, nullptr, space), 0);
  }
  ~Id() {
    if (id_->qp != nullptr) rdma_destroy_qp(id_);
    EXPECT_EQ(rdma_destroy_id(id_), 0);
  }
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  rdma_cm_id* get() { return id_; }
  rdma_event_channel* channel() { return channel_.get(); }

  int bind(const char* address, uint16_t port = 0) {
    sockaddr_storage to = cm_address(address, port);
    return outcome(rdma_bind_addr(id_, generic(to)));
  }
  int resolve(const char* address, sockaddr* from = nullptr) {
    sockaddr_storage to = cm_address(address, 1);
    return outcome(rdma_resolve_addr(id_, from, generic(to), kResolveMs));
  }
  /// Up to ADDR_RESOLVED.
  Id& resolved() {
    EXPECT_EQ(resolve("127.0.0.1"), 0);
    EXPECT_NE(expect_event(channel(), RDMA_CM_EVENT_ADDR_RESOLVED), nullptr);
    return *this;
  }
  Id& routed() {
    resolved();
    EXPECT_EQ(rdma_resolve_route(id_, kResolveMs), 0);
    EXPECT_NE(expect_event(channel(), RDMA_CM_EVENT_ROUTE_RESOLVED), nullptr);
    return *this;
  }
  int create_qp(ibv_qp_init_attr init = init_attributes(nullptr, 16), ibv_pd* pd = nullptr) {
    return outcome(rdma_create_qp(id_, pd, &init));
  }

 private:
  CmChannel channel_;
  rdma_cm_id* id_ = nullptr;
};

int create_id(unsigned space) {
  const CmChannel channel = make_cm_channel();
  rdma_cm_id* id = nullptr;
  const int result =
      outcome(rdma_create_id(channel.get(), &id, nullptr, number<rdma_port_space>(space)));
  if (result == 0) {
    EXPECT_EQ(rdma_destroy_id(id), 0);
  }
  return result;
}

int bind_family(sa_family_t family) {
  Id id;
  sockaddr_storage address = {};
  address.ss_family = family;
  return outcome(rdma_bind_addr(id.get(), generic(address)));
}

int resolve_family(sa_family_t family) {
  Id id;
  sockaddr_storage address = {};
  address.ss_family = family;
  return outcome(rdma_resolve_addr(id.get(), nullptr, generic(address), kResolveMs));
}

int resolve_from(const char* address, uint16_t port = 0) {
  Id id;
  sockaddr_storage from = cm_address(address, port);
  const int result = id.resolve("127.0.0.1", generic(from));
  if (result != 0) id.resolved();  // it may be tried again
  return result;
}

int bind_used(const char* address) {
  Id first, second;
  EXPECT_EQ(first.bind("127.0.0.1"), 0);
  return second.bind(address, ntohs(rdma_get_src_port(first.get())));
}

int option(Id& id, int level, int name, const void* value, size_t length) {
  return outcome(rdma_set_option(id.get(), level, name, const_cast<void*>(value), length));
}

int option(int level, int name, const void* value, size_t length) {
  Id id;
  return option(id, level, name, value, length);
}

/// Of the length given, more than any option has.
int option_of_length(int level, int name, size_t length) {
  static const std::vector<uint8_t> value(8u << 20);
  return option(level, name, value.data(), length);
}

int id_option(int name, size_t length) { return option_of_length(RDMA_OPTION_ID, name, length); }

/// The answer to rdma_connect() of an id that may.
int connect(const std::function<void(rdma_conn_param&)>& spoil, bool with_queue_pair = true) {
  Id id;
  id.routed();
  if (with_queue_pair) {
    EXPECT_EQ(id.create_qp(), 0);
  }
  rdma_conn_param parameters = {};
  spoil(parameters);
  const int result = outcome(rdma_connect(id.get(), &parameters));
  if (result == 0) {
    EXPECT_NE(expect_event(id.channel(), RDMA_CM_EVENT_REJECTED), nullptr);
  }
  return result;
}

int with_connection(const std::function<int(CmEnds&)>& ask) {
  CmEnds ends;
  EXPECT_TRUE(ends.resolve(cm_address("127.0.0.1", ends.port())) && ends.connect());
  return ask(ends);
}

int join(Id& id, const char* group, uint32_t mask, uint32_t flags) {
  sockaddr_storage address = cm_address(group);
  rdma_cm_join_mc_attr_ex attr = {};
  attr.comp_mask = mask;
  attr.join_flags = flags;
  attr.addr = generic(address);
  return outcome(rdma_join_multicast_ex(id.get(), &attr, nullptr));
}

constexpr uint32_t kJoinMask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;

int join_resolved(uint32_t mask, uint32_t flags) {
  Id id(RDMA_PS_UDP);
  id.resolved();
  return join(id, "239.255.87.91", mask, flags);
}

int attributes(Id& id, unsigned state) {
  ibv_qp_attr attr = {};
  attr.qp_state = number<ibv_qp_state>(state);
  int mask = 0;
  return outcome(rdma_init_qp_attr(id.get(), &attr, &mask));
}

int attributes(rdma_port_space space, unsigned state) {
  Id id(space);
  id.resolved();
  return attributes(id, state);
}

const char* const kLibrary = "librdmacm";

Rows of_ids() {
  return {
      {"rdma_create_id", "ps", "0", EINVAL, "ucma: create_id",
       [](Ground&) { return create_id(0); }},
      {"rdma_create_id", "ps", "TCP + 1", EINVAL, "ucma: create_id",
       [](Ground&) { return create_id(RDMA_PS_TCP + 1); }},
      {"rdma_create_id", "ps", "0xffff", EINVAL, "ucma: create_id",
       [](Ground&) { return create_id(0xffff); }},
      {"rdma_create_id", "ps", "the largest number", EINVAL, "ucma: create_id, of its 16 bits",
       [](Ground&) { return create_id(UINT_MAX); }},
      {"rdma_bind_addr", "addr", "family 0", EINVAL, kLibrary,
       [](Ground&) { return bind_family(AF_UNSPEC); }},
      {"rdma_bind_addr", "addr", "family AF_UNIX", EINVAL, kLibrary,
       [](Ground&) { return bind_family(AF_UNIX); }},
      {"rdma_bind_addr", "addr", "family 65535", EINVAL, kLibrary,
       [](Ground&) { return bind_family(65535); }},
      {"rdma_bind_addr", "addr", "not of this host", EADDRNOTAVAIL, "cma: cma_translate_addr",
       [](Ground&) { return Id().bind("192.0.2.1"); }},
      {"rdma_bind_addr", "addr", "a port that another id has", EADDRINUSE, "cma: cma_get_port",
       [](Ground&) { return bind_used("127.0.0.1"); }},
      {"rdma_bind_addr", "addr", "a port that another id has, the wildcard", EADDRINUSE,
       "ours: a TCP port is taken. cma: EADDRNOTAVAIL",
       [](Ground&) { return bind_used("0.0.0.0"); }},
      {"rdma_bind_addr", "id", "bound already", EINVAL, "cma: rdma_bind_addr",
       [](Ground&) {
         Id id;
         EXPECT_EQ(id.bind("127.0.0.1"), 0);
         return id.bind("127.0.0.1");
       }},
      {"rdma_resolve_addr", "dst_addr", "family 0", EINVAL, kLibrary,
       [](Ground&) { return resolve_family(AF_UNSPEC); }},
      {"rdma_resolve_addr", "dst_addr", "family AF_UNIX", EINVAL, kLibrary,
       [](Ground&) { return resolve_family(AF_UNIX); }},
      {"rdma_resolve_addr", "src_addr", "of another family", EINVAL, "cma: resolve_prepare_src",
       [](Ground&) { return resolve_from("::1"); }},
      {"rdma_resolve_addr", "src_addr", "of another family, with a port", EINVAL,
       "cma: resolve_prepare_src", [](Ground&) { return resolve_from("::1", 23456); }},
      {"rdma_resolve_addr", "src_addr", "not of this host", EADDRNOTAVAIL,
       "cma: cma_translate_addr", [](Ground&) { return resolve_from("192.0.2.1"); }},
      {"rdma_resolve_addr", "src_addr", "not of this host, with a port", EADDRNOTAVAIL,
       "cma: cma_translate_addr", [](Ground&) { return resolve_from("192.0.2.1", 23457); }},
      {"rdma_resolve_addr", "timeout_ms", "-1", 0, "cma: as long as it takes",
       [](Ground&) {
         Id id;
         sockaddr_storage to = cm_address("127.0.0.1", 1);
         return outcome(rdma_resolve_addr(id.get(), nullptr, generic(to), -1));
       }},
      {"rdma_resolve_addr", "id", "resolved already", EINVAL, "cma: resolve_prepare_src",
       [](Ground&) { return Id().resolved().resolve("127.0.0.1"); }},
      {"rdma_resolve_route", "id", "that has a route", EINVAL, "cma: rdma_resolve_route",
       [](Ground&) { return outcome(rdma_resolve_route(Id().routed().get(), kResolveMs)); }},
      {"rdma_listen", "backlog", "-1", 0, "ucma: as many as possible",
       [](Ground&) { return outcome(rdma_listen(Id().get(), -1)); }},
      {"rdma_listen", "backlog", "the largest number", 0, "ucma: as many as possible",
       [](Ground&) { return outcome(rdma_listen(Id().get(), INT_MAX)); }},
      {"rdma_listen", "id", "that listens", EINVAL, "cma: rdma_listen",
       [](Ground&) {
         Id id;
         EXPECT_EQ(rdma_listen(id.get(), 1), 0);
         return outcome(rdma_listen(id.get(), 1));
       }},
      {"rdma_listen", "id", "with an address resolved", EINVAL, "cma: rdma_listen",
       [](Ground&) { return outcome(rdma_listen(Id().resolved().get(), 1)); }},
      {"rdma_listen",
       "id",
       "of port space UDP",
       {EOPNOTSUPP, 0},
       "ours: iWARP has no datagrams. cma: a RNIC listens on a TCP port",
       [](Ground&) { return outcome(rdma_listen(Id(RDMA_PS_UDP).get(), 1)); }},
      {"rdma_migrate_id", "channel", "null", 0, "manual page: synchronous from now on",
       [](Ground&) { return outcome(rdma_migrate_id(Id().get(), nullptr)); }},
      {"rdma_migrate_id", "channel", "null, of a synchronous id", EINVAL, kLibrary,
       [](Ground&) {
         Id id;
         EXPECT_EQ(rdma_migrate_id(id.get(), nullptr), 0);
         return outcome(rdma_migrate_id(id.get(), nullptr));
       }},
      {"rdma_get_cm_event", "event", "null", EINVAL, kLibrary,
       [](Ground&) { return outcome(rdma_get_cm_event(Id().channel(), nullptr)); }},
      {"rdma_get_cm_event", "channel", "without an event, not blocking", EAGAIN, "ucma: get_event",
       [](Ground&) {
         Id id;
         fcntl(id.channel()->fd, F_SETFL, fcntl(id.channel()->fd, F_GETFL) | O_NONBLOCK);
         rdma_cm_event* event = nullptr;
         return outcome(rdma_get_cm_event(id.channel(), &event));
       }},
      {"rdma_ack_cm_event", "event", "null", EINVAL, kLibrary,
       [](Ground&) { return outcome(rdma_ack_cm_event(nullptr)); }},
      {"rdma_create_ep", "res", "null", EINVAL, "librdmacm dereferences it; so of none: EINVAL",
       [](Ground&) {
         rdma_addrinfo* found = nullptr;
         return outcome(rdma_getaddrinfo(nullptr, nullptr, nullptr, &found));
       }},
  };
}

Rows of_options() {
  const char* const length = "ucma: set_option_id";
  return {
      {"rdma_set_option", "level", "-1", ENOSYS, "ucma: set_option_level",
       [](Ground&) { return option_of_length(-1, RDMA_OPTION_ID_TOS, 1); }},
      {"rdma_set_option", "level", "2", ENOSYS, "ucma: set_option_level",
       [](Ground&) { return option_of_length(2, RDMA_OPTION_ID_TOS, 1); }},
      {"rdma_set_option", "optname", "unknown, level ID", ENOSYS, length,
       [](Ground&) { return id_option(99, 4); }},
      {"rdma_set_option", "optname", "unknown, with a value of 4 KiB", ENOSYS, length,
       [](Ground&) { return id_option(99, 4096); }},
      {"rdma_set_option", "optname", "unknown, level IB", ENOSYS, "ucma: set_option_ib",
       [](Ground&) { return option_of_length(RDMA_OPTION_IB, 99, 4); }},
      {"rdma_set_option", "optval", "IB_PATH without a path", EINVAL, "ucma: set_ib_path",
       [](Ground&) { return option_of_length(RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, 0); }},
      {"rdma_set_option", "optval", "IB_PATH, of an id without a device", EINVAL,
       "ucma: set_ib_path",
       [](Ground&) { return option_of_length(RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, 72); }},
      {"rdma_set_option", "optlen", "TOS: 0", EINVAL, length,
       [](Ground&) { return id_option(RDMA_OPTION_ID_TOS, 0); }},
      {"rdma_set_option", "optlen", "TOS: 2", EINVAL, length,
       [](Ground&) { return id_option(RDMA_OPTION_ID_TOS, 2); }},
      {"rdma_set_option", "optlen", "TOS: 17", EINVAL, length,
       [](Ground&) { return id_option(RDMA_OPTION_ID_TOS, 17); }},
      {"rdma_set_option", "optlen", "REUSEADDR: 1", EINVAL, length,
       [](Ground&) { return id_option(RDMA_OPTION_ID_REUSEADDR, 1); }},
      {"rdma_set_option", "optlen", "REUSEADDR: 8", EINVAL, length,
       [](Ground&) { return id_option(RDMA_OPTION_ID_REUSEADDR, 8); }},
      {"rdma_set_option", "optlen", "AFONLY: 0", EINVAL, length,
       [](Ground&) { return id_option(RDMA_OPTION_ID_AFONLY, 0); }},
      {"rdma_set_option", "optlen", "AFONLY: 5", EINVAL, length,
       [](Ground&) { return id_option(RDMA_OPTION_ID_AFONLY, 5); }},
      {"rdma_set_option", "optlen", "ACK_TIMEOUT: 4", EINVAL, length,
       [](Ground&) { return id_option(RDMA_OPTION_ID_ACK_TIMEOUT, 4); }},
      {"rdma_set_option", "optlen", "5 MiB", EINVAL, "ucma: set_option; no kernel copies as much",
       [](Ground&) { return id_option(99, 5u << 20); }},
      {"rdma_set_option", "optlen", "the largest number", EINVAL, "ucma: set_option",
       [](Ground&) { return id_option(99, SIZE_MAX); }},
      {"rdma_set_option", "optval", "null", EFAULT, "ucma: set_option",
       [](Ground&) { return option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, nullptr, 1); }},
      {"rdma_set_option", "optval", "null, length 0", EINVAL, length,
       [](Ground&) { return option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, nullptr, 0); }},
      {"rdma_set_option", "optval", "not mapped", EFAULT, "ucma: set_option",
       [](Ground&) {
         return option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS,
                       reinterpret_cast<void*>(uint64_t{1} << 46), 1);
       }},
      {"rdma_set_option", "optval", "ACK_TIMEOUT: 255", 0, "cma: does not look; five bits count",
       [](Ground&) {
         const uint8_t value = 255;
         return option(RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &value, 1);
       }},
      {"rdma_set_option", "optname", "ACK_TIMEOUT, of datagrams", EINVAL,
       "cma: rdma_set_ack_timeout",
       [](Ground&) {
         Id id(RDMA_PS_UDP);
         const uint8_t value = 14;
         return option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &value, 1);
       }},
      {"rdma_set_option", "optname", "AFONLY, of an id that listens", EINVAL,
       "cma: rdma_set_afonly",
       [](Ground&) {
         Id id;
         EXPECT_EQ(rdma_listen(id.get(), 1), 0);
         const int value = 1;
         return option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &value, sizeof value);
       }},
      {"rdma_set_option", "optname", "REUSEADDR off, of a bound id", EINVAL,
       "cma: rdma_set_reuseaddr",
       [](Ground&) {
         Id id;
         EXPECT_EQ(id.bind("127.0.0.1"), 0);
         const int value = 0;
         return option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &value, sizeof value);
       }},
  };
}

Rows of_connections() {
  return {
      {"rdma_create_qp", "id", "that has one", EINVAL, kLibrary,
       [](Ground&) {
         Id id;
         EXPECT_EQ(id.resolved().create_qp(), 0);
         return id.create_qp();
       }},
      {"rdma_create_qp", "pd", "of another context", EINVAL, kLibrary,
       [](Ground& g) {
         return Id().resolved().create_qp(init_attributes(nullptr, 16), g.pd.get());
       }},
      {"rdma_create_qp", "qp_init_attr", "max_send_wr beyond", EINVAL, "mlx5, rxe, siw",
       [](Ground&) {
         ibv_qp_init_attr init = init_attributes(nullptr, 16);
         init.cap.max_send_sge = 33;
         return Id().resolved().create_qp(init);
       }},
      {"rdma_create_qp", "qp_init_attr", "no type", EINVAL, "uverbs: create_qp",
       [](Ground&) {
         ibv_qp_init_attr init = init_attributes(nullptr, 16);
         init.qp_type = number<ibv_qp_type>(0);
         return Id().resolved().create_qp(init);
       }},
      {"rdma_create_srq", "attr", "max_wr 0", EINVAL, "rxe, siw",
       [](Ground&) {
         Id id;
         ibv_srq_init_attr init = {nullptr, {0, 1, 0}};
         return outcome(rdma_create_srq(id.resolved().get(), nullptr, &init));
       }},
      {"rdma_connect", "id", "without a route", EINVAL, "cma: rdma_connect",
       [](Ground&) {
         Id id;
         EXPECT_EQ(id.resolved().create_qp(), 0);
         rdma_conn_param parameters = {};
         return outcome(rdma_connect(id.get(), &parameters));
       }},
      {"rdma_connect", "conn_param", "null, and no queue pair", EINVAL, kLibrary,
       [](Ground&) { return outcome(rdma_connect(Id().routed().get(), nullptr)); }},
      {"rdma_connect", "responder_resources", "max_qp_rd_atom + 1", EINVAL, kLibrary,
       [](Ground&) { return connect([](auto& all) { all.responder_resources = 129; }); }},
      {"rdma_connect", "initiator_depth", "max_qp_rd_atom + 1", EINVAL, kLibrary,
       [](Ground&) { return connect([](auto& all) { all.initiator_depth = 129; }); }},
      {"rdma_connect", "initiator_depth", "254", EINVAL, kLibrary,
       [](Ground&) { return connect([](auto& all) { all.initiator_depth = 254; }); }},
      {"rdma_connect", "retry_count, rnr_retry_count", "255", 0, "cma: at most 7",
       [](Ground&) {
         return connect([](auto& all) { all.retry_count = all.rnr_retry_count = 255; });
       }},
      {"rdma_connect",
       "qp_num",
       "of no queue pair, and the id has none",
       {EINVAL, 0},
       "siw; roce: it is for the peer, and not looked at",
       [](Ground&) { return connect([](auto& all) { all.qp_num = 0x123456; }, false); }},
      {"rdma_connect",
       "id",
       "of port space UDP",
       {EOPNOTSUPP, 0},
       "ours: iWARP has no datagrams. cma: EINVAL from a RNIC",
       [](Ground& g) {
         Id id(RDMA_PS_UDP);
         id.routed();
         rdma_conn_param parameters = {};
         const int result = outcome(rdma_connect(id.get(), &parameters));
         if (g.roce()) {
           EXPECT_NE(expect_event(id.channel(), RDMA_CM_EVENT_UNREACHABLE), nullptr);
         }
         return result;
       }},
      {"rdma_connect",
       "private_data_len",
       "181, port space UDP",
       {EOPNOTSUPP, EINVAL},
       "cma: cma_resolve_ib_udp",
       [](Ground&) {
         Id id(RDMA_PS_UDP);
         id.routed();
         const uint8_t data[181] = {};
         rdma_conn_param parameters = {};
         parameters.private_data = data;
         parameters.private_data_len = sizeof data;
         return outcome(rdma_connect(id.get(), &parameters));
       }},
      {"rdma_connect", "id", "that is connected", EINVAL, "cma: rdma_connect",
       [](Ground&) {
         return with_connection([](CmEnds& ends) {
           return outcome(rdma_connect(ends.client(), &ends.client_parameters));
         });
       }},
      {"rdma_reject", "id", "that is connected", EINVAL, "cma: rdma_reject",
       [](Ground&) {
         return with_connection(
             [](CmEnds& ends) { return outcome(rdma_reject(ends.server(), nullptr, 0)); });
       }},
      {"rdma_reject", "id", "idle", EINVAL, "ucma: ucma_get_ctx_dev",
       [](Ground&) { return outcome(rdma_reject(Id().get(), nullptr, 0)); }},
      {"rdma_disconnect", "id", "with an address resolved", EINVAL, "cma: rdma_disconnect",
       [](Ground&) { return outcome(rdma_disconnect(Id().resolved().get())); }},
      {"rdma_disconnect", "id", "that has disconnected", 0, "cma: once is enough",
       [](Ground&) {
         return with_connection([](CmEnds& ends) {
           EXPECT_EQ(rdma_disconnect(ends.client()), 0);
           return outcome(rdma_disconnect(ends.client()));
         });
       }},
      {"rdma_establish", "id", "idle", EINVAL,
       "cma: rdma_accept; librdmacm, of one with a queue pair",
       [](Ground&) { return outcome(rdma_establish(Id().resolved().get())); }},
      {"rdma_notify", "id", "idle", EINVAL, "ucma: notify",
       [](Ground&) { return outcome(rdma_notify(Id().get(), IBV_EVENT_COMM_EST)); }},
      {"rdma_notify",
       "event",
       "another one than COMM_EST",
       {0, EINVAL},
       "core: ib_cm_notify. iwarp: there is nothing to do",
       [](Ground&) {
         return with_connection(
             [](CmEnds& ends) { return outcome(rdma_notify(ends.server(), IBV_EVENT_PATH_MIG)); });
       }},
      {"rdma_notify",
       "event",
       "unknown",
       {0, EINVAL},
       "core: ib_cm_notify, as above",
       [](Ground&) {
         return with_connection([](CmEnds& ends) {
           return outcome(rdma_notify(ends.server(), number<ibv_event_type>(77)));
         });
       }},
      {"rdma_init_qp_attr", "id", "idle", EINVAL, "ucma: ucma_get_ctx_dev",
       [](Ground&) {
         Id id;
         return attributes(id, IBV_QPS_INIT);
       }},
      {"rdma_init_qp_attr", "qp_state", "RESET", EINVAL,
       "core: ib_cm_init_qp_attr, iw_cm_init_qp_attr",
       [](Ground&) { return attributes(RDMA_PS_TCP, IBV_QPS_RESET); }},
      {"rdma_init_qp_attr", "qp_state", "SQD", EINVAL,
       "core: ib_cm_init_qp_attr, iw_cm_init_qp_attr",
       [](Ground&) { return attributes(RDMA_PS_TCP, IBV_QPS_SQD); }},
      {"rdma_init_qp_attr", "qp_state", "7", EINVAL, "ucma: init_qp_attr",
       [](Ground&) { return attributes(RDMA_PS_TCP, 7); }},
      {"rdma_init_qp_attr", "qp_state", "7, of datagrams", EINVAL, "ucma: init_qp_attr",
       [](Ground&) { return attributes(RDMA_PS_UDP, 7); }},
      {"rdma_init_qp_attr", "qp_state", "the largest number", EINVAL, "ucma: init_qp_attr",
       [](Ground&) { return attributes(RDMA_PS_UDP, UINT_MAX); }},
      {"rdma_join_multicast", "id", "idle", EINVAL, "ucma: ucma_get_ctx_dev",
       [](Ground&) {
         Id id(RDMA_PS_UDP);
         sockaddr_storage group = cm_address("239.255.87.91");
         return outcome(rdma_join_multicast(id.get(), generic(group), nullptr));
       }},
      {"rdma_join_multicast", "id", "of port space TCP", EINVAL, "cma: rdma_join_multicast",
       [](Ground&) {
         Id id;
         sockaddr_storage group = cm_address("239.255.87.91");
         return outcome(rdma_join_multicast(id.resolved().get(), generic(group), nullptr));
       }},
      {"rdma_join_multicast", "addr", "family 0", EINVAL, kLibrary,
       [](Ground&) {
         Id id(RDMA_PS_UDP);
         sockaddr_storage group = {};
         return outcome(rdma_join_multicast(id.resolved().get(), generic(group), nullptr));
       }},
      {"rdma_join_multicast",
       "addr",
       "zeros",
       {ENOSYS, EINVAL},
       "cma: rdma_join_multicast",
       [](Ground&) {
         Id id(RDMA_PS_UDP);
         sockaddr_storage group = cm_address("0.0.0.0");
         return outcome(rdma_join_multicast(id.resolved().get(), generic(group), nullptr));
       }},
      {"rdma_join_multicast_ex", "comp_mask", "unknown bit", ENOTSUP, kLibrary,
       [](Ground&) { return join_resolved(kJoinMask | 1u << 20, 0); }},
      {"rdma_join_multicast_ex", "comp_mask", "no address", EINVAL, kLibrary,
       [](Ground&) { return join_resolved(RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, 0); }},
      {"rdma_join_multicast_ex", "comp_mask", "no flags", EINVAL, kLibrary,
       [](Ground&) { return join_resolved(RDMA_CM_JOIN_MC_ATTR_ADDRESS, 0); }},
      {"rdma_join_multicast_ex", "join_flags", "unknown", EINVAL, "librdmacm; ucma: process_join",
       [](Ground&) { return join_resolved(kJoinMask, 2); }},
      {"rdma_join_multicast_ex", "join_flags", "the largest number", EINVAL, kLibrary,
       [](Ground&) { return join_resolved(kJoinMask, UINT_MAX); }},
      {"rdma_leave_multicast", "addr", "not joined", EADDRNOTAVAIL, kLibrary,
       [](Ground&) {
         Id id(RDMA_PS_UDP);
         sockaddr_storage group = cm_address("239.255.87.91");
         return outcome(rdma_leave_multicast(id.resolved().get(), generic(group)));
       }},
      {"rdma_set_local_ece", "ece", "null", EINVAL, kLibrary,
       [](Ground&) { return outcome(rdma_set_local_ece(Id().get(), nullptr)); }},
      {"rdma_get_remote_ece", "ece", "null", EINVAL, kLibrary,
       [](Ground&) { return outcome(rdma_get_remote_ece(Id().get(), nullptr)); }},
  };
}

}  // namespace

Rows of_rdma_cm() {
  Rows rows = of_ids();
  for (const auto& more : {of_options(), of_connections()})
    rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

}  // namespace wrong_arguments
