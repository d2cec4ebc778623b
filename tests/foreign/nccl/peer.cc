// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "peer.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "FAILED in process %d: ", getpid());
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  // NCCL's log. Other threads go on using what exit() would destroy.
  fflush(stdout);
  _exit(1);
}

Peer::Peer(const std::function<void(Peer&)>& work) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) fail("socketpair: %s", strerror(errno));
  child_ = fork();
  if (child_ < 0) fail("fork: %s", strerror(errno));
  if (child_ > 0) {
    close(ends[1]);
    socket_ = ends[0];
    return;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  close(ends[0]);
  Peer parent(ends[1]);
  work(parent);
  exit(0);
}

Peer::~Peer() {
  if (child_ > 0) kill();
  if (socket_ >= 0) close(socket_);
}

void Peer::put(const void* bytes, size_t size) {
  const char* next = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t sent = send(socket_, next, size, MSG_NOSIGNAL);
    if (sent <= 0) fail("the other process has ended");
    next += sent;
    size -= static_cast<size_t>(sent);
  }
}

void Peer::get(void* bytes, size_t size) {
  char* next = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t got = recv(socket_, next, size, 0);
    if (got <= 0) fail("the other process has ended");
    next += got;
    size -= static_cast<size_t>(got);
  }
}

void Peer::meet() {
  char here = 1;
  put(&here, 1);
  get(&here, 1);
}

void Peer::kill() {
  if (child_ <= 0) return;
  ::kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
  child_ = -1;
}

void Peer::join() {
  int status = 0;
  if (waitpid(child_, &status, 0) != child_) fail("waitpid: %s", strerror(errno));
  child_ = -1;
  if (status != 0) fail("the other process ended with status %#x", status);
}
