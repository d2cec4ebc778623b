// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// process_change CASE PORT REPORT: while a connection of its own to itself is at work, changes what
// kind of process it is. The connection has to go on; then it opens the device anew, registers
// memory, and makes more connections. Writes "works" to the file REPORT, or what failed. CASE:
//   plain            nothing special
//   user             becomes the user `nobody`, as daemons do that start as root
//   undumpable       prctl(PR_SET_DUMPABLE, 0), as programs with secrets do
//   chroot           the root directory is the empty folder of REPORT from then on
//   user-chroot      chroot, then the user: as sshd and others do
//   fewer-files      RLIMIT_NOFILE is lowered below the descriptors that are in use
//   no-files         RLIMIT_NOFILE is 0: new connections fail with an errno, the old one goes on
//   no-stdio         0, 1 and 2 are closed before anything is opened, and written to afterwards
//   threads          1,000 threads that each use the connection's device once
//   exit-in-handler  exit() in a signal handler, in a thread that is at work with the connection
//   exit-in-thread   exit() in a thread while others work

#include <fcntl.h>
#include <grp.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "verbs_peer.h"

namespace {

using namespace peer;

constexpr size_t kMessageBytes = 32 * 1024;
constexpr uint64_t kRounds = 300;  // enough for a connection to leave TCP
constexpr uid_t kNobody = 65534;
constexpr int kThreads = 1000;

int report_fd = -1;
std::atomic<uint64_t> rounds{0};
std::atomic<bool> enough{false};

void report(const std::string& text) {
  const std::string line = text + "\n";
  if (write(report_fd, line.data(), line.size()) < 0) std::_Exit(3);
}

void need(bool condition, const char* what) {
  if (condition) return;
  report(std::string("failed: ") + what + ": " + std::strerror(errno));
  std::_Exit(1);
}

/// Null, and errno: it could not be made.
rdma_cm_id* make_end(const std::string& port, bool passive) {
  rdma_addrinfo hints{};
  hints.ai_port_space = RDMA_PS_TCP;
  hints.ai_flags = RAI_NUMERICHOST | (passive ? RAI_PASSIVE : 0);
  rdma_addrinfo* where = nullptr;
  if (rdma_getaddrinfo("127.0.0.1", port.c_str(), &hints, &where) != 0) return nullptr;
  ibv_qp_init_attr attr{};
  attr.cap = {2, 2, 1, 1, 0};
  attr.sq_sig_all = 1;
  attr.qp_type = IBV_QPT_RC;
  rdma_cm_id* made = nullptr;
  const int result = rdma_create_ep(&made, where, nullptr, &attr);
  rdma_freeaddrinfo(where);
  return result == 0 ? made : nullptr;
}

/// What one end sends arrives whole at the other one.
class Buffer {
 public:
  explicit Buffer(rdma_cm_id* id) : id_(id), mr_(rdma_reg_msgs(id, bytes_.data(), bytes_.size())) {
    need(mr_ != nullptr, "rdma_reg_msgs");
  }
  ~Buffer() { rdma_dereg_mr(mr_); }
  void expect() {
    need(rdma_post_recv(id_, nullptr, bytes_.data(), kMessageBytes, mr_) == 0, "rdma_post_recv");
  }
  bool take() {
    ibv_wc wc{};
    need(rdma_get_recv_comp(id_, &wc) == 1, "rdma_get_recv_comp");
    if (wc.status == IBV_WC_WR_FLUSH_ERR) return false;
    need(wc.status == IBV_WC_SUCCESS, "a receive");
    need(has_pattern(bytes_.data(), 0, kMessageBytes, 1), "the bytes");
    std::memset(bytes_.data(), 0, kMessageBytes);
    return true;
  }
  void send() {
    fill(bytes_, 1);
    need(rdma_post_send(id_, nullptr, bytes_.data(), kMessageBytes, mr_, 0) == 0, "rdma_post_send");
    ibv_wc wc{};
    need(rdma_get_send_comp(id_, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "a send");
  }

 private:
  rdma_cm_id* const id_;
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(kMessageBytes);
  ibv_mr* const mr_;
};

void answer(rdma_cm_id* listener) {
  rdma_cm_id* id = nullptr;
  need(rdma_get_request(listener, &id) == 0, "rdma_get_request");
  {
    Buffer in(id), out(id);
    in.expect();
    need(rdma_accept(id, nullptr) == 0, "rdma_accept");
    while (in.take()) {
      in.expect();
      out.send();
    }
    rdma_disconnect(id);
  }
  rdma_destroy_ep(id);
}

void ask(const std::string& port, const std::function<bool()>& goes_on) {
  rdma_cm_id* id = make_end(port, false);
  need(id != nullptr, "rdma_create_ep");
  {
    Buffer in(id), out(id);
    in.expect();
    need(rdma_connect(id, nullptr) == 0, "rdma_connect");
    while (goes_on()) {
      out.send();
      need(in.take(), "an answer");
      in.expect();
    }
    rdma_disconnect(id);
  }
  rdma_destroy_ep(id);
}

/// A connection to ourselves.
void work(const std::string& port, const std::function<bool()>& goes_on) {
  rdma_cm_id* listener = make_end(port, true);
  need(listener != nullptr, "rdma_create_ep (listener)");
  need(rdma_listen(listener, 1) == 0, "rdma_listen");
  std::thread answering(answer, listener);
  ask(port, goes_on);
  answering.join();
  rdma_destroy_ep(listener);
}

void wait_for_rounds(uint64_t more) {
  for (const uint64_t from = rounds; rounds < from + more;) usleep(1000);
}

/// The device as a program finds it that begins now.
void open_anew() {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  need(list != nullptr && count > 0, "ibv_get_device_list");
  ibv_context* context = ibv_open_device(list[0]);
  need(context != nullptr, "ibv_open_device");
  ibv_pd* domain = ibv_alloc_pd(context);
  need(domain != nullptr, "ibv_alloc_pd");
  std::vector<uint8_t> bytes(kMessageBytes);
  ibv_mr* region = ibv_reg_mr(domain, bytes.data(), bytes.size(), IBV_ACCESS_LOCAL_WRITE);
  need(region != nullptr, "ibv_reg_mr");
  need(ibv_dereg_mr(region) == 0 && ibv_dealloc_pd(domain) == 0, "ibv_dereg_mr");
  need(ibv_close_device(context) == 0, "ibv_close_device");
  ibv_free_device_list(list);
}

void limit_files(rlim_t most) {
  const rlimit limit{most, most};
  need(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
}

void become_nobody() {
  need(setgroups(0, nullptr) == 0 && setresgid(kNobody, kNobody, kNobody) == 0 &&
           setresuid(kNobody, kNobody, kNobody) == 0,
       "setresuid");
}

void change_root(const std::string& folder) {
  need(chroot(folder.c_str()) == 0 && chdir("/") == 0, "chroot");
}

void run_threads() {
  for (int i = 0; i < kThreads; ++i) std::thread(open_anew).join();
}

/// What librdmacm opens for the application gets these numbers, as with a kernel. What the program,
/// or a library, writes there as an error message must do no harm.
void write_messages() {
  for (int fd = 0; fd < 3; ++fd)
    for (int i = 0; i < 10; ++i) (void)!write(fd, "cannot open the file\n", 21);
}

void change(const std::string& what, const std::string& folder) {
  if (what == "user") become_nobody();
  if (what == "undumpable") need(prctl(PR_SET_DUMPABLE, 0) == 0, "prctl");
  if (what == "chroot" || what == "user-chroot") change_root(folder);
  if (what == "user-chroot") become_nobody();
  if (what == "fewer-files") limit_files(200);
  if (what == "no-files") limit_files(0);
  if (what == "no-stdio") write_messages();
  if (what == "threads") run_threads();
  if (what == "exit-in-thread") std::thread(std::exit, 0).join();
  if (what == "exit-in-handler") {
    signal(SIGALRM, [](int) { std::exit(0); });
    // Another thread gets it then, wherever that is in its work.
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarms, nullptr);
    kill(getpid(), SIGALRM);
    for (;;) pause();
  }
}

void check_no_files() {
  errno = 0;
  need(rdma_create_event_channel() == nullptr && errno == EMFILE, "EMFILE");
  need(make_end("1", false) == nullptr, "no connection without files");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: process_change CASE PORT REPORT\n");
    return 2;
  }
  const std::string what = argv[1], port = argv[2], path = argv[3];
  if (what == "no-stdio")
    for (int fd = 0; fd < 3; ++fd) close(fd);
  const int opened = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  report_fd = fcntl(opened, F_DUPFD, 100);
  close(opened);
  std::thread lasting(work, port, [] {
    ++rounds;
    return !enough;
  });
  wait_for_rounds(kRounds);
  change(what, path.substr(0, path.rfind('/')));
  wait_for_rounds(kRounds);
  if (what == "no-files") {
    check_no_files();
  } else {
    // There is no device in an empty root directory; those that are open stay.
    if (what.find("chroot") == std::string::npos) open_anew();
    for (int i = 0; i < 2; ++i) {
      uint64_t left = kRounds;
      work(std::to_string(std::stoi(port) + 1), [&] { return left-- > 0; });
    }
  }
  wait_for_rounds(kRounds);
  enough = true;
  lasting.join();
  report("works");
  return 0;
}
