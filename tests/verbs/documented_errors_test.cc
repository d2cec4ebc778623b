// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Every errno that docs/verbs.md names, provoked once. tests/verbs_page.py reads the table below.
// It complains about an errno that is only on the page or only here. A row is
// {"call", ERRNO, "what is wrong", how}.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "verbs/verbs_fixture.h"

namespace {

using Mw = std::unique_ptr<ibv_mw, Destroyer<ibv_dealloc_mw>>;
using Dm = std::unique_ptr<ibv_dm, Destroyer<ibv_free_dm>>;
using Td = std::unique_ptr<ibv_td, Destroyer<ibv_dealloc_td>>;

/// 239.255.87.87: joined only, never sent to.
const ibv_gid kGroup = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 255, 87, 87}};

/// What the rows use: two connected ends, and further objects.
struct Ground {
  explicit Ground(ibv_context* context)
      : context(context), pair(context, 8192), other_pd(ibv_alloc_pd(context)) {}
  End& end() { return pair.a; }
  ibv_pd* pd() { return pair.a.pd.get(); }
  ibv_qp* qp() { return pair.a.qp.get(); }
  ibv_cq* cq() { return pair.a.cq.get(); }
  void* memory() { return pair.a.memory.data(); }

  bool roce() const { return context->device->node_type == IBV_NODE_CA; }
  Qp fresh_qp() {
    ibv_qp_init_attr init = init_attributes(cq());
    return Qp(ibv_create_qp(pd(), &init));
  }
  Qp batch_qp(uint64_t operations) {
    ibv_qp_init_attr_ex init = {};
    init.send_cq = init.recv_cq = cq();
    init.cap = {16, 16, 1, 1, 0};
    init.qp_type = IBV_QPT_RC;
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.pd = pd();
    init.send_ops_flags = operations;
    return Qp(ibv_create_qp_ex(context, &init));
  }
  Qp datagram_qp() {
    ibv_qp_init_attr init = init_attributes(cq());
    init.qp_type = IBV_QPT_UD;
    return Qp(ibv_create_qp(pd(), &init));
  }
  Srq srq(uint32_t depth) {
    ibv_srq_init_attr init = {nullptr, {depth, 1, 0}};
    return Srq(ibv_create_srq(pd(), &init));
  }
  Mr region(int access = kAllAccess | IBV_ACCESS_MW_BIND) {
    return Mr(ibv_reg_mr(pd(), memory(), 4096, access));
  }
  /// The address of the device itself.
  ibv_ah_attr address() {
    ibv_ah_attr attr = {};
    attr.is_global = 1;
    attr.port_num = 1;
    attr.grh.dgid = pair.a.address().gid;
    return attr;
  }
  Dm device_memory(size_t length) {
    ibv_alloc_dm_attr attr = {};
    attr.length = length;
    return Dm(ibv_alloc_dm(context, &attr));
  }
  /// Binds a window of type 1 to a whole region.
  int bind(ibv_mw* mw, ibv_mr* mr, unsigned access = IBV_ACCESS_REMOTE_READ) {
    ibv_mw_bind bind = {};
    bind.send_flags = IBV_SEND_SIGNALED;
    bind.bind_info = {mr, reinterpret_cast<uint64_t>(memory()), 4096, access};
    return ibv_bind_mw(qp(), mw, &bind);
  }
  /// The result of `call` for a region to which a window is bound.
  int with_bound_window(const std::function<int(ibv_mr*)>& call) {
    Mr mr = region();
    Mw mw(ibv_alloc_mw(pd(), IBV_MW_TYPE_1));
    EXPECT_EQ(bind(mw.get(), mr.get()), 0);
    EXPECT_TRUE(next_completion(cq()).has_value());
    const int result = call(mr.get());
    mw.reset();
    return result;
  }

  ibv_context* const context;
  Pair pair;
  Pd other_pd;
};

/// 0 if the object was made (it is destroyed again), otherwise errno.
template <auto Destroy, typename T>
int outcome(T* object) {
  const int error = errno;
  if (object == nullptr) return error;
  EXPECT_EQ(Destroy(object), 0);
  return 0;
}

/// The same for objects that cannot be made here.
template <typename T>
int outcome_of_none(T* object) {
  return object == nullptr ? errno : 0;
}

int rereg_error(ibv_mr* mr, int flags, void* address, size_t length, int access) {
  const int result = ibv_rereg_mr(mr, flags, nullptr, address, length, access);
  return result == IBV_REREG_MR_ERR_CMD || result == IBV_REREG_MR_ERR_INPUT ? errno : result;
}

int post(ibv_qp* qp, const std::function<void(ibv_send_wr&)>& change) {
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  change(wr);
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &wr, &bad);
}

int post_receive(ibv_qp* qp) {
  ibv_recv_wr wr = {};
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(qp, &wr, &bad);
}

