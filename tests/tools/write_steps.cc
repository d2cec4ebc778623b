// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Which instructions one RDMA Write takes: from ibv_post_send() to the system call that sends it,
// and through the call of ibv_poll_cq() that receives it. Prints an address per line as
// "down OFFSET" and "up OFFSET", in the order of their first execution; OFFSET is that in the file
// of the engine's library. test_data_path.py makes functions of them.
//
//   UWARP_SHM=0 uwarp-run write_steps BYTES
//
// The processor stops behind each instruction (the trap flag of x86-64). The engine's own threads
// may hardly run meanwhile: they would take the Write before the poll does.
#include <infiniband/verbs.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "trap_flag.h"

namespace {

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

// ---- Steps

constexpr size_t kMostSteps = 200'000;
uintptr_t steps[kMostSteps];
volatile size_t step_count = 0;
volatile bool until_sent = false;
volatile bool recording = false;
volatile bool received = false;  // by one of the calls that were recorded

#if defined(__x86_64__)
void on_step(int, siginfo_t*, void* context) {
  const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  if (!recording || step_count == kMostSteps) return;
  static bool reads = false;
  if (reads && registers[REG_RAX] > 0) received = true;
  const auto at = static_cast<uintptr_t>(registers[REG_RIP]);
  steps[step_count] = at;
  step_count = step_count + 1;
  constexpr unsigned char kSyscall[] = {0x0f, 0x05};
  const bool calls = std::memcmp(reinterpret_cast<const void*>(at), kSyscall, sizeof kSyscall) == 0;
  const auto number = registers[REG_RAX];
  reads = calls && (number == SYS_recvfrom || number == SYS_recvmsg);
  if (calls && number == SYS_sendmsg && until_sent) recording = false;
}
#else
void on_step(int, siginfo_t*, void*) {}
#endif

template <typename Call>
void record(bool only_until_sent, Call&& call) {
  step_count = 0;
  received = false;
  until_sent = only_until_sent;
  recording = true;
  trap(true);
  call();
  trap(false);
  recording = false;
}

struct Library {
  uintptr_t base = 0, end = 0;
};

Library engine() {
  Library found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        if (std::strstr(info->dlpi_name, "libuwarp.so") == nullptr) return 0;
        auto& library = *static_cast<Library*>(out);
        library.base = info->dlpi_addr;
        for (int i = 0; i < info->dlpi_phnum; ++i)
          library.end =
              std::max<uintptr_t>(library.end, info->dlpi_addr + info->dlpi_phdr[i].p_vaddr +
                                                   info->dlpi_phdr[i].p_memsz);
        return 1;
      },
      &found);
  if (found.base == 0) fail("libuwarp.so is not loaded: run this under uwarp-run");
  return found;
}

void print_steps(const char* way) {
  const Library library = engine();
  std::set<uintptr_t> seen;
  for (size_t i = 0; i < step_count; ++i)
    if (steps[i] >= library.base && steps[i] < library.end && seen.insert(steps[i]).second)
      std::printf("%s 0x%zx\n", way, steps[i] - library.base);
}

// ---- Two connected queue pairs

ibv_context* open_device() {
  ibv_device** const list = ibv_get_device_list(nullptr);
  for (ibv_device** each = list; list != nullptr && *each != nullptr; ++each)
    if (std::string(ibv_get_device_name(*each)) == "uwarp_lo") return ibv_open_device(*each);
  fail("uwarp_lo");
}

struct End {
  End(ibv_context* context, size_t bytes) : memory(bytes) {
    constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 64, nullptr, nullptr, 0);
    mr = ibv_reg_mr(pd, memory.data(), bytes, kAccess);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.cap = {16, 16, 1, 1, 0};
    init.qp_type = IBV_QPT_RC;
    init.sq_sig_all = 1;
    qp = ibv_create_qp(pd, &init);
    if (mr == nullptr || qp == nullptr || ibv_query_gid(context, 1, 0, &gid) != 0) fail("objects");
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = kAccess;
    if (ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) != 0)
      fail("INIT");
  }

  void connect(const End& peer) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer.qp->qp_num;
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = peer.gid;
    attr.ah_attr.grh.hop_limit = 1;
    attr.ah_attr.port_num = 1;
    if (ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0)
      fail("RTR");
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    if (ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) != 0)
      fail("RTS");
  }

  void post_write(const End& to) {
    ibv_sge sge{reinterpret_cast<uintptr_t>(memory.data()), static_cast<uint32_t>(memory.size()),
                mr->lkey};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(to.memory.data());
    wr.wr.rdma.rkey = to.mr->rkey;
    if (ibv_post_send(qp, &wr, &bad) != 0) fail("ibv_post_send");
  }
  int poll() {
    ibv_wc completion;
    const int count = ibv_poll_cq(cq, 1, &completion);
    if (count < 0 || (count > 0 && completion.status != IBV_WC_SUCCESS)) fail("completion");
    return count;
  }
  unsigned char last() const { return static_cast<const volatile unsigned char&>(memory.back()); }

  std::vector<unsigned char> memory;
  ibv_pd* pd;
  ibv_cq* cq;
  ibv_mr* mr;
  ibv_qp* qp;
  ibv_gid gid;
};

/// The other threads of the process share this one's processor, and have it when it is idle.
void put_others_behind() {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const pid_t thread = std::atoi(entry.path().filename().c_str());
    const sched_param none{};
    if (sched_setaffinity(thread, sizeof one, &one) != 0) fail("sched_setaffinity");
    if (thread != gettid() && sched_setscheduler(thread, SCHED_IDLE, &none) != 0)
      fail("sched_setscheduler");
  }
}

/// A Write whose last byte is `value`, polled at both ends.
void write_whole(End& from, End& to, unsigned char value) {
  from.memory.back() = value;
  from.post_write(to);
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  bool completed = false;
  while (!completed || to.last() != value) {
    completed |= from.poll() > 0;
    (void)to.poll();
    if (std::chrono::steady_clock::now() > limit) fail("the Write did not arrive");
  }
}

void trace_down(End& from, End& to) {
  record(true, [&] { from.post_write(to); });
  if (recording) fail("nothing was sent by the thread that posted");
  print_steps("down");
}

/// False: the Write was received by another call than the poll that was traced. A thread that has
/// sent much looks at all sockets of its process now and then, also at that of the target here.
bool trace_up(End& from, End& to, unsigned char value) {
  from.memory.back() = value;
  from.post_write(to);
  if (to.last() == value) return false;
  record(false, [&] { (void)to.poll(); });
  if (!received || to.last() != value) return false;
  print_steps("up");
  return true;
}

}  // namespace

int main(int argc, char** argv) {
#if !defined(__x86_64__)
  return 77;
#endif
  const size_t bytes = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 65536;
  ibv_context* const context = open_device();
  if (context == nullptr) fail("ibv_open_device");
  End a(context, bytes), b(context, bytes);
  a.connect(b);
  b.connect(a);
  struct sigaction action {};
  action.sa_sigaction = on_step;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGTRAP, &action, nullptr);
  // What happens once only is over then.
  for (int i = 1; i < 40; ++i) write_whole(a, b, i);
  put_others_behind();
  trace_down(a, b);
  for (int i = 0; i < 1000; ++i) {
    write_whole(a, b, 0);
    for (int polls = 0; polls < 1000; ++polls) (void)(a.poll(), b.poll());
    if (trace_up(a, b, 1)) return 0;
  }
  std::fprintf(stderr, "no Write was received by the poll that was traced\n");
  return 1;
}
