// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Two threads of one process, each with a queue pair, completion queues and memory of its own, do
// the same work at the same time. Of some verbs calls of each thread every instruction is written
// to a file, with the registers in front of it: sharing.py makes of that what each thread writes,
// which atomic instructions and which system calls it makes.
//
//   uwarp-run two_threads serve PORT          the peer: says its port, answers each Send by a Send
//   uwarp-run two_threads send|write PORT FILE
//
// The processor stops behind each instruction (the trap flag of x86-64), for one call in some
// dozens only: a thread that always ran so slowly would be taken for one that does not poll.
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "trap_flag.h"

namespace {

constexpr int kThreads = 2;
constexpr uint32_t kBytes = 8;
constexpr int kReceives = 8;
constexpr int kWarmUp = 100;     // messages: what happens once only is over then
constexpr int kUnwatched = 300;  // of each thread, while the helper thread's turns are counted
constexpr int kMessages = 300;   // of which calls are recorded
constexpr uint32_t kLongestStride = 16;  // calls from one that is recorded to the next
constexpr uint32_t kSamples = 12;        // of each kind of call and thread, at most

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

// ---- Steps

/// A verbs call, of which some are recorded.
enum Call : uint64_t { kPostSend, kPollSent, kPollReceived, kPostReceive, kCalls };

/// Before an instruction. With 0 for it: the head of a call, `registers` begin with which and its
/// result.
struct Step {
  uint64_t instruction;
  std::array<uint64_t, 16> registers;
};
constexpr size_t kStepsPerCall = 10'000;
constexpr size_t kMostSteps = kCalls * kSamples * kStepsPerCall;

/// Of one thread.
struct Record {
  Step* steps = nullptr;
  size_t count = 0;
  size_t call = 0;  // where the call begins that is being recorded
  std::array<uint32_t, kCalls> samples{};
  uint32_t random = 1;
  uint32_t until_sample = 1;
};
thread_local Record record;
thread_local volatile bool recording = false;

#if defined(__x86_64__)
void on_step(int, siginfo_t*, void* context) {
  if (!recording || record.count - record.call >= kStepsPerCall) return;
  const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  Step& step = record.steps[record.count++];
  step.instruction = static_cast<uint64_t>(registers[REG_RIP]);
  // As an instruction numbers them.
  constexpr int kOrder[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                            REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  for (size_t i = 0; i < step.registers.size(); ++i)
    step.registers[i] = static_cast<uint64_t>(registers[kOrder[i]]);
}
#else
void on_step(int, siginfo_t*, void*) {}
#endif

void begin_record(uint32_t thread) {
  record.steps = static_cast<Step*>(mmap(nullptr, kMostSteps * sizeof(Step), PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (record.steps == MAP_FAILED) fail("mmap");
  record.random += thread;
}

template <typename Function>
auto sampled(Call call, Function&& function) {
  if (record.steps == nullptr || record.samples[call] == kSamples || --record.until_sample != 0)
    return function();
  ++record.samples[call];
  record.random = record.random * 1664525 + 1013904223;
  record.until_sample = 1 + record.random / (UINT32_MAX / kLongestStride);
  record.call = record.count++;
  record.steps[record.call] = {0, {call}};
  recording = true;
  trap(true);
  const auto result = function();
  trap(false);
  recording = false;
  return result;
}

/// The steps of the calling thread.
void write_record(const char* path) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(record.steps),
            static_cast<std::streamsize>(record.count * sizeof(Step)));
  if (!out.flush()) fail(path);
}

/// How often the engine's helper thread has given its core away so far: as often as it has run.
uint64_t helper_turns() {
  uint64_t turns = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(entry.path() / "status");
    bool helper = false;
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("Name:")) helper = line.ends_with("\tuwarp");
      if (helper && line.starts_with("voluntary_ctxt_switches:"))
        turns += std::strtoull(line.c_str() + line.find(':') + 1, nullptr, 10);
    }
  }
  return turns;
}

/// Where the libraries are, for the reader.
void print_maps() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) std::puts(line.c_str());
}

// ---- Two connected queue pairs

/// The memory of one thread: in pages of its own.
struct alignas(4096) Memory {
  std::array<char, 4096> bytes;
};
Memory memory[kThreads];

/// What the server says as private data.
struct Remote {
  uint64_t address;
  uint32_t rkey;
};

ibv_qp_init_attr queue_pair_shape() {
  ibv_qp_init_attr shape{};
  shape.qp_type = IBV_QPT_RC;
  shape.cap = {16, kReceives, 1, 1, 0};
  shape.sq_sig_all = 1;
  return shape;
}