int post_shared(ibv_srq* srq) {
  ibv_recv_wr wr = {};
  ibv_recv_wr* bad = nullptr;
  return ibv_post_srq_recv(srq, &wr, &bad);
}

/// The result of a batch to which `add` adds requests, on a queue pair for `operations`.
int batch(Ground& g, uint64_t operations, const std::function<void(ibv_qp_ex*)>& add) {
  Qp qp = g.batch_qp(operations);
  ibv_qp_ex* const extended = ibv_qp_to_qp_ex(qp.get());
  ibv_wr_start(extended);
  add(extended);
  return ibv_wr_complete(extended);
}

int advise(Ground& g, ibv_mr* mr, ibv_advise_mr_advice advice, uint64_t address,
           uint32_t flags = 0) {
  ibv_sge sge = {address, 8, mr->lkey};
  return ibv_advise_mr(g.pd(), advice, flags, &sge, 1);
}

/// The result of the first poll of an extended queue that has overflowed.
int poll_of_overrun(Ground& g) {
  ibv_cq_init_attr_ex init = {};
  init.cqe = 1;
  ibv_cq_ex* const extended = ibv_create_cq_ex(g.context, &init);
  Cq cq(ibv_cq_ex_to_cq(extended));
  ibv_qp_init_attr qp_init = init_attributes(cq.get());
  Qp qp(ibv_create_qp(g.pd(), &qp_init));
  EXPECT_EQ(to_init(qp.get()), 0);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(post_receive(qp.get()), 0);
  EXPECT_EQ(to_state(qp.get(), IBV_QPS_ERR), 0);
  ibv_poll_cq_attr attr = {};
  int result = 0;
  while ((result = ibv_start_poll(extended, &attr)) == 0) ibv_end_poll(extended);
  return result;
}

int empty_poll(Ground& g, uint32_t mask) {
  ibv_cq_init_attr_ex init = {};
  init.cqe = 1;
  ibv_cq_ex* const extended = ibv_create_cq_ex(g.context, &init);
  Cq cq(ibv_cq_ex_to_cq(extended));
  ibv_poll_cq_attr attr = {mask};
  return ibv_start_poll(extended, &attr);
}

int create_cq_ex(Ground& g, const std::function<void(ibv_cq_init_attr_ex&)>& change) {
  ibv_cq_init_attr_ex init = {};
  init.cqe = 16;
  change(init);
  ibv_cq_ex* const extended = ibv_create_cq_ex(g.context, &init);
  return extended == nullptr ? errno : ibv_destroy_cq(ibv_cq_ex_to_cq(extended));
}

int create_qp(Ground& g, const std::function<void(ibv_qp_init_attr&)>& change) {
  ibv_qp_init_attr init = init_attributes(g.cq());
  change(init);
  return outcome<ibv_destroy_qp>(ibv_create_qp(g.pd(), &init));
}

int parent_domain(Ground& g, ibv_pd* pd, uint32_t mask) {
  ibv_parent_domain_init_attr init = {};
  init.pd = pd;
  init.comp_mask = mask;
  return outcome<ibv_dealloc_pd>(ibv_alloc_parent_domain(g.context, &init));
}

/// The result of `call` for a thread domain and a parent domain that has it.
int with_thread_domain(Ground& g, const std::function<int(ibv_td*, ibv_pd*)>& call) {
  ibv_td_init_attr td_init = {};
  Td td(ibv_alloc_td(g.context, &td_init));
  ibv_parent_domain_init_attr init = {};
  init.pd = g.pd();
  init.td = td.get();
  Pd parent(ibv_alloc_parent_domain(g.context, &init));
  return call(td.get(), parent.get());
}

