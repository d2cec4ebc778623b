// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A second process with its own end, connected to ours: this program again, started with a role
// that peer_loss_test.cc, same_status_test.cc or crowd.cc plays.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "verbs/verbs_fixture.h"

/// Of the other process, to this one.
inline constexpr int kControlFd = 3;

/// Main function of the other process where same_status_test.cc has the role: its exit status. Else
/// -1.
int play_same_status(const std::vector<std::string>& arguments);

/// This program again, with these arguments, and these settings before those of this process. Its
/// end of a pair of sockets is kControlFd; `control` becomes ours. The process ID.
pid_t start_again(const std::vector<std::string>& arguments,
                  const std::vector<std::string>& settings, int& control);

/// Another process of ours, and our end of the sockets between the two.
class OtherProcess {
 public:
  ~OtherProcess();
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  void kill_now();
  /// No thread of it runs until go_on().
  void stop() const;
  void go_on() const;

 protected:
  OtherProcess() = default;

  pid_t pid_ = 0;
  int control_ = -1;
};

void send_address(int fd, const Address& address);
Address receive_address(int fd);

bool shared_memory_is_on();
bool rings_are_mapped();
/// Of this process so far, on the first port of the device.
uint64_t hw_counter(const ibv_context* context, const char* name);

class PeerProcess : public OtherProcess {
 public:
  PeerProcess(End& end, const char* role, bool wait_for_connection = true);
  const Address& address() const { return address_; }
  /// Completions that came while the connection was made.
  std::vector<ibv_wc> early;
  /// Starts the flood. It begins only now, because it would delay the answer that the connection
  /// waits for.
  void begin() const;
  /// Lets the process end by itself; returns its exit status.
  int finish();

 private:
  Address address_ = {};
};
