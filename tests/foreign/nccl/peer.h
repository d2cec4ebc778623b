// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The other process of a test, and a socket to it that has nothing to do with what is tested.
#pragma once
#include <sys/types.h>

#include <cstdarg>
#include <cstddef>
#include <functional>

// Ends this process with a line on stderr, and with it the test.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

class Peer {
 public:
  // Forks; the child does `work` with a Peer that is this process, and exits.
  explicit Peer(const std::function<void(Peer&)>& work);
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer();

  bool is_child() const { return child_ > 0; }

  void put(const void* bytes, size_t size);
  void get(void* bytes, size_t size);
  // Returns once both have called it.
  void meet();

  void kill();
  // Waits for the end of the child, which must be without a failure.
  void join();

 private:
  explicit Peer(int socket) : socket_(socket) {}

  int socket_ = -1;
  pid_t child_ = -1;
};