/// The errno that a forked child gets if it uses inherited objects.
int in_forked_child(Ground& g) {
  const pid_t child = fork();
  if (child == 0) {
    ibv_mr* const mr = ibv_reg_mr(g.pd(), g.memory(), 64, 0);
    _exit(mr == nullptr ? errno : 0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int bind_type_2(Ground& g, ibv_mw_type type) {
  Mr mr = g.region();
  Mw mw(ibv_alloc_mw(g.pd(), type));
  return post(g.qp(), [&](ibv_send_wr& wr) {
    wr.opcode = IBV_WR_BIND_MW;
    wr.bind_mw.mw = mw.get();
    wr.bind_mw.rkey = mw->rkey;
    wr.bind_mw.bind_info = {mr.get(), reinterpret_cast<uint64_t>(g.memory()), 64, 0};
  });
}

/// Runs a test in a child process where the kernel refuses process_vm_readv() and
/// process_vm_writev().
int without_vector_copies(const char* filter) {
  const pid_t child = fork();
  if (child == 0) {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog whole = {sizeof program / sizeof program[0], program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole) != 0)
      _exit(200);
    const std::string only = std::string("--gtest_filter=") + filter;
    execl("/proc/self/exe", "verbs_tests", only.c_str(), "--gtest_also_run_disabled_tests",
          "--gtest_brief=1", nullptr);
    _exit(201);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? EOPNOTSUPP : -1;
}

struct Row {
  const char* call;
  int error;
  const char* what;
  std::function<int(Ground&)> provoke;
};

const uint64_t kNowhere = uint64_t{1} << 46;  // an address that is not mapped

ibv_xrcd_init_attr anonymous_domain() {
  ibv_xrcd_init_attr attr = {};
  attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  attr.fd = -1;
  attr.oflags = O_CREAT;
  return attr;
}

int open_xrcd(Ground& g, int fd, int flags) {
  ibv_xrcd_init_attr attr = anonymous_domain();
  attr.fd = fd;
  attr.oflags = flags;
  return outcome<ibv_close_xrcd>(ibv_open_xrcd(g.context, &attr));
}

/// Opens in a domain or without one.
int open_qp(Ground& g, uint32_t number) {
  ibv_xrcd_init_attr domain = anonymous_domain();
  ibv_xrcd* const xrcd = ibv_open_xrcd(g.context, &domain);
  ibv_qp_open_attr attr = {};
  attr.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  attr.qp_num = number;
  attr.xrcd = xrcd;
  attr.qp_type = IBV_QPT_XRC_RECV;
  errno = 0;
  const int result = outcome<ibv_destroy_qp>(ibv_open_qp(g.context, &attr));
  if (xrcd != nullptr) {
    EXPECT_EQ(ibv_close_xrcd(xrcd), 0);
  }
  return result;
}

const Row kQueueRows[] = {
    {"ibv_query_device_ex", EINVAL, "unknown comp_mask",
     [](Ground& g) {
       ibv_device_attr_ex attr = {};
       const ibv_query_device_ex_input unknown = {1};
       return ibv_query_device_ex(g.context, &unknown, &attr);
     }},
    {"ibv_query_rt_values_ex", EINVAL, "unknown comp_mask",
     [](Ground& g) {
       ibv_values_ex values = {};
       values.comp_mask = 1u << 30;
       return ibv_query_rt_values_ex(g.context, &values);
     }},
    {"ibv_query_port", EINVAL, "no such port",
     [](Ground& g) {
       ibv_port_attr attr = {};
       return ibv_query_port(g.context, 2, &attr);
     }},
    {"ibv_create_cq", EINVAL, "no entries",
     [](Ground& g) {
       return outcome<ibv_destroy_cq>(ibv_create_cq(g.context, 0, nullptr, nullptr, 0));
     }},
    {"ibv_create_cq", EBADF, "a channel of another context",
     [](Ground& g) {
       const Context other = open_device();
       const Channel channel(ibv_create_comp_channel(other.get()));
       return outcome<ibv_destroy_cq>(ibv_create_cq(g.context, 16, nullptr, channel.get(), 0));
     }},
    {"ibv_create_cq_ex", EOPNOTSUPP, "a field that verbs.h does not have",
     [](Ground& g) {
       return create_cq_ex(g, [](auto& init) { init.wc_flags = uint64_t{1} << 40; });
     }},
    {"ibv_create_cq_ex", EINVAL, "a plain domain as parent",
     [](Ground& g) {
       return create_cq_ex(g, [&](auto& init) {
         init.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
         init.parent_domain = g.pd();
       });
     }},
    {"ibv_start_poll", ENOENT, "nothing there", [](Ground& g) { return empty_poll(g, 0); }},
    {"ibv_start_poll", EINVAL, "unknown comp_mask", [](Ground& g) { return empty_poll(g, 1); }},
    {"ibv_start_poll", EIO, "overrun", poll_of_overrun},
    {"ibv_resize_cq", EINVAL, "out of range", [](Ground& g) { return ibv_resize_cq(g.cq(), 0); }},
    {"ibv_modify_cq", EINVAL, "another mask",
     [](Ground& g) {
       ibv_modify_cq_attr attr = {};
       return ibv_modify_cq(g.cq(), &attr);
     }},
    {"ibv_destroy_cq", EBUSY, "in use", [](Ground& g) { return ibv_destroy_cq(g.cq()); }},
    {"ibv_create_srq", EINVAL, "depth 0",
     [](Ground& g) {
       ibv_srq_init_attr init = {nullptr, {0, 1, 0}};
       return outcome<ibv_destroy_srq>(ibv_create_srq(g.pd(), &init));
     }},
    {"ibv_create_srq_ex", EOPNOTSUPP, "tag matching",
     [](Ground& g) {
       ibv_srq_init_attr_ex init = {};
       init.attr = {16, 1, 0};
       init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
       init.srq_type = IBV_SRQT_TM;
       init.pd = g.pd();
       return outcome<ibv_destroy_srq>(ibv_create_srq_ex(g.context, &init));
     }},
    {"ibv_modify_srq", EINVAL, "limit above the size",
     [](Ground& g) {
       Srq srq = g.srq(16);
       ibv_srq_attr attr = {0, 0, 10000};
       return ibv_modify_srq(srq.get(), &attr, IBV_SRQ_LIMIT);
     }},
    {"ibv_destroy_srq", EBUSY, "in use",
     [](Ground& g) {
       Srq srq = g.srq(16);
       ibv_qp_init_attr init = init_attributes(g.cq());
       init.srq = srq.get();
       Qp qp(ibv_create_qp(g.pd(), &init));
       return ibv_destroy_srq(srq.get());
     }},
    {"ibv_post_srq_recv", ENOMEM, "full",
     [](Ground& g) {
       Srq srq = g.srq(1);
       EXPECT_EQ(post_shared(srq.get()), 0);
       return post_shared(srq.get());
     }},
    {"ibv_post_srq_ops", EOPNOTSUPP, "tag matching",
     [](Ground& g) {
       Srq srq = g.srq(1);
       ibv_ops_wr wr = {};
       ibv_ops_wr* bad = nullptr;
       return ibv_post_srq_ops(srq.get(), &wr, &bad);
     }},
    {"ibv_create_qp", EOPNOTSUPP, "raw packet",
     [](Ground& g) { return create_qp(g, [](auto& init) { init.qp_type = IBV_QPT_RAW_PACKET; }); }},
    {"ibv_create_qp", EINVAL, "too deep",
     [](Ground& g) { return create_qp(g, [](auto& init) { init.cap.max_send_wr = 1u << 30; }); }},
    {"ibv_create_qp_ex", EINVAL, "an unknown creation flag",
     [](Ground& g) {
       ibv_qp_init_attr_ex init = {};
       init.send_cq = init.recv_cq = g.cq();
       init.cap = {16, 16, 1, 1, 0};
       init.qp_type = IBV_QPT_RC;
       init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
       init.pd = g.pd();
       init.create_flags = 1u << 30;
       return outcome<ibv_destroy_qp>(ibv_create_qp_ex(g.context, &init));
     }},
    {"ibv_create_qp_ex", EOPNOTSUPP, "an operation that iWARP lacks",
     [](Ground& g) {
       errno = 0;
       return g.batch_qp(IBV_QP_EX_WITH_TSO) == nullptr ? errno : 0;
     }},
    {"ibv_wr_send", EINVAL, "not asked for",
     [](Ground& g) { return batch(g, IBV_QP_EX_WITH_RDMA_READ, ibv_wr_send); }},
    {"ibv_wr_send_tso", EOPNOTSUPP, "other transports",
     [](Ground& g) {
       return batch(g, IBV_QP_EX_WITH_SEND,
                    [](ibv_qp_ex* qp) { ibv_wr_send_tso(qp, nullptr, 0, 0); });
     }},
    {"ibv_wr_set_ud_addr", EOPNOTSUPP, "other transports",
     [](Ground& g) {
       return batch(g, IBV_QP_EX_WITH_SEND, [](ibv_qp_ex* qp) {
         ibv_wr_send(qp);
         ibv_wr_set_ud_addr(qp, nullptr, 0, 0);
       });
     }},
    {"ibv_wr_set_xrc_srqn", EOPNOTSUPP, "other transports",
     [](Ground& g) {
       return batch(g, IBV_QP_EX_WITH_SEND, [](ibv_qp_ex* qp) {
         ibv_wr_send(qp);
         ibv_wr_set_xrc_srqn(qp, 1);
       });
     }},
    {"ibv_post_send", EINVAL, "unknown flag",
     [](Ground& g) { return post(g.qp(), [](auto& wr) { wr.send_flags = 1u << 20; }); }},
    {"ibv_post_send", EOPNOTSUPP, "TSO",
     [](Ground& g) { return post(g.qp(), [](auto& wr) { wr.opcode = IBV_WR_TSO; }); }},
    {"ibv_post_send", ENOMEM, "full",
     [](Ground& g) {
       Qp qp = g.fresh_qp();
       EXPECT_EQ(to_init(qp.get()), 0);
       EXPECT_EQ(to_rtr(qp.get(), g.pair.b.address()), 0);
       int result = 0;
       for (int i = 0; i < 1000 && result == 0; ++i) result = post(qp.get(), [](auto&) {});
       return result;
     }},
    {"ibv_post_recv", EINVAL, "RESET", [](Ground& g) { return post_receive(g.fresh_qp().get()); }},
    {"ibv_post_recv", ENOMEM, "full",
     [](Ground& g) {
       int result = 0;
       for (int i = 0; i < 1000 && result == 0; ++i) result = post_receive(g.qp());
       return result;
     }},
    {"ibv_modify_qp", EINVAL, "RESET to RTS",
     [](Ground& g) { return to_state(g.fresh_qp().get(), IBV_QPS_RTS); }},
    {"ibv_modify_qp", EOPNOTSUPP, "a rate",
     [](Ground& g) {
       ibv_qp_attr attr = {};
       return ibv_modify_qp(g.qp(), &attr, IBV_QP_RATE_LIMIT);
     }},
    {"ibv_modify_qp", ENODATA, "an index without a GID",
     [](Ground& g) {
       const Qp qp = g.fresh_qp();
       EXPECT_EQ(to_init(qp.get()), 0);
       ibv_qp_attr attr = {};
       attr.qp_state = IBV_QPS_RTR;
       attr.path_mtu = IBV_MTU_1024;
       attr.ah_attr = g.address();
       attr.ah_attr.grh.sgid_index = 15;
       return ibv_modify_qp(qp.get(), &attr,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
     }},
    {"ibv_query_qp", EOPNOTSUPP, "a rate",
     [](Ground& g) {
       ibv_qp_attr attr = {};
       ibv_qp_init_attr init = {};
       return ibv_query_qp(g.qp(), &attr, IBV_QP_RATE_LIMIT, &init);
     }},
    {"ibv_modify_qp_rate_limit", EOPNOTSUPP, "packet pacing",
     [](Ground& g) {
       ibv_qp_rate_limit_attr attr = {};
       return ibv_modify_qp_rate_limit(g.qp(), &attr);
     }},
    {"ibv_set_ece", EOPNOTSUPP, "none",
     [](Ground& g) {
       ibv_ece ece = {1, 0, 0};
       return ibv_set_ece(g.qp(), &ece);
     }},
    {"ibv_query_ece", EOPNOTSUPP, "none",
     [](Ground& g) {
       ibv_ece ece = {};
       return ibv_query_ece(g.qp(), &ece);
     }},
    {"ibv_open_qp", EOPNOTSUPP, "iWARP",
     [](Ground& g) { return g.roce() ? EOPNOTSUPP : open_qp(g, 0); }},
    {"ibv_open_qp", EINVAL, "no such number",
     [](Ground& g) { return g.roce() ? open_qp(g, 1) : EINVAL; }},
    {"ibv_open_xrcd", EOPNOTSUPP, "iWARP",
     [](Ground& g) { return g.roce() ? EOPNOTSUPP : open_xrcd(g, -1, O_CREAT); }},
    {"ibv_open_xrcd", EBADF, "no file",
     [](Ground& g) { return g.roce() ? open_xrcd(g, 9999, O_CREAT) : EBADF; }},
    {"ibv_open_xrcd", EAGAIN, "none yet",
     [](Ground& g) { return g.roce() ? open_xrcd(g, g.context->async_fd, 0) : EAGAIN; }},
    {"ibv_open_xrcd", EINVAL, "no file and flags given",
     [](Ground& g) {
       ibv_xrcd_init_attr attr = {};
       return g.roce() ? outcome<ibv_close_xrcd>(ibv_open_xrcd(g.context, &attr)) : EINVAL;
     }},
    {"ibv_close_xrcd", EBUSY, "used by a queue pair",
     [](Ground& g) {
       if (!g.roce()) return EBUSY;
       ibv_xrcd_init_attr attr = anonymous_domain();
       ibv_xrcd* const xrcd = ibv_open_xrcd(g.context, &attr);
       ibv_qp_init_attr_ex init = {};
       init.qp_type = IBV_QPT_XRC_RECV;
       init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
       init.xrcd = xrcd;
       ibv_qp* const qp = ibv_create_qp_ex(g.context, &init);
       const int result = ibv_close_xrcd(xrcd);
       EXPECT_EQ(ibv_destroy_qp(qp), 0);
       EXPECT_EQ(ibv_close_xrcd(xrcd), 0);
       return result;
     }},
    {"ibv_create_wq", EOPNOTSUPP, "raw packets",
     [](Ground& g) {
       ibv_wq_init_attr attr = {};
       return outcome_of_none(ibv_create_wq(g.context, &attr));
     }},
    {"ibv_create_rwq_ind_table", EOPNOTSUPP, "raw packets",
     [](Ground& g) {
       ibv_rwq_ind_table_init_attr attr = {};
       return outcome_of_none(ibv_create_rwq_ind_table(g.context, &attr));
     }},
    {"ibv_create_flow", EOPNOTSUPP, "raw packets",
     [](Ground& g) {
       ibv_flow_attr attr = {};
       return outcome_of_none(ibv_create_flow(g.qp(), &attr));
     }},
    {"ibv_create_flow_action_esp", EOPNOTSUPP, "raw packets",
     [](Ground& g) {
       ibv_flow_action_esp_attr attr = {};
       return outcome_of_none(ibv_create_flow_action_esp(g.context, &attr));
     }},
    {"ibv_create_counters", EOPNOTSUPP, "flows",
     [](Ground& g) {
       ibv_counters_init_attr attr = {};
       return outcome_of_none(ibv_create_counters(g.context, &attr));
     }},
    {"ibv_create_ah", EOPNOTSUPP, "iWARP",
     [](Ground& g) {
       if (g.context->device->node_type == IBV_NODE_CA) return EOPNOTSUPP;  // iWARP only
       ibv_ah_attr attr = g.address();
       return outcome<ibv_destroy_ah>(ibv_create_ah(g.pd(), &attr));
     }},
    {"ibv_create_ah", ENODATA, "an index without a GID",
     [](Ground& g) {
       ibv_ah_attr attr = g.address();
       attr.grh.sgid_index = 15;
       return outcome<ibv_destroy_ah>(ibv_create_ah(g.pd(), &attr));
     }},
    {"ibv_create_ah", EINVAL, "without a GRH, and not the port's own LID",
     [](Ground& g) {
       ibv_ah_attr attr = g.address();
       attr.is_global = 0;
       attr.dlid = 1;
       return outcome<ibv_destroy_ah>(ibv_create_ah(g.pd(), &attr));
     }},
    {"ibv_attach_mcast", EOPNOTSUPP, "iWARP has none",
     [](Ground& g) {
       if (g.context->device->node_type == IBV_NODE_CA) return EOPNOTSUPP;
       return ibv_attach_mcast(g.qp(), &kGroup, 0);
     }},
    {"ibv_attach_mcast", EINVAL, "a connected queue pair",
     [](Ground& g) {
       if (g.context->device->node_type != IBV_NODE_CA) return EINVAL;
       return ibv_attach_mcast(g.qp(), &kGroup, 0);
     }},
    {"ibv_attach_mcast", ENOMEM, "more queue pairs than max_mcast_qp_attach",
     [](Ground& g) {
       if (g.context->device->node_type != IBV_NODE_CA) return ENOMEM;
       ibv_device_attr device = {};
       EXPECT_EQ(ibv_query_device(g.context, &device), 0);
       std::vector<Qp> attached;
       for (int i = 0; i < device.max_mcast_qp_attach; ++i) {
         attached.push_back(g.datagram_qp());
         EXPECT_EQ(ibv_attach_mcast(attached.back().get(), &kGroup, 0), 0);
       }
       const Qp one_more = g.datagram_qp();
       const int result = ibv_attach_mcast(one_more.get(), &kGroup, 0);
       for (const Qp& qp : attached) EXPECT_EQ(ibv_detach_mcast(qp.get(), &kGroup, 0), 0);
       return result;
     }},
    {"ibv_destroy_qp", EBUSY, "in a multicast group",
     [](Ground& g) {
       if (g.context->device->node_type != IBV_NODE_CA) return EBUSY;
       const Qp qp = g.datagram_qp();
       EXPECT_EQ(ibv_attach_mcast(qp.get(), &kGroup, 0), 0);
       const int result = ibv_destroy_qp(qp.get());
       EXPECT_EQ(ibv_detach_mcast(qp.get(), &kGroup, 0), 0);
       return result;
     }},
    {"ibv_detach_mcast", EOPNOTSUPP, "iWARP has none",
     [](Ground& g) {
       if (g.context->device->node_type == IBV_NODE_CA) return EOPNOTSUPP;
       return ibv_detach_mcast(g.qp(), &kGroup, 0);
     }},
    {"ibv_detach_mcast", EINVAL, "a connected queue pair",
     [](Ground& g) {
       if (g.context->device->node_type != IBV_NODE_CA) return EINVAL;
       return ibv_detach_mcast(g.qp(), &kGroup, 0);
     }},
};

const Row kMemoryRows[] = {
    {"ibv_dealloc_pd", EBUSY, "in use", [](Ground& g) { return ibv_dealloc_pd(g.pd()); }},
    {"ibv_alloc_td", EINVAL, "unknown comp_mask",
     [](Ground& g) {
       ibv_td_init_attr init = {1};
       return outcome<ibv_dealloc_td>(ibv_alloc_td(g.context, &init));
     }},
    {"ibv_dealloc_td", EBUSY, "a parent domain has it",
     [](Ground& g) {
       return with_thread_domain(g, [](ibv_td* td, ibv_pd*) { return ibv_dealloc_td(td); });
     }},
    {"ibv_alloc_parent_domain", EBUSY, "left behind on it",
     [](Ground& g) {
       return with_thread_domain(g, [&](ibv_td*, ibv_pd* parent) {
         Mr mr(ibv_reg_mr(parent, g.memory(), 64, 0));
         return ibv_dealloc_pd(parent);
       });
     }},
    {"ibv_alloc_parent_domain", EINVAL, "of nothing",
     [](Ground& g) { return parent_domain(g, nullptr, 0); }},
    {"ibv_alloc_parent_domain", EOPNOTSUPP, "unknown comp_mask",
     [](Ground& g) { return parent_domain(g, g.pd(), 1u << 30); }},
    {"ibv_reg_mr", EFAULT, "not mapped",
     [](Ground& g) {
       void* const nowhere = reinterpret_cast<void*>(kNowhere);
       return outcome<ibv_dereg_mr>(ibv_reg_mr(g.pd(), nowhere, 4096, 0));
     }},
    {"ibv_reg_mr", EINVAL, "remote write alone",
     [](Ground& g) {
       return outcome<ibv_dereg_mr>(ibv_reg_mr(g.pd(), g.memory(), 64, IBV_ACCESS_REMOTE_WRITE));
     }},
    {"ibv_reg_mr", EOVERFLOW, "wraps, on demand",
     [](Ground& g) {
       return outcome<ibv_dereg_mr>(
           ibv_reg_mr(g.pd(), g.memory(), SIZE_MAX - 1, IBV_ACCESS_ON_DEMAND));
     }},
    {"ibv_reg_mr_iova", EINVAL, "another offset in its page",
     [](Ground& g) {
       return outcome<ibv_dereg_mr>(
           ibv_reg_mr_iova(g.pd(), g.memory(), 64, reinterpret_cast<uint64_t>(g.memory()) + 1, 0));
     }},
    {"ibv_reg_mr", EOPNOTSUPP, "on demand in a sandbox",
     [](Ground&) { return without_vector_copies("DocumentedErrors.DISABLED_NoOnDemandMemory"); }},
    {"ibv_rereg_mr", EINVAL, "remote write alone",
     [](Ground& g) {
       return rereg_error(g.region().get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, 0,
                          IBV_ACCESS_REMOTE_WRITE);
     }},
    {"ibv_rereg_mr", EFAULT, "not mapped",
     [](Ground& g) {
       return rereg_error(g.region().get(), IBV_REREG_MR_CHANGE_TRANSLATION,
                          reinterpret_cast<void*>(kNowhere), 4096, 0);
     }},
    {"ibv_rereg_mr", EBUSY, "a window is bound to it",
     [](Ground& g) {
       return g.with_bound_window([](ibv_mr* mr) {
         return rereg_error(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, 0, IBV_ACCESS_LOCAL_WRITE);
       });
     }},
    {"ibv_dereg_mr", EBUSY, "a window is bound to it",
     [](Ground& g) { return g.with_bound_window(ibv_dereg_mr); }},
    {"ibv_advise_mr", ENOTSUP, "other advice",
     [](Ground& g) {
       Mr mr = g.region(kAllAccess | IBV_ACCESS_ON_DEMAND);
       return advise(g, mr.get(), static_cast<ibv_advise_mr_advice>(77),
                     reinterpret_cast<uint64_t>(g.memory()));
     }},
    {"ibv_advise_mr", EINVAL, "unknown flag",
     [](Ground& g) {
       Mr mr = g.region(kAllAccess | IBV_ACCESS_ON_DEMAND);
       return advise(g, mr.get(), IBV_ADVISE_MR_ADVICE_PREFETCH,
                     reinterpret_cast<uint64_t>(g.memory()), 1u << 7);
     }},
    {"ibv_advise_mr", EFAULT, "outside the region",
     [](Ground& g) {
       Mr mr = g.region(kAllAccess | IBV_ACCESS_ON_DEMAND);
       return advise(g, mr.get(), IBV_ADVISE_MR_ADVICE_PREFETCH, 8);
     }},
    {"ibv_advise_mr", EPERM, "write advice for what may not be written",
     [](Ground& g) {
       Mr mr = g.region(IBV_ACCESS_ON_DEMAND);
       return advise(g, mr.get(), IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
                     reinterpret_cast<uint64_t>(g.memory()));
     }},
    {"ibv_alloc_null_mr", EINVAL, "changed",
     [](Ground& g) {
       Mr mr(ibv_alloc_null_mr(g.pd()));
       return rereg_error(mr.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, 0, 0);
     }},
    {"ibv_alloc_dm", ENOMEM, "more than there is",
     [](Ground& g) {
       ibv_device_attr_ex attr = {};
       EXPECT_EQ(ibv_query_device_ex(g.context, nullptr, &attr), 0);
       return g.device_memory(attr.max_dm_size + 1) == nullptr ? errno : 0;
     }},
    {"ibv_alloc_dm", EINVAL, "length 0",
     [](Ground& g) { return g.device_memory(0) == nullptr ? errno : 0; }},
    {"ibv_free_dm", EBUSY, "a region shows it",
     [](Ground& g) {
       Dm dm = g.device_memory(64);
       Mr mr(ibv_reg_dm_mr(g.pd(), dm.get(), 0, 64, IBV_ACCESS_ZERO_BASED));
       return ibv_free_dm(dm.get());
     }},
    {"ibv_memcpy_to_dm", EFAULT, "out of bounds",
     [](Ground& g) { return ibv_memcpy_to_dm(g.device_memory(64).get(), 64, g.memory(), 4); }},
    {"ibv_memcpy_from_dm", EFAULT, "not a multiple of 4",
     [](Ground& g) { return ibv_memcpy_from_dm(g.memory(), g.device_memory(64).get(), 0, 3); }},
    {"ibv_reg_dm_mr", EINVAL, "not zero-based",
     [](Ground& g) {
       Dm dm = g.device_memory(64);
       return outcome<ibv_dereg_mr>(ibv_reg_dm_mr(g.pd(), dm.get(), 0, 64, 0));
     }},
    {"ibv_reg_dmabuf_mr", EBADF, "no file",
     [](Ground& g) {
       return outcome<ibv_dereg_mr>(ibv_reg_dmabuf_mr(g.pd(), 0, 64, 0, 1 << 20, 0));
     }},
    {"ibv_reg_dmabuf_mr", EINVAL, "length 0",
     [](Ground& g) {
       const int fd = memfd_create("empty", 0);
       const int result = outcome<ibv_dereg_mr>(ibv_reg_dmabuf_mr(g.pd(), 0, 0, 0, fd, 0));
       close(fd);
       return result;
     }},
    {"ibv_reg_dmabuf_mr", EOPNOTSUPP, "cannot be mapped",
     [](Ground& g) {
       const int fd = eventfd(0, 0);
       const int result = outcome<ibv_dereg_mr>(ibv_reg_dmabuf_mr(g.pd(), 0, 64, 0, fd, 0));
       close(fd);
       return result;
     }},
    {"ibv_import_mr", EOPNOTSUPP, "another process",
     [](Ground& g) { return outcome_of_none(ibv_import_mr(g.pd(), 1)); }},
    {"ibv_import_pd", EOPNOTSUPP, "another process",
     [](Ground& g) { return outcome_of_none(ibv_import_pd(g.context, 1)); }},
    {"ibv_import_dm", EOPNOTSUPP, "another process",
     [](Ground& g) { return outcome_of_none(ibv_import_dm(g.context, 1)); }},
    {"ibv_import_device", EOPNOTSUPP, "another process",
     [](Ground& g) {
       const int fd = dup(g.context->cmd_fd);
       const int result = outcome_of_none(ibv_import_device(fd));
       close(fd);
       return result;
     }},
    {"ibv_alloc_mw", EINVAL, "no such type",
     [](Ground& g) {
       return outcome<ibv_dealloc_mw>(ibv_alloc_mw(g.pd(), static_cast<ibv_mw_type>(9)));
     }},
    {"ibv_bind_mw", EINVAL, "type 2",
     [](Ground& g) {
       Mr mr = g.region();
       Mw mw(ibv_alloc_mw(g.pd(), IBV_MW_TYPE_2));
       return g.bind(mw.get(), mr.get());
     }},
    {"ibv_bind_mw", EPERM, "a region of another domain",
     [](Ground& g) {
       Mr mr(ibv_reg_mr(g.other_pd.get(), g.memory(), 4096, kAllAccess | IBV_ACCESS_MW_BIND));
       Mw mw(ibv_alloc_mw(g.pd(), IBV_MW_TYPE_1));
       return g.bind(mw.get(), mr.get());
     }},
    {"IBV_WR_BIND_MW", EINVAL, "type 1", [](Ground& g) { return bind_type_2(g, IBV_MW_TYPE_1); }},
    {"ibv_fork_init", ENODEV, "what a child inherits", in_forked_child},
};

class DocumentedErrors : public VerbsTest {
 protected:
  void check(std::span<const Row> rows) {
    for (const Row& row : rows) {
      Ground ground(context());
      errno = 0;
      EXPECT_STREQ(std::strerror(row.provoke(ground)), std::strerror(row.error))
          << row.call << ": " << row.what;
    }
  }
};

TEST_F(DocumentedErrors, OfQueuesAndQueuePairs) { check(kQueueRows); }
TEST_F(DocumentedErrors, OfMemoryAndDomains) { check(kMemoryRows); }

/// The row about sandboxes runs this test in one.
TEST_F(DocumentedErrors, DISABLED_NoOnDemandMemory) {
  ibv_device_attr_ex attr = {};
  ASSERT_EQ(ibv_query_device_ex(context(), nullptr, &attr), 0);
  EXPECT_EQ(attr.odp_caps.general_caps, 0u);
  Pd pd(ibv_alloc_pd(context()));
  char byte = 0;
  EXPECT_EQ(ibv_reg_mr(pd.get(), &byte, 1, IBV_ACCESS_ON_DEMAND), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

}  // namespace