class End {
 public:
  End(rdma_cm_id* id, Memory& memory) : id_(id), bytes_(memory.bytes.data()) {
    region_ = ibv_reg_mr(id->pd, bytes_, memory.bytes.size(),
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (region_ == nullptr) fail("ibv_reg_mr");
    for (int i = 0; i < kReceives; ++i) receive();
  }

  Remote remote() const { return {reinterpret_cast<uint64_t>(bytes_), region_->rkey}; }
  void receive() {
    const auto post = [&] { return rdma_post_recv(id_, nullptr, bytes_ + 1024, kBytes, region_); };
    if (sampled(kPostReceive, post) != 0) fail("rdma_post_recv");
  }
  void send() {
    const auto post = [&] { return rdma_post_send(id_, nullptr, bytes_, kBytes, region_, 0); };
    if (sampled(kPostSend, post) != 0) fail("rdma_post_send");
  }
  void write(const Remote& to) {
    const auto post = [&] {
      return rdma_post_write(id_, nullptr, bytes_, kBytes, region_, 0, to.address, to.rkey);
    };
    if (sampled(kPostSend, post) != 0) fail("rdma_post_write");
  }
  void await_sent() { await(kPollSent, id_->send_cq); }
  void await_received() { await(kPollReceived, id_->recv_cq); }
  /// Sleeps meanwhile. False once the connection has ended.
  bool sleep_until_received() {
    ibv_wc completion;
    return rdma_get_recv_comp(id_, &completion) == 1 && completion.status == IBV_WC_SUCCESS;
  }

 private:
  static void await(Call call, ibv_cq* cq) {
    ibv_wc completion;
    const auto poll = [&] { return ibv_poll_cq(cq, 1, &completion); };
    int count;
    do {
      count = sampled(call, poll);
    } while (count == 0);
    if (count < 0 || completion.status != IBV_WC_SUCCESS) fail("completion");
  }

  rdma_cm_id* id_;
  char* bytes_;
  ibv_mr* region_;
};

rdma_addrinfo* resolve(const char* port, int flags) {
  rdma_addrinfo hints{}, *found = nullptr;
  hints.ai_port_space = RDMA_PS_TCP;
  hints.ai_flags = flags;
  if (rdma_getaddrinfo("127.0.0.1", port, &hints, &found) != 0) fail("rdma_getaddrinfo");
  return found;
}

void serve(const char* port) {
  rdma_cm_id* listener = nullptr;
  ibv_qp_init_attr shape = queue_pair_shape();
  if (rdma_create_ep(&listener, resolve(port, RAI_PASSIVE), nullptr, &shape) != 0 ||
      rdma_listen(listener, kThreads) != 0)
    fail("rdma_listen");
  std::printf("%d\n", ntohs(rdma_get_src_port(listener)));
  std::fflush(stdout);
  std::array<std::thread, kThreads> threads;
  for (int i = 0; i < kThreads; ++i) {
    rdma_cm_id* id = nullptr;
    if (rdma_get_request(listener, &id) != 0) fail("rdma_get_request");
    End end(id, memory[i]);
    const Remote remote = end.remote();
    rdma_conn_param parameters{};
    parameters.private_data = &remote;
    parameters.private_data_len = sizeof remote;
    if (rdma_accept(id, &parameters) != 0) fail("rdma_accept");
    threads[static_cast<size_t>(i)] = std::thread([end]() mutable {
      while (end.sleep_until_received()) {
        end.receive();
        end.send();
        end.await_sent();
      }
    });
  }
  for (std::thread& each : threads) each.join();
}

class Client {
 public:
  Client(const char* port, Memory& memory) : id_(connected(port)), end_(id_, memory) {
    rdma_conn_param parameters{};
    if (rdma_connect(id_, &parameters) != 0) fail("rdma_connect");
    std::memcpy(&remote_, id_->event->param.conn.private_data, sizeof remote_);
  }
  ~Client() { rdma_disconnect(id_); }

  void send() {
    end_.send();
    end_.await_sent();
    end_.await_received();
    end_.receive();
  }
  void write() {
    end_.write(remote_);
    end_.await_sent();
  }

 private:
  static rdma_cm_id* connected(const char* port) {
    rdma_cm_id* id = nullptr;
    ibv_qp_init_attr shape = queue_pair_shape();
    if (rdma_create_ep(&id, resolve(port, 0), nullptr, &shape) != 0) fail("rdma_create_ep");
    return id;
  }

  rdma_cm_id* id_;
  End end_;
  Remote remote_{};
};

/// Counts threads up to all of them.
class Meeting {
 public:
  void wait() {
    arrive();
    while (!all()) std::this_thread::yield();
  }
  void arrive() { ++count_; }
  bool all() const { return count_.load(std::memory_order_relaxed) == kThreads; }

 private:
  std::atomic<int> count_{0};
};

void work(Client& client, bool writes, uint32_t thread) {
  static Meeting warm, counted, done;
  const auto one = [&] { writes ? client.write() : client.send(); };
  for (int i = 0; i < kWarmUp; ++i) client.send();
  for (int i = 0; i < kWarmUp; ++i) one();
  warm.wait();
  const uint64_t turns = thread == 0 ? helper_turns() : 0;
  for (int i = 0; i < kUnwatched; ++i) one();
  counted.wait();
  if (thread == 0)
    std::printf("helper turns %llu of %d messages\n",
                static_cast<unsigned long long>(helper_turns() - turns), kThreads * kUnwatched);
  begin_record(thread);
  for (int i = 0; i < kMessages; ++i) one();
  // The other thread has company to the end.
  Step* const steps = std::exchange(record.steps, nullptr);
  done.arrive();
  while (!done.all()) one();
  record.steps = steps;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "serve") {
    serve(argv[2]);
    return 0;
  }
  if (argc != 4) {
    std::fprintf(stderr, "usage: two_threads serve PORT | send|write PORT FILE\n");
    return 2;
  }
#if !defined(__x86_64__)
  return 77;
#endif
  struct sigaction action {};
  action.sa_sigaction = on_step;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGTRAP, &action, nullptr);
  const bool writes = std::string(argv[1]) == "write";
  Client first(argv[2], memory[0]), second(argv[2], memory[1]);
  std::thread beside([&] {
    work(second, writes, 1);
    write_record((std::string(argv[3]) + ".1").c_str());
  });
  work(first, writes, 0);
  write_record((std::string(argv[3]) + ".0").c_str());
  beside.join();
  print_maps();
}
