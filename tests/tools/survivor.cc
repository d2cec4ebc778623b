// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// survivor CASE PORT REPORT: does to itself what daemons do, then connects to itself with rdma_cm
// and moves data, and writes "works" to the file REPORT. CASE:
//   plain            nothing special
//   daemon           fork and exit of the parent, setsid, close of every fd, then RDMA
//   daemon-late      the same after a device was listed and opened by the parent
//   close-all        close of every fd after a device was opened; then opened afresh
//   fork-child       the parent keeps its device, the child opens its own; both must work
//   listen-daemon    rdma_listen, then daemon(): what uwarp says is the test
//   listen-fork      rdma_listen, then fork and exit of the parent, setsid, and a look for events

#include <arpa/inet.h>
#include <fcntl.h>
#include <rdma/rdma_verbs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "verbs_peer.h"

namespace {

using namespace peer;

constexpr int kMessages = 20;
constexpr size_t kMessageBytes = 4096;

std::string g_report;

void report(const std::string& text) {
  const int fd = open(g_report.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (fd < 0) std::_Exit(3);
  const std::string line = text + "\n";
  if (write(fd, line.data(), line.size()) < 0) std::_Exit(3);
  close(fd);
}

// stdout may be closed here, so failures go to the report.
void need(bool condition, const char* what) {
  if (condition) return;
  report(std::string("failed: ") + what + ": " + std::strerror(errno));
  std::_Exit(1);
}

rdma_addrinfo* resolve(const std::string& port, bool passive) {
  rdma_addrinfo hints{};
  hints.ai_port_space = RDMA_PS_TCP;
  hints.ai_flags = passive ? RAI_PASSIVE : 0;
  rdma_addrinfo* found = nullptr;
  need(rdma_getaddrinfo("127.0.0.1", port.c_str(), &hints, &found) == 0, "rdma_getaddrinfo");
  return found;
}

ibv_qp_init_attr attributes() {
  ibv_qp_init_attr attr{};
  attr.cap = {kMessages, kMessages, 1, 1, 0};
  attr.sq_sig_all = 1;
  attr.qp_type = IBV_QPT_RC;
  return attr;
}

rdma_cm_id* listen_on(const std::string& port) {
  rdma_addrinfo* where = resolve(port, true);
  ibv_qp_init_attr attr = attributes();
  rdma_cm_id* listener = nullptr;
  need(rdma_create_ep(&listener, where, nullptr, &attr) == 0, "rdma_create_ep (listener)");
  need(rdma_listen(listener, 1) == 0, "rdma_listen");
  rdma_freeaddrinfo(where);
  return listener;
}

void receive_all(rdma_cm_id* listener) {
  rdma_cm_id* id = nullptr;
  need(rdma_get_request(listener, &id) == 0, "rdma_get_request");
  std::vector<uint8_t> bytes(kMessages * kMessageBytes);
  ibv_mr* mr = rdma_reg_msgs(id, bytes.data(), bytes.size());
  need(mr, "rdma_reg_msgs");
  for (int i = 0; i < kMessages; ++i) {
    need(rdma_post_recv(id, nullptr, &bytes[i * kMessageBytes], kMessageBytes, mr) == 0,
         "rdma_post_recv");
  }
  need(rdma_accept(id, nullptr) == 0, "rdma_accept");
  for (int i = 0; i < kMessages; ++i) {
    ibv_wc wc{};
    need(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "a receive");
  }
  need(has_pattern(bytes.data(), 0, bytes.size(), 1), "the bytes");
  rdma_disconnect(id);
  rdma_dereg_mr(mr);
  rdma_destroy_ep(id);
}

void send_all(const std::string& port) {
  rdma_addrinfo* where = resolve(port, false);
  ibv_qp_init_attr attr = attributes();
  rdma_cm_id* id = nullptr;
  need(rdma_create_ep(&id, where, nullptr, &attr) == 0, "rdma_create_ep");
  rdma_freeaddrinfo(where);
  std::vector<uint8_t> bytes(kMessages * kMessageBytes);
  fill(bytes, 1);
  ibv_mr* mr = rdma_reg_msgs(id, bytes.data(), bytes.size());
  need(mr, "rdma_reg_msgs");
  need(rdma_connect(id, nullptr) == 0, "rdma_connect");
  for (int i = 0; i < kMessages; ++i) {
    need(rdma_post_send(id, nullptr, &bytes[i * kMessageBytes], kMessageBytes, mr, 0) == 0,
         "rdma_post_send");
    ibv_wc wc{};
    need(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "a send");
  }
  rdma_disconnect(id);
  rdma_dereg_mr(mr);
  rdma_destroy_ep(id);
}

void talk_to_myself(const std::string& port) {
  rdma_cm_id* listener = listen_on(port);
  std::thread receiver(receive_all, listener);
  send_all(port);
  receiver.join();
  rdma_destroy_ep(listener);
  report("works");
}

void open_first_device() {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  need(list && count > 0, "ibv_get_device_list");
  need(ibv_open_device(list[0]), "ibv_open_device");
  ibv_free_device_list(list);
}

void close_everything() {
  const int end = static_cast<int>(sysconf(_SC_OPEN_MAX));
  for (int fd = 0; fd < end; ++fd) close(fd);
  // As daemons do, so that no file that is opened later becomes standard output.
  open("/dev/null", O_RDWR);
  if (dup(0) < 0 || dup(0) < 0) std::_Exit(3);
}

void become_daemon() {
  const pid_t child = fork();
  need(child >= 0, "fork");
  if (child > 0) std::_Exit(0);
  need(setsid() > 0, "setsid");
  close_everything();
  report("pid " + std::to_string(getpid()));
}

void listen_then_daemonise(const std::string& what, const std::string& port) {
  rdma_cm_id* listener = listen_on(port);
  if (what == "listen-daemon") {
    need(daemon(1, 1) == 0, "daemon");
    report("works");
    std::_Exit(0);
  }
  const pid_t child = fork();
  need(child >= 0, "fork");
  if (child > 0) std::_Exit(0);
  need(setsid() > 0, "setsid");
  report("session");
  // An event loop reads until there is nothing.
  need(fcntl(listener->channel->fd, F_SETFL, O_NONBLOCK) == 0, "fcntl");
  rdma_cm_event* event = nullptr;
  need(rdma_get_cm_event(listener->channel, &event) != 0 && errno == EAGAIN, "an empty channel");
  report("works");
  std::_Exit(0);
}

void run_in_child(const std::string& port) {
  open_first_device();
  const pid_t child = fork();
  need(child >= 0, "fork");
  if (child == 0) {
    talk_to_myself(port);
    std::_Exit(0);
  }
  int status = 0;
  need(waitpid(child, &status, 0) == child && status == 0, "the child");
  talk_to_myself(port);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: survivor CASE PORT REPORT\n");
    return 2;
  }
  const std::string what = argv[1], port = argv[2];
  g_report = argv[3];
  if (what == "fork-child") {
    run_in_child(port);
    return 0;
  }
  if (what == "listen-daemon" || what == "listen-fork") listen_then_daemonise(what, port);
  if (what == "daemon-late" || what == "close-all") open_first_device();
  if (what == "close-all") close_everything();
  if (what == "daemon" || what == "daemon-late") become_daemon();
  talk_to_myself(port);
  return 0;
}
