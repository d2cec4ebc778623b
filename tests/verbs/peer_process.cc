// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/peer_process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern char** environ;

pid_t start_again(const std::vector<std::string>& arguments,
                  const std::vector<std::string>& settings, int& control) {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], kControlFd);
  std::vector<char*> argv = {const_cast<char*>("verbs_tests")}, envp;
  for (const std::string& each : arguments) argv.push_back(const_cast<char*>(each.c_str()));
  for (const std::string& each : settings) envp.push_back(const_cast<char*>(each.c_str()));
  for (char** each = environ; *each != nullptr; ++each) envp.push_back(*each);
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  pid_t pid = 0;
  EXPECT_EQ(posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), envp.data()), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  control = ends[0];
  return pid;
}

void send_address(int fd, const Address& address) {
  ASSERT_EQ(write(fd, &address, sizeof address), static_cast<ssize_t>(sizeof address));
}

Address receive_address(int fd) {
  Address address = {};
  EXPECT_EQ(read(fd, &address, sizeof address), static_cast<ssize_t>(sizeof address));
  return address;
}

bool shared_memory_is_on() {
  const char* const set = getenv("UWARP_SHM");
  return set == nullptr || *set != '0';
}
bool rings_are_mapped() {
  std::ifstream maps("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), {}};
  return text.find("uwarp-rings") != std::string::npos;
}

uint64_t hw_counter(const ibv_context* context, const char* name) {
  std::ifstream file(std::string(context->device->ibdev_path) + "/ports/1/hw_counters/" + name);
  uint64_t count = 0;
  EXPECT_TRUE(file >> count);
  return count;
}

namespace {
constexpr uint64_t kFirst = 0xf1;
}

PeerProcess::PeerProcess(End& end, const char* role, bool wait_for_connection) {
  pid_ = start_again({std::string("--role=") + role}, {}, control_);
  send_address(control_, end.address());
  address_ = receive_address(control_);
  end.connect(address_);
  Address ready = receive_address(control_);
  EXPECT_EQ(ready.qpn, address_.qpn);
  if (!wait_for_connection) return;
  // Both sides have connected; the Read completes once the connection is established.
  EXPECT_EQ(end.post_rdma(IBV_WR_RDMA_READ, kFirst, address_, 1 << 16, 8), 0);
  while (true) {
    const auto wc = next_completion(end.cq.get());
    if (!wc) ADD_FAILURE() << "no connection";
    if (!wc || wc->wr_id == kFirst) break;
    early.push_back(*wc);
  }
}

OtherProcess::~OtherProcess() {
  if (pid_ > 0) kill_now();
  close(control_);
}

void PeerProcess::begin() const { EXPECT_EQ(write(control_, "b", 1), 1); }

void OtherProcess::kill_now() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

void OtherProcess::stop() const {
  kill(pid_, SIGSTOP);
  int status;
  EXPECT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
}

void OtherProcess::go_on() const { kill(pid_, SIGCONT); }

int PeerProcess::finish() {
  shutdown(control_, SHUT_WR);
  int status = -1;
  waitpid(pid_, &status, 0);
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}
